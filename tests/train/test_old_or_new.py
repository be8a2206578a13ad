"""Invariant 4, old or new: a kill -9 at any moment leaves a whole checkpoint to go on from."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.train.options import TrainOptions
from tests.pool import RankPool

from . import crash
from .runs import (
    assert_bit_for_bit,
    assert_same_run,
    checkpoints,
    losses,
    records,
    sample_at,
    train_images,
)

N = 72
# Written while the step waits, so that each moment of a save can be met; `LONG` writes beside it.
OPTIONS = TrainOptions(
    24, 8, 6, optimizer="sgd", lr=0.05, seed=2, checkpoint_every=1, valid_every=1,
    async_checkpoints=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one rank that nothing interrupts."""
    directory = tmp_path_factory.mktemp("whole")
    ranks.run(1, train_images, directory, OPTIONS, {"n": N})
    return directory


def _killed_at(directory: Path, event: int) -> bool:
    directory.mkdir()
    [code] = crash.wait(
        crash.start(1, crash.train_until_file_event, event, directory, OPTIONS, {"n": N})
    )
    assert code in (0, -9), (directory / "output-0.txt").read_text()
    return code == -9


def _assert_goes_on(ranks: RankPool, directory: Path, whole: Path) -> None:
    report = ranks.run(1, train_images, directory, OPTIONS, {"n": N}, True)[0]
    assert "no whole checkpoint" not in report.output, report.output
    assert_bit_for_bit(directory, whole)
    # A run killed after its last checkpoint leaves one more than it keeps.
    best = f"step-{records(directory)[-1]['best_step']:08d}"
    assert {best, "step-00000005", "step-00000006"} <= {*checkpoints(directory)}
    assert len({*checkpoints(directory)} - {best}) <= 3


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How often a run touches files after its first complete checkpoint."""
    directory = tmp_path_factory.mktemp("counted") / "run"
    assert not _killed_at(directory, -1)
    return int((directory / "events.txt").read_text())


@pytest.mark.parametrize(
    "part", [pytest.param(n, marks=[] if n in (3, 7) else pytest.mark.slow) for n in range(10)]
)
def test_killed_before_a_change_of_a_file(
    ranks: RankPool, tmp_path: Path, whole: Path, events: int, part: int
) -> None:
    """Ten of the moments between two changes of files, one in each tenth of the run."""
    event = 1 + events * part // 10 + random.Random(part).randrange(events // 10)
    assert _killed_at(tmp_path / "run", event)
    _assert_goes_on(ranks, tmp_path / "run", whole)


LONG = replace(OPTIONS, steps=30, async_checkpoints=True)


@pytest.fixture(scope="module")
def long_whole(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `whole`, over more steps."""
    directory = tmp_path_factory.mktemp("long")
    ranks.run(1, train_images, directory, LONG, {"n": N})
    return directory


def _kill_one_of_two(ranks: RankPool, directory: Path, whole: Path, seed: int) -> None:
    """kill -9 of one rank at a random moment while checkpoints are written, then of the other."""
    draw = random.Random(seed)
    directory.mkdir()
    processes = crash.start(2, crash.train_rank, directory, LONG, {"n": N})
    deadline = time.monotonic() + 150
    while not any((directory / "checkpoints").glob("*/COMPLETE")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(draw.uniform(0, 0.8))
    crash.kill([processes[draw.randrange(2)]])
    codes = crash.wait(processes, timeout=90)
    assert None not in codes, "a rank outlived the other"
    after = draw.choice([1, 2, 3])
    report = ranks.run(after, train_images, directory, LONG, {"n": N}, True)[0]
    assert "no whole checkpoint" not in report.output, report.output
    assert_same_run(directory, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_one_of_two_ranks_killed_at_a_random_moment(
    ranks: RankPool, tmp_path: Path, long_whole: Path, seed: int
) -> None:
    _kill_one_of_two(ranks, tmp_path / "run", long_whole, seed)


# --- no space


def test_a_checkpoint_without_space_does_not_end_the_training(
    ranks: RankPool, tmp_path: Path
) -> None:
    """In steps 2 and 3 no file may grow beyond 4 kB; the images of steps 2 and 4 change that."""
    n = 24 * 6
    options = replace(OPTIONS, valid_every=6)
    events = {sample_at(options, n, 2): "no space", sample_at(options, n, 4): "space"}
    shape = {"n": n, "events": events}
    report = ranks.run(2, train_images, tmp_path / "run", options, shape)[0]
    assert report.error == ""
    for step in (2, 3):
        assert f"checkpoint at step {step} could not be written" in report.output
    assert "training goes on" in report.output
    assert checkpoints(tmp_path / "run") == ["step-00000005", "step-00000006"]
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [line["checkpoint"] for line in lines if "checkpoint" in line] == [1, 4, 5, 6]
    ranks.run(2, train_images, tmp_path / "whole", options, {"n": n})
    assert_bit_for_bit(tmp_path / "run", tmp_path / "whole")


def test_a_trace_without_space_does_not_end_the_training(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(OPTIONS, trace_samples="/dev/full")
    report = ranks.run(2, train_images, tmp_path / "run", options, {"n": N})[0]
    assert report.error == ""
    assert report.output.count("/dev/full cannot be written (disk full?)") == 1
    assert len(losses(tmp_path / "run")) == 6


def test_a_folder_that_cannot_be_made_does_not_end_the_training(
    ranks: RankPool, tmp_path: Path
) -> None:
    """A file stands where rank 0 would make the folder of checkpoints."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").write_text("in the way")
    options = replace(OPTIONS, checkpoint_every=3)
    report = ranks.run(2, train_images, run, options, {"n": N})[0]
    assert report.error == ""
    assert "checkpoint at step 3 could not be written" in report.output
    assert len(losses(run)) == 6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB, where mounting is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes the rights of root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_costs_checkpoints_but_not_the_training(
    ranks: RankPool, small_disk: Path
) -> None:
    """One checkpoint of this model fits, a second one beside it does not; the metrics do."""
    shape = {"n": N, "width": 48, "held_out": 0}
    options = replace(OPTIONS, steps=5, momentum=0.0)
    report = ranks.run(2, train_images, small_disk / "run", options, shape)[0]
    assert "has no model-final.pt" in report.error
    assert "could not be written" in report.output
    # What could not be written whole does not lie around in the way of what might fit.
    assert all((path / "COMPLETE").exists() for path in (small_disk / "run/checkpoints").iterdir())
    assert len(losses(small_disk / "run")) == 5
    assert records(small_disk / "run")[-1]["final"]
