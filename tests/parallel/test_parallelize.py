"""`parallelize`: a user's loop gives the same in every layout."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import rankup
from rankup.runtime.world import World
from tests.pool import RankPool

from .user_loops import Script, alone, assert_same, run, stack

TWO: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "tp": {"tp": 2},
}


@pytest.mark.parametrize("layout", TWO)
def test_the_loop_is_that_of_one_process(ranks: RankPool, layout: str) -> None:
    """Uneven parts, a last batch of one sample, several backwards to a step, clipping."""
    script = Script(n=21, accumulate=2, clip=0.5)
    [wanted] = ranks.run(1, alone, script)
    assert wanted.losses[-1] < wanted.losses[0]
    results = ranks.run(2, run, script, TWO[layout])
    assert_same(results[0], wanted)
    assert [result.losses for result in results] == [results[0].losses] * 2


def test_training_in_eval_mode_is_that_of_one_process(ranks: RankPool) -> None:
    """With a last batch of one sample, which is a step of its own."""
    script = Script(n=21, mode=False)
    [wanted] = ranks.run(1, alone, script)
    assert_same(ranks.run(2, run, script, {"strategy": "fsdp"})[0], wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"strategy": "hsdp"},
        {"shard": 2, "tp": 2},
    ],
    ids=lambda asked: " ".join(f"{axis} {size}" for axis, size in asked.items()),
)
def test_four_ranks(ranks: RankPool, asked: dict[str, Any]) -> None:
    script = Script(n=23, accumulate=2, clip=0.5)
    [wanted] = ranks.run(1, alone, script)
    assert_same(ranks.run(4, run, script, asked)[0], wanted)


def _example_of_the_docstring(world: World) -> dict[str, Any]:
    lines = map(str.strip, inspect.getdoc(rankup.parallelize).splitlines())  # type: ignore[union-attr]
    [example] = (line for line in lines if "rankup.parallelize(" in line)
    names: dict[str, Any] = {"rankup": rankup, "Net": stack, "SGD": torch.optim.SGD}
    exec(example, names)
    model, optimizer = names["model"], names["optimizer"]
    model(torch.ones(2, 6)).sum().backward()
    return {"norm": float(model.clip_grad_norm_(1.0)), "optimizer": type(optimizer).__name__}


def test_the_example_of_its_docstring_runs(ranks: RankPool) -> None:
    first, second = ranks.run(2, _example_of_the_docstring)
    assert first["optimizer"] == "SGD"
    assert first["norm"] == second["norm"] > 0
