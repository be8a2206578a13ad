"""Invariant 6: one rank's failure ends the run on all ranks, and the message says whose it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.train.options import TrainOptions
from tests.pool import RankPool

from . import crash
from .runs import checkpoints, losses, sample_at, train_images
from .tasks import Event

N = 240
# Checkpoints are there when the step is over, so that each test knows which ones there are.
OPTIONS = TrainOptions(
    24, 4, 10, optimizer="sgd", lr=0.05, seed=1, checkpoint_every=2, async_checkpoints=False
)


def _shape(step: int, position: int, event: Event) -> dict[str, object]:
    return {"n": N, "events": {sample_at(OPTIONS, N, step, position): event}}


@pytest.mark.parametrize(("world_size", "guilty", "clip"), [(1, 0, 0.0), (3, 1, 1.0)])
def test_nan_stops_all_ranks_and_names_step_and_rank(
    ranks: RankPool, tmp_path: Path, world_size: int, guilty: int, clip: float
) -> None:
    # Six micro-batches of four: position 13 lies in the fourth, the second half's or third's first.
    options = replace(OPTIONS, clip=clip)
    shape = _shape(step=5, position=13, event="nan")
    reports = ranks.run(world_size, train_images, tmp_path, options, shape)
    for report in reports:
        assert report.error.startswith("RunFailed: step 5: ")
        assert f"rank {guilty} on " in report.error
        assert sum(f"rank {rank} on " in report.error for rank in range(world_size)) == 1
    assert len(losses(tmp_path)) == 4
    assert checkpoints(tmp_path) == ["step-00000002", "step-00000004"]
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [line["checkpoint"] for line in lines if "checkpoint" in line] == [2, 4]


def test_a_nan_in_the_step_of_a_checkpoint_is_not_kept(ranks: RankPool, tmp_path: Path) -> None:
    shape = _shape(step=4, position=3, event="nan")
    report = ranks.run(2, train_images, tmp_path, OPTIONS, shape)[0]
    assert report.error.startswith("RunFailed: step 4: the loss on rank 0")
    assert checkpoints(tmp_path) == ["step-00000002"]
    ranks.run(2, train_images, tmp_path, OPTIONS, {"n": N}, True)
    assert len(losses(tmp_path)) == 10


def test_a_gradient_that_overflows_is_found(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(OPTIONS, lr=1e30)
    report = ranks.run(2, train_images, tmp_path, options, {"n": N})[0]
    assert report.error.startswith("RunFailed: step ")
    assert "no longer finite" in report.error


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_finite_loss_with_an_infinite_gradient_is_not_kept(
    ranks: RankPool, tmp_path: Path, clip: float
) -> None:
    """It spoils the weights in the very step that a checkpoint follows."""
    options = replace(OPTIONS, clip=clip)
    shape = _shape(step=4, position=3, event="steep")
    report = ranks.run(2, train_images, tmp_path, options, shape)[0]
    assert report.error.startswith("RunFailed: step ")
    again = ranks.run(2, train_images, tmp_path, options, {"n": N}, True)[0]
    assert again.error == "", "it went on from spoiled weights"
    assert len(losses(tmp_path)) == 10


@pytest.mark.parametrize("event", ["raise", pytest.param("kill", marks=pytest.mark.slow)])
def test_one_rank_that_fails_ends_all(tmp_path: Path, event: Event) -> None:
    shape = _shape(step=3, position=13, event=event)
    (tmp_path / "run").mkdir()
    codes = crash.wait(crash.start(3, crash.train_rank, tmp_path / "run", OPTIONS, shape), 90)
    assert None not in codes, "a rank goes on without the one that failed"
    assert 0 not in codes
    assert codes[1] == (-9 if event == "kill" else 1)
    if event == "raise":
        said = (tmp_path / "run" / "output-1.txt").read_text()
        assert "OSError: this sample cannot be read" in said
    assert checkpoints(tmp_path / "run") == ["step-00000002"]
