"""The start-up probe passes on a sound backend and names an unsound one."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from rankup.runtime.collectives import ALL_GATHER, REDUCE_SCATTER
from rankup.runtime.hang.state import fingerprint
from rankup.runtime.probe import probe, same_code
from rankup.runtime.world import World
from tests.pool import RankPool


def _probes(world: World) -> None:
    probe(world)  # the first calls of a group also connect its ranks
    probe(world)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_sound_backend(ranks: RankPool, world_size: int) -> None:
    ranks.run(world_size, _probes)


def _with_wrong(world: World, name: str) -> str:
    """The error of a probe where collective `name` answers one too much on rank 1."""
    sound = getattr(dist, name)

    def wrong(out: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        done = sound(out, *args, **kwargs)
        if world.rank == 1:
            out.add_(1.0)
        return done

    with mock.patch.object(dist, name, wrong):
        try:
            probe(world)
        except RuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", ["all_reduce", REDUCE_SCATTER, ALL_GATHER])
def test_a_wrong_answer_is_named(ranks: RankPool, name: str) -> None:
    sound, wrong = ranks.run(2, _with_wrong, name)
    assert sound == ""
    shown = name.removesuffix("_single").removesuffix("_tensor").removesuffix("_into")
    for word in (shown, "gloo", torch.__version__, "rank 1 of 2", "expected [", "got ["):
        assert word in wrong


def _averages(world: World, answer: str) -> str:
    """What a probe prints where reduce_scatter gives `answer` for a mean, or raises."""
    sound = getattr(dist, REDUCE_SCATTER)

    def other(out: torch.Tensor, given: torch.Tensor, op: Any) -> Any:
        if op != dist.ReduceOp.AVG or answer == "mean":
            return sound(out, given, op=op)
        if answer == "refused":
            raise ValueError("Cannot use ReduceOp.AVG with Gloo")
        return sound(out, given, op=dist.ReduceOp.SUM)

    printed = io.StringIO()
    with mock.patch.object(dist, REDUCE_SCATTER, other), redirect_stdout(printed):
        probe(world)
    return printed.getvalue()


def test_a_sum_in_place_of_an_average_is_said(ranks: RankPool) -> None:
    """As gloo of older torch; no mean of ours comes from the backend, so the run goes on."""
    first, second = ranks.run(2, _averages, "sum")
    assert "reduce_scatter(AVG) on backend gloo" in first
    assert "expected [1.5], got [3.0]" in first
    assert "a script that asks for it would be" in first
    assert second == "", "one rank says it"


@pytest.mark.parametrize("answer", ["mean", "refused"])
def test_nothing_is_said_of_a_backend_that_is_not_wrong(ranks: RankPool, answer: str) -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if answer == "mean" and version < (2, 11):
        answer = "refused"  # its gloo takes a sum for it
    assert ranks.run(2, _averages, answer) == ["", ""]


def _runs_other_code(world: World) -> str:
    from rankup.runtime import probe as module

    if world.rank == 2:
        other = {**fingerprint(), "torch": "2.7.0"}
        module.fingerprint = lambda: other  # type: ignore[assignment]
    try:
        same_code(world)
    except RuntimeError as error:
        return str(error)
    finally:
        module.fingerprint = fingerprint
    return ""


def test_a_node_with_other_code_is_named(ranks: RankPool) -> None:
    for text in ranks.run(3, _runs_other_code):
        assert f"torch is {torch.__version__} on most ranks, but not on rank 2 on " in text
        assert "(2.7.0)" in text


def _same_code(world: World) -> None:
    same_code(world)


def test_the_same_code_everywhere(ranks: RankPool) -> None:
    ranks.run(2, _same_code)
