"""Resuming: bit for bit at the same number of ranks, the same run at another."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.train.options import TrainOptions
from tests.pool import RankPool

from .runs import (
    Report,
    assert_bit_for_bit,
    assert_same_run,
    checkpoints,
    losses,
    records,
    sample_at,
    train_images,
)

N = 110  # five steps of 24, the last one short, to an epoch; 12 steps end in the third
SGD = TrainOptions(24, 4, 12, optimizer="sgd", lr=0.1, momentum=0.0, seed=3, checkpoint_every=5)
OPTIMIZERS = {
    "sgd": SGD,
    "momentum": replace(SGD, momentum=0.9),
    "adamw": replace(SGD, optimizer="adamw", lr=0.01, warmup=3),
}


def _run(
    ranks: RankPool,
    world_size: int,
    directory: Path,
    options: TrainOptions,
    resume: bool = False,
    **shape: Any,
) -> Report:
    shape = {"n": N, **shape}
    report: Report = ranks.run(world_size, train_images, directory, options, shape, resume)[0]
    return report


def _interrupted(
    ranks: RankPool, world_size: int, directory: Path, options: TrainOptions, step: int = 2
) -> int:
    """A run that was asked to stop in `step`, and where it stopped: in the one after it, or in that
    same one where a validation follows it that a rank can leave."""
    events = {sample_at(options, N, step, position=20): "stop"}
    report = _run(ranks, world_size, directory, options, events=events)
    assert report.outcome is not None
    assert not report.outcome.finished
    stopped = report.outcome.place.step
    validations = options.valid_every or 3  # five in a run of 12 steps
    # A rank that has nothing to validate does not leave the validation.
    assert stopped == step + 1 or (stopped == step and step % validations == 0)
    assert f"stopped at step {stopped} of 12" in report.output
    assert not (directory / "model-final.pt").exists()
    assert len(losses(directory)) == stopped
    return stopped


def _resumed(
    ranks: RankPool, world_size: int, directory: Path, options: TrainOptions, at: int = 3
) -> Report:
    report = _run(ranks, world_size, directory, options, resume=True)
    assert report.error == ""
    assert report.outcome is not None
    assert report.outcome.finished
    assert f"at step {at} of 12" in report.output
    return report


def test_bit_for_bit_at_the_same_world_size(ranks: RankPool, tmp_path: Path) -> None:
    """Two ranks with momentum are in `test_two_interruptions`."""
    options = OPTIMIZERS["adamw"]
    _run(ranks, 3, tmp_path / "whole", options)
    _interrupted(ranks, 3, tmp_path / "resumed", options)
    _resumed(ranks, 3, tmp_path / "resumed", options)
    assert_bit_for_bit(tmp_path / "resumed", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "step"), [(1, 4), (4, 1)])
def test_bit_for_bit_from_every_step_of_an_epoch(
    ranks: RankPool, tmp_path: Path, world_size: int, step: int
) -> None:
    """Each optimizer from every step and at every world size, though not at all pairs of them."""
    optimizer = list(OPTIMIZERS)[(world_size + step) % len(OPTIMIZERS)]
    options = replace(OPTIMIZERS[optimizer], micro_batch=7)
    _run(ranks, world_size, tmp_path / "whole", options)
    stopped = _interrupted(ranks, world_size, tmp_path / "resumed", options, step)
    _resumed(ranks, world_size, tmp_path / "resumed", options, stopped)
    assert_bit_for_bit(tmp_path / "resumed", tmp_path / "whole")


def test_the_same_run_at_another_world_size(ranks: RankPool, tmp_path: Path) -> None:
    """From two ranks to three after a kill -9 goes the recorded run of `test_same_run.py`."""
    options = OPTIMIZERS["momentum"]
    _run(ranks, 3, tmp_path / "whole", options)
    _interrupted(ranks, 3, tmp_path / "resumed", options)
    _resumed(ranks, 1, tmp_path / "resumed", options)
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")


@pytest.mark.slow
def test_two_interruptions(ranks: RankPool, tmp_path: Path) -> None:
    options = OPTIMIZERS["momentum"]
    _run(ranks, 2, tmp_path / "whole", options)
    _interrupted(ranks, 2, tmp_path / "resumed", options, step=1)
    events = {sample_at(options, N, 4): "stop"}
    again = _run(ranks, 2, tmp_path / "resumed", options, resume=True, events=events)
    assert again.outcome is not None
    assert again.outcome.place.step == 5
    _resumed(ranks, 2, tmp_path / "resumed", options, at=5)
    assert_bit_for_bit(tmp_path / "resumed", tmp_path / "whole")


def _forget(directory: Path, name: str) -> None:
    (directory / "checkpoints" / name / "COMPLETE").unlink()


# --- which checkpoint


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


TEARS: dict[str, tuple[Callable[[Path], None], str]] = {
    "marker missing": (lambda d: (d / "COMPLETE").unlink(), "interrupted"),
    "one bit of a tensor": (lambda d: _flip_a_bit(d / "__0_0.distcp"), "has changed"),
}


@pytest.fixture(scope="module")
def finished(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks to its end, with checkpoints at steps 10 and 12. Copy before use."""
    directory = tmp_path_factory.mktemp("finished")
    _run(ranks, 2, directory, SGD)
    assert checkpoints(directory) == ["step-00000010", "step-00000012"]
    return directory


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(finished, tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_checkpoint_is_passed_over_and_named(
    ranks: RankPool, finished: Path, own: Path, tear: str
) -> None:
    damage, reason = TEARS[tear]
    damage(own / "checkpoints" / "step-00000012")
    report = _resumed(ranks, 2, own, SGD, at=10)
    assert "checkpoint step-00000012 is torn" in report.output
    assert reason in report.output
    assert_bit_for_bit(own, finished)
    assert checkpoints(own) == ["step-00000010", "step-00000012"]


def test_without_a_whole_checkpoint_it_starts_anew_and_says_so(
    ranks: RankPool, finished: Path, own: Path
) -> None:
    for name in checkpoints(own):
        _forget(own, name)
    report = _resumed(ranks, 2, own, SGD, at=0)
    assert "no whole checkpoint" in report.output
    assert_bit_for_bit(own, finished)


def test_when_all_that_was_whole_is_damaged_nothing_is_started_over(
    ranks: RankPool, own: Path
) -> None:
    before = records(own)
    for name in checkpoints(own):
        _flip_a_bit(own / "checkpoints" / name / "__0_0.distcp")
    report = _run(ranks, 2, own, SGD, resume=True)
    assert "every checkpoint" in report.error
    assert records(own) == before


@pytest.mark.parametrize("missing", [False, True], ids=["unreadable line", "missing"])
def test_what_the_record_of_a_resumed_run_lacks_is_said(
    ranks: RankPool, own: Path, missing: bool
) -> None:
    _forget(own, "step-00000012")
    path = own / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"step": 3\xff\n'
    path.unlink() if missing else path.write_bytes(b"".join(lines))
    report = _resumed(ranks, 2, own, SGD, at=10)
    said = "metrics.jsonl is not there" if missing else "metrics.jsonl: left out 1 unreadable line"
    assert report.output.count(said) == 1
    found = [record["step"] for record in records(own) if not record.get("final")]
    assert found == ([11, 12] if missing else [1, 2, *range(4, 13)])


def test_a_finished_run_can_be_resumed(ranks: RankPool, finished: Path, own: Path) -> None:
    _resumed(ranks, 2, own, SGD, at=12)
    assert_bit_for_bit(own, finished)


def test_the_newest_are_kept(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(SGD, checkpoint_every=2, valid_every=12)
    _run(ranks, 1, tmp_path / "four", replace(options, keep=4))
    newest = [f"step-000000{n:02d}" for n in (6, 8, 10, 12)]
    assert checkpoints(tmp_path / "four") == newest


def test_an_abandoned_future_goes(ranks: RankPool, own: Path) -> None:
    """After a fall-back the run saves under lower numbers than what it has passed over."""
    _forget(own, "step-00000012")
    events = {sample_at(SGD, N, 1): "stop"}  # sample of step 1, drawn again in step 11 or 12
    report = _run(ranks, 2, own, replace(SGD, checkpoint_every=1), resume=True, events=events)
    assert report.error == ""
    assert checkpoints(own) == ["step-00000011", "step-00000012"]


def test_metrics_are_cut_back_to_the_checkpoint(ranks: RankPool, own: Path) -> None:
    with (own / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "lo')
    _forget(own, "step-00000012")
    before = _losses_of_a_torn_file(own)
    _resumed(ranks, 2, own, SGD, at=10)
    assert losses(own) == before
    assert [record.get("final") for record in records(own)] == [None] * 12 + [True]


def _losses_of_a_torn_file(directory: Path) -> list[float]:
    """Of a file whose last line may be torn."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if '"loss"' in line]


# --- another run


def test_another_model_is_refused_by_the_names_that_differ(ranks: RankPool, own: Path) -> None:
    error = _run(ranks, 2, own, SGD, resume=True, width=9).error
    assert error.startswith("UserError: ")
    assert "first.weight: [6, 3, 3, 3] in the checkpoint, [9, 3, 3, 3] in this model" in error


def test_another_optimizer_is_refused(ranks: RankPool, own: Path) -> None:
    error = _run(ranks, 2, own, OPTIMIZERS["adamw"], resume=True).error
    assert error.startswith("UserError: ")
    assert "optimizer" in error
    assert "exp_avg" in error


def test_another_run_is_refused_by_the_options_that_differ(ranks: RankPool, own: Path) -> None:
    changed = replace(SGD, seed=4, global_batch=12, micro_batch=8)
    error = _run(ranks, 1, own, changed, resume=True).error
    named = "--seed .*3 .*4.*--global-batch .*24 .*12.*--micro-batch .*4 .*8"
    assert re.match(f"UserError: .*{named}", error)


@pytest.mark.slow
def test_the_best_loss_is_remembered(ranks: RankPool, tmp_path: Path) -> None:
    """A resumed attempt that finds nothing better leaves the best model of the first one."""
    options = replace(SGD, lr=0.5, valid_every=1, checkpoint_every=5)
    _run(ranks, 1, tmp_path / "whole", options)
    _interrupted(ranks, 1, tmp_path / "resumed", options, step=3)
    _resumed(ranks, 1, tmp_path / "resumed", options, at=3)
    assert_bit_for_bit(tmp_path / "resumed", tmp_path / "whole")
    steps = [record for record in records(tmp_path / "resumed") if not record.get("final")]
    final = records(tmp_path / "resumed")[-1]
    best = min(steps, key=lambda record: record.get("valid_loss", math.inf))
    assert final["best_valid_loss"] == best["valid_loss"]
    assert final["best_step"] == best["step"]
