"""Cancelling ends a run and all that would follow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.launch import attempts, cancel
from rankup.site import rundir
from rankup.slurm.client import Client, SlurmError
from rankup.slurm.parse import Queued

from ..conftest import RunRankup
from .handmade import asked, make_run, record

NO_SLURM = Client(environment={"PATH": os.devnull})
NOTHING = ["nothing of this run is going on"]


def test_nothing_is_going_on(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    assert cancel.cancel(path, NO_SLURM) == NOTHING
    asked(path, "12")
    record(path, start=1)
    record(path, end=2, code=0)
    assert cancel.cancel(path, NO_SLURM) == NOTHING


def test_a_job_that_may_run_cannot_be_cancelled_without_slurm(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    with pytest.raises(SlurmError):
        cancel.cancel(path, NO_SLURM)


def test_a_run_that_waits_for_its_next_attempt_is_not_over_without_slurm(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0, stopped=True)
    with pytest.raises(SlurmError, match="starts of this run from now on ends at once"):
        cancel.cancel(path, attempts.NO_SLURM)
    (last,) = [
        attempt
        for attempt in attempts.of_run(path, rundir.read(path), attempts.NO_SLURM)
        if attempt.live
    ]
    assert (last.state, "its next attempt ends as it starts" in last.words) == ("PENDING", True)


def test_the_verb_says_what_came_of_it(rankup_here: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    done = rankup_here(["cancel", path.name], env={"PATH": os.devnull})
    assert (done.returncode, done.stdout) == (0, f"{NOTHING[0]}\n")
    assert rankup_here(["cancel", "other"]).returncode == 2


HOLDS = """
import fcntl, os, sys, time
with open(sys.argv[1], "a+") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {os.uname().nodename}")
    lock.flush()
    print("held", flush=True)
    time.sleep(300)
"""


@contextmanager
def process(program: Path, path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`program` with `words`, once it holds the run's lock, in which it stands as its holder."""
    program.parent.mkdir(exist_ok=True)
    program.write_text(HOLDS.replace("sys.argv[1]", repr(str(path / "log" / "lock"))))
    command = [sys.executable, str(program), *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "held\n"
        yield running
    finally:
        running.kill()
        running.communicate(timeout=10)


def test_a_local_run_is_asked_to_stop(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with process(tmp_path / "bin" / "rankup", path, "run") as running:
        assert attempts.holder(path) == running.pid
        assert cancel.cancel(path, NO_SLURM) == [f"process {running.pid}: stopped"]
        assert running.wait(timeout=10) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("name", "words"), [("rankup", ["logs", "-f"]), ("train", ["run"]), ("train", ["x", "rankup"])]
)
def test_a_process_that_is_not_rankup_run_is_left_alone(
    tmp_path: Path, name: str, words: list[str]
) -> None:
    path = make_run(tmp_path)
    with process(tmp_path / "bin" / name, path, *words) as running:
        assert attempts.held(path)
        assert cancel.cancel(path, NO_SLURM) == NOTHING
        assert running.poll() is None


def test_who_stands_in_the_lock_without_holding_it_is_left_alone(tmp_path: Path) -> None:
    path, other = make_run(tmp_path), make_run(tmp_path, "20261120-120000-efgh")
    with process(tmp_path / "bin" / "rankup", other, "run", "--follow") as running:
        (path / "log" / "lock").write_text(f"process {running.pid} on {os.uname().nodename}")
        assert not attempts.held(path)
        assert cancel.cancel(path, NO_SLURM) == NOTHING
        assert running.poll() is None


def test_a_job_script_whose_rankup_was_killed_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    rundir.write(path, replace(rundir.read(path), attempts=[{"allocation": "77", "nodes": 1}]))
    with process(tmp_path / "bin" / "job.sh", path):
        (path / "log" / "lock").write_text(f"process 4194305 on {os.uname().nodename}")
        (line,) = cancel.cancel(path, NO_SLURM)
        assert "process 4194305, which started it, has ended" in line
        assert "scancel --signal=TERM 77" in line


def test_an_attempt_that_starts_later_finds_that_the_run_was_cancelled(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    with pytest.raises(SlurmError):
        cancel.cancel(path, NO_SLURM)
    assert (path / "log" / "cancelled").read_bytes() == b""


def test_a_run_on_another_host_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    job = rundir.read(path)
    rundir.write(path, replace(job, attempts=[{"started": "x", "node": "login7"}]))
    (path / "log" / "lock").write_text("process 77 on login7")
    (line,) = cancel.cancel(path, NO_SLURM)
    assert "ssh login7 kill 77" in line


class Queue(Client):
    """A Slurm with these jobs: ID, state and folder of each; what is cancelled is gone."""

    def __init__(self, *rows: tuple[str, str, Path]) -> None:
        super().__init__(environment={"PATH": os.devnull})
        uid = os.getuid()
        jobs = [Queued(job, state, "", ("n1",), None, uid, str(at)) for job, state, at in rows]
        object.__setattr__(self, "jobs", jobs)
        object.__setattr__(self, "cancelled", [])

    jobs: list[Queued]
    cancelled: list[str]

    def mine(self) -> list[Queued]:
        return list(self.jobs)

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled.extend(ids)
        self.jobs[:] = [one for one in self.jobs if one.job_id not in ids]


def test_what_slurm_has_of_the_run_is_cancelled_and_nothing_else(tmp_path: Path) -> None:
    """Also a job whose id was never written down."""
    path, other = make_run(tmp_path), make_run(tmp_path, "20261120-120000-efgh")
    asked(path, "12")
    asked(path, "14")  # of another cluster, which shares this file system
    slurm = Queue(("12", "RUNNING", path), ("13", "PENDING", path), ("14", "RUNNING", other))
    said = cancel.cancel(path, slurm)
    assert said == ["job 12: cancelled", "job 13: cancelled"]
    assert set(slurm.cancelled) == {"12", "13"}


def test_a_job_that_merely_has_the_number_is_left_alone(tmp_path: Path) -> None:
    mine, other = make_run(tmp_path), make_run(tmp_path, "20261120-120000-efgh")
    asked(mine, "12")
    slurm = Queue(("12", "RUNNING", other))
    assert cancel.cancel(mine, slurm) == NOTHING
    assert slurm.cancelled == []
    [left] = attempts.live(other, rundir.read(other), slurm)
    assert left.job_id == "12"
