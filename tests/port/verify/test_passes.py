"""Which ways through loaders a run trains on, as its journal tells."""

from __future__ import annotations

from typing import Any

from rankup.port.verify.journals import Journal, Pass, passes

LABELLED, OTHERS = 1, 2


def _begun(dataset: int, number: int = 1) -> dict[str, Any]:
    fields = {"grad": True, "shuffles": False, "sampler": "", "epoch": None, "where": "a.py:1"}
    return {"event": "iterate", "dataset": dataset, "pass": number, **fields}


def _batch(dataset: int, *ids: int, number: int = 1) -> dict[str, Any]:
    return {"event": "batch", "dataset": dataset, "pass": number, "ids": list(ids)}


def _ended(dataset: int, number: int = 1) -> dict[str, Any]:
    return {"event": "iterated", "dataset": dataset, "pass": number}


def _backward(samples: int = 2) -> dict[str, Any]:
    return {"event": "backward", "samples": samples}


def _passes(*events: dict[str, Any]) -> dict[int, Pass]:
    return {one.dataset: one for one in passes(Journal(events))}


def _step(*ids: int, samples: int = 2) -> list[dict[str, Any]]:
    return [_batch(LABELLED, *ids), _batch(OTHERS, *ids), _backward(samples)]


def test_both_of_two_loaders_side_by_side_are_trained_on() -> None:
    found = _passes(
        _begun(LABELLED), _begun(OTHERS), *_step(0, 1), *_step(2, 3), *_step(0, samples=0)
    )
    for one in found.values():
        assert one.trained
        assert one.batches == ((0, 1), (2, 3), ()), "the last only keeps this rank in step"


def test_a_batch_to_look_at_before_the_training_is_not_trained_on() -> None:
    steps = [event for ids in ((0, 1), (2, 3)) for event in (_batch(LABELLED, *ids), _backward())]
    found = _passes(_begun(OTHERS), _batch(OTHERS, 7, 8), _begun(LABELLED), *steps)
    assert not found[OTHERS].trained
    assert found[OTHERS].samples == [7, 8]
    assert found[LABELLED].trained


def test_an_evaluation_with_gradients_on_is_not_trained_on() -> None:
    events = [_begun(LABELLED)]
    for number in (1, 2, 3):
        looked = [_batch(OTHERS, 7, number=number), _ended(OTHERS, number)]
        events += [_begun(OTHERS, number), *looked, _batch(LABELLED, 0, 1), _backward()]
    assert [one.trained for one in passes(Journal(tuple(events)))] == [True, False, False, False]
    several = [_begun(LABELLED), _begun(OTHERS)]
    for _ in range(3):
        several += [_batch(OTHERS, 7), _batch(OTHERS, 8), _batch(LABELLED, 0, 1), _backward()]
    assert not _passes(*several)[OTHERS].trained


def test_a_further_backward_is_of_the_same_batch() -> None:
    found = _passes(_begun(LABELLED), _batch(LABELLED, 0, 1), _backward(), _backward())
    assert found[LABELLED].batches == ((0, 1),)
    assert found[LABELLED].trained
