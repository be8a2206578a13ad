"""Invariant 2, once: over the committed steps of an epoch each sample is drawn exactly once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.train.options import TrainOptions
from tests.pool import RankPool

from .runs import losses, sample_at, train_images

N = 70  # three steps of 24, 24 and 22 to an epoch
OPTIONS = TrainOptions(24, 4, epochs=3, optimizer="sgd", lr=0.05, seed=5, checkpoint_every=2)


def _options(root: Path) -> TrainOptions:
    return replace(OPTIONS, trace_samples=str(root / "trace.jsonl"))


def _lines(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "trace.jsonl").read_text().splitlines()]


def _drawn(root: Path, epoch: int) -> list[int]:
    lines = [line for line in _lines(root) if line["epoch"] == epoch]
    return [sample for line in lines for sample in line["samples"]]


def _assert_each_once(root: Path, epochs: int, n: int = N) -> None:
    for epoch in range(epochs):
        assert Counter(_drawn(root, epoch)) == Counter(range(n)), f"epoch {epoch}"


@pytest.mark.parametrize("world_size", [1, 3])
def test_each_sample_once_per_epoch(ranks: RankPool, tmp_path: Path, world_size: int) -> None:
    ranks.run(world_size, train_images, tmp_path, _options(tmp_path), {"n": N})
    _assert_each_once(tmp_path, 3)
    assert [(line["step"], line["rank"]) for line in _lines(tmp_path)] == [
        (step, rank) for step in range(1, 10) for rank in range(world_size)
    ]
    orders = [tuple(_drawn(tmp_path, epoch)) for epoch in range(3)]
    assert len({*orders}) == 3, "epochs come in different orders"


def test_ranks_without_work_draw_nothing(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(_options(tmp_path), global_batch=10, epochs=1)
    ranks.run(4, train_images, tmp_path, options, {"n": N})
    _assert_each_once(tmp_path, 1)
    assert all(
        [] in [line["samples"] for line in _lines(tmp_path) if line["step"] == step]
        for step in range(1, 8)
    )


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_each_sample_once_over_a_stop_and_a_resume(
    ranks: RankPool, tmp_path: Path, before: int, after: int
) -> None:
    options = _options(tmp_path)
    shape = {"n": N, "events": {sample_at(options, N, 1, position=9): "stop"}}
    outcome = ranks.run(before, train_images, tmp_path, options, shape)[0].outcome
    assert (outcome.finished, outcome.place.step, outcome.place.consumed) == (False, 2, 48)
    ranks.run(after, train_images, tmp_path, options, {"n": N}, True)
    _assert_each_once(tmp_path, 3)
    assert len(losses(tmp_path)) == 9


def test_each_sample_once_over_work_that_was_lost(ranks: RankPool, tmp_path: Path) -> None:
    """What a life did after its last checkpoint is done again, and listed once."""
    n = 230
    options = replace(_options(tmp_path), epochs=1, checkpoint_every=3)
    shape = {"n": n, "events": {sample_at(options, n, 8): "nan"}}
    assert "step 8" in ranks.run(2, train_images, tmp_path, options, shape)[0].error
    # Seven sound steps, of which the checkpoint at 6 kept six.
    assert max(line["step"] for line in _lines(tmp_path)) > 6
    assert len(losses(tmp_path)) == 7
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write('{"step": 9, "ep')  # torn by a kill
    ranks.run(3, train_images, tmp_path, options, {"n": n}, True)
    _assert_each_once(tmp_path, 1, n)
    assert len(losses(tmp_path)) == 10
