"""The checkpoint with the lowest validation loss is kept beside the newest."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from rankup.launch.weights import export
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.launch.handmade import make_run
from tests.pool import RankPool

from .runs import Report, checkpoints, records, sample_at, train_images

N = 72
OPTIONS = TrainOptions(
    24, 8, 6, optimizer="sgd", lr=0.05, seed=2, checkpoint_every=3, valid_every=1, keep=1
)  # fmt: skip


def _validating(
    world: World,
    directory: Path,
    losses: list[float | None],
    options: TrainOptions = OPTIONS,
    shape: dict[str, object] | None = None,
    resume: bool = False,
) -> Report:
    """Train with these validation losses; the last evaluation of the run takes its own two."""
    with mock.patch("rankup.train.evaluate.evaluate", side_effect=(*losses, 9.0, 9.0)):
        return train_images(world, directory, options, {"n": N, **(shape or {})}, resume)


@pytest.mark.parametrize(
    ("world_size", "losses", "left"),
    [
        (2, [5.0, 3.0, 4.0, 3.5, 6.0, 3.0], (2, 6)),  # an equal one comes too late
        (1, [float("nan"), 2.0, float("inf"), 4.0, 2.5, 6.0], (2, 6)),
        (1, [None] * 6, (6,)),  # nothing to validate on
    ],
)
def test_what_is_left(
    ranks: RankPool,
    tmp_path: Path,
    world_size: int,
    losses: list[float | None],
    left: tuple[int, ...],
) -> None:
    for report in ranks.run(world_size, _validating, tmp_path, losses):
        assert report.error == ""
    assert checkpoints(tmp_path) == [f"step-{step:08d}" for step in left]
    assert records(tmp_path)[-1].get("best_step") == (None if losses[0] is None else left[0])


def test_a_step_between_two_checkpoints_can_be_resumed_and_exported(
    ranks: RankPool, tmp_path: Path
) -> None:
    """The run falls back to its best, which is a checkpoint like any other."""
    run, losses = make_run(tmp_path), [5.0, 3.0, 4.0, 3.5, 6.0, 3.2]
    ranks.run(1, _validating, run, losses)
    export(str(run), "torch", best=True)
    exported = (run / "model-best.pt").read_bytes()
    (run / "checkpoints/step-00000006/COMPLETE").unlink()
    report = ranks.run(2, _validating, run, losses[2:], OPTIONS, {}, True)[0]
    assert "resuming at step 2 of 6" in report.output
    assert checkpoints(run) == ["step-00000002", "step-00000006"]
    export(str(run), "torch", best=True, force=True)
    assert (run / "model-best.pt").read_bytes() == exported


def test_a_best_that_could_not_be_written_is_not_named(ranks: RankPool, tmp_path: Path) -> None:
    """In step 3 no file may grow beyond 4 kB: the one before it is compared with."""
    n = 24 * 4
    events = {sample_at(OPTIONS, n, 3): "no space", sample_at(OPTIONS, n, 4): "space"}
    options = replace(OPTIONS, steps=4, checkpoint_every=4, async_checkpoints=False)
    shape = {"n": n, "events": events}
    losses = [5.0, 3.0, 1.0, 2.0]
    report = ranks.run(1, _validating, tmp_path, losses, options, shape)[0]
    assert "checkpoint at step 3 could not be written" in report.output
    assert checkpoints(tmp_path) == ["step-00000004"]
    [last] = [line for line in records(tmp_path) if line.get("final")]
    assert (last["best_step"], last["best_valid_loss"]) == (4, 2.0)


def test_a_best_that_is_gone_is_not_compared_with(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(1, _validating, tmp_path, [5.0, 1.0, 4.0], replace(OPTIONS, steps=3))
    assert checkpoints(tmp_path) == ["step-00000002", "step-00000003"]
    shutil.rmtree(tmp_path / "checkpoints/step-00000002")
    ranks.run(2, _validating, tmp_path, [4.0, 3.5, 6.0], OPTIONS, {}, True)
    assert checkpoints(tmp_path) == ["step-00000005", "step-00000006"]


def test_a_validation_that_was_left_is_noted_where_it_belongs(
    ranks: RankPool, tmp_path: Path
) -> None:
    """The checkpoint of a stop is told of its validation by the attempt that makes it."""
    options = replace(OPTIONS, steps=2, checkpoint_every=2)
    ranks.run(1, _validating, tmp_path, [5.0, 4.0], options)
    marker = tmp_path / "checkpoints/step-00000002/COMPLETE"
    before = json.loads(marker.read_text())
    left = {**before, "extra": {**before["extra"], "best": [5.0, 1], "unvalidated": True}}
    del left["hash"]
    marker.write_text(json.dumps(left))
    report = ranks.run(2, _validating, tmp_path, [4.0], options, {}, True)[0]
    assert report.error == ""
    assert json.loads(marker.read_text()) == before
