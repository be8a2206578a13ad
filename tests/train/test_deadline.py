"""Invariants 1 and 2 over the time limit: a run of many lives is the run that was never stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from rankup.train.task import Batch
from tests.pool import RankPool

from .runs import Report, assert_bit_for_bit, checkpoints, losses, sample_at, train_task
from .tasks import ConvNetTask, Images

N = 60  # three steps of 24, 24 and 12 to an epoch
OPTIONS = TrainOptions(24, 4, 9, optimizer="sgd", lr=0.1, momentum=0.9, seed=3, checkpoint_every=4)
LONG = 3600.0


class SignallingImages(Images):
    """Images of which some send signals when they are read."""

    def __init__(self, signals: Mapping[int, list[int]]) -> None:
        super().__init__(N, 1)
        self.signals = signals

    def batch(self, samples: torch.Tensor) -> Batch:
        for sample in samples.tolist():
            for number in self.signals.get(sample, ()):
                os.kill(os.getpid(), number)
        return super().batch(samples)


def _life(
    world: World,
    directory: Path,
    options: TrainOptions,
    left: float | None,
    resume: bool = False,
    signals: Mapping[int, list[int]] | None = None,
) -> Report:
    """One attempt of the job, which ends `left` seconds from now."""
    os.environ["RANKUP_RUN_DIR"] = str(directory)
    if left is not None:
        os.environ["RANKUP_END_TIME"] = str(time.time() + left)
    task = ConvNetTask(options, n=N)
    task.train = SignallingImages(signals or {})
    return train_task(world, task, options, directory, resume)


def _run(
    ranks: RankPool,
    world_size: int,
    directory: Path,
    left: float | None = None,
    resume: bool = False,
    options: TrainOptions = OPTIONS,
    signals: Mapping[int, list[int]] | None = None,
) -> Report:
    found = ranks.run(world_size, _life, directory, options, left, resume, signals)
    assert len({report.error for report in found}) == 1
    report: Report = found[0]
    return report


def _marker(directory: Path) -> bool:
    """True if the job script would start a next attempt; it takes the marker away then."""
    path = directory / "requeue"
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def _step(report: Report) -> int:
    assert report.error == ""
    assert report.outcome is not None
    return report.outcome.place.step


@pytest.mark.parametrize(
    "world_size",
    [2, pytest.param(3, marks=pytest.mark.slow)],
)
def test_a_run_of_many_lives_is_the_uninterrupted_run(
    ranks: RankPool, tmp_path: Path, world_size: int
) -> None:
    options = replace(OPTIONS, steps=6, trace_samples=str(tmp_path / "trace.jsonl"))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    untraced = replace(options, trace_samples=None)
    assert _step(_run(ranks, world_size, whole, LONG, options=untraced)) == 6
    assert not _marker(whole)
    reached = 0
    for life in range(6):  # the time is up before each of them has begun
        report = _run(ranks, world_size, cut, 0, resume=life > 0, options=options)
        assert reached < _step(report) <= reached + 2, "every life comes further"
        reached = _step(report)
        assert _marker(cut)
        assert len(losses(cut)) == reached
        if reached >= 4:
            break
        assert f"stopped at step {reached} of 6, to go on in a next attempt" in report.output
    report = _run(ranks, world_size, cut, LONG, resume=True, options=options)
    assert report.outcome is not None
    assert report.outcome.finished
    assert not _marker(cut)
    assert_bit_for_bit(cut, whole)
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    for epoch in range(2):
        drawn = [sample for line in lines if line["epoch"] == epoch for sample in line["samples"]]
        assert Counter(drawn) == Counter(range(N)), f"epoch {epoch}"


@pytest.mark.parametrize(
    ("numbers", "marker"),
    [
        ([signal.SIGUSR1], True),
        ([signal.SIGINT], False),
        ([signal.SIGTERM, signal.SIGUSR1], False),
    ],
)
def test_one_ranks_signal_stops_all_and_only_the_sites_asks_for_a_next_attempt(
    ranks: RankPool, tmp_path: Path, numbers: list[int], marker: bool
) -> None:
    sample = sample_at(OPTIONS, N, 1, position=21)  # one rank reads it
    report = _run(ranks, 2, tmp_path, LONG, signals={sample: numbers})
    assert _step(report) == 2
    assert report.outcome is not None
    assert not report.outcome.finished
    assert ("to go on in a next attempt" in report.output) == marker
    assert _marker(tmp_path) == marker
    assert checkpoints(tmp_path) == ["step-00000002"]


def test_a_signal_to_one_and_the_clock_of_another_end_the_run(
    ranks: RankPool, tmp_path: Path
) -> None:
    sample = sample_at(OPTIONS, N, 1)
    report = _run(ranks, 3, tmp_path, 0, signals={sample: [signal.SIGTERM]})
    assert _step(report) == 2
    assert not _marker(tmp_path), "somebody ended it"


@pytest.mark.parametrize("steps", [9, 1])
def test_a_checkpoint_that_fails_at_the_deadline_fails_the_run(
    ranks: RankPool, tmp_path: Path, steps: int
) -> None:
    tmp_path.joinpath("checkpoints").touch()  # no folder can be made there
    report = _run(ranks, 2, tmp_path, 0, options=replace(OPTIONS, steps=steps))
    assert "RunFailed: the time limit came at step" in report.error
    assert "no checkpoint could be written" in report.error
    assert not _marker(tmp_path), "the next attempt would do the same again"


@pytest.mark.slow
def test_an_evaluation_that_finds_no_time_is_left_to_the_next_attempt_once(
    ranks: RankPool, tmp_path: Path
) -> None:
    options = replace(OPTIONS, steps=1)
    _run(ranks, 2, tmp_path / "whole", options=options)
    cut = tmp_path / "cut"
    report = _run(ranks, 2, cut, 0, options=options)
    assert _step(report) == 1
    assert "stopped in the last evaluation" in report.output
    assert _marker(cut)
    report = _run(ranks, 2, cut, 0, resume=True, options=options)
    assert "RunFailed: the time limit is too short for the last evaluation" in report.error
    assert not _marker(cut), "it would be requeued for ever"
    report = _run(ranks, 2, cut, LONG, resume=True, options=options)
    assert _step(report) == 1
    assert_bit_for_bit(cut, tmp_path / "whole")


def test_outside_a_job_nothing_is_stopped_and_no_marker_left(
    ranks: RankPool, tmp_path: Path
) -> None:
    assert _step(_run(ranks, 2, tmp_path)) == 9
    assert not _marker(tmp_path)
