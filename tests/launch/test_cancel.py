"""Cancelling ends a run and all that would follow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import cancel, lives
from rankup.slurm.client import Client, SlurmError

from ..conftest import RunRankup
from ..slurm.cluster import Cluster
from .handmade import asked, client, make_run, record, submit

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


def test_the_verb_says_what_came_of_it(run_rankup: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    done = run_rankup(["cancel", path.name], env={"PATH": os.devnull})
    assert (done.returncode, done.stdout) == (0, f"{NOTHING[0]}\n")
    assert run_rankup(["cancel", "other"]).returncode == 2


def test_one_task_is_left_to_scancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="scancel 12_3"):
        cancel.show("12_3")


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process that looks like `rankup run` of `tmp_path/train/…` and holds its lock."""
    path = make_run(tmp_path)
    code = "import time, sys; sys.argv.append('rankup'); time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", code, "-m", "rankup", "run"])
    (path / "log" / "lock").write_text(f"process {process.pid} on {os.uname().nodename}")
    yield process  # type: ignore[misc]
    process.kill()
    process.wait(timeout=10)


def test_a_local_run_is_asked_to_stop(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    path = next(tmp_path.glob("train/*"))
    assert lives.holder(path) == holder.pid
    assert cancel.cancel(path, NO_SLURM) == [f"process {holder.pid}: stopped"]
    assert holder.wait(timeout=10) == -signal.SIGTERM


def test_a_process_that_is_not_rankup_is_left_alone(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    process = subprocess.Popen(["sleep", "300"])
    try:
        (path / "log" / "lock").write_text(f"process {process.pid} on {os.uname().nodename}")
        assert cancel.cancel(path, NO_SLURM) == NOTHING
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(timeout=10)


def test_a_run_on_another_host_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    job = lives.read_job(path)
    from rankup.site import rundir

    rundir.write(path, replace(job, lives=[{"started": "x", "node": "login7"}]))
    (path / "log" / "lock").write_text("process 77 on login7")
    (line,) = cancel.cancel(path, NO_SLURM)
    assert "ssh login7 kill 77" in line


def test_a_running_job_and_the_one_that_follows_it(slurm: Cluster, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    first = submit(slurm, path, "sleep 300")
    slurm.wait(int(first), ("RUNNING",))
    second = submit(slurm, path, "echo started", f"--dependency=afterany:{first}")
    record(path, job=second, follows=first)
    (path / "requeue").touch()
    said = cancel.cancel(path, client(slurm))
    assert said == [f"job {first}: cancelled", f"job {second}: cancelled"]
    assert not (path / "requeue").exists()
    for job_id in (first, second):
        assert slurm.job(int(job_id))["JobState"] == "CANCELLED"
    assert not (path / "log" / f"{second}.out").exists()
    assert cancel.cancel(path, client(slurm)) == NOTHING


def test_a_job_that_is_just_stopping_to_be_requeued_does_not_come_back(
    slurm: Cluster, tmp_path: Path
) -> None:
    path = make_run(tmp_path / "runs")
    body = (
        'trap \'touch "$run/requeue"; sleep 1; [ -e "$run/requeue" ] '
        "&& scontrol requeue $SLURM_JOB_ID; exit 0' TERM; echo ready; "
        "while true; do sleep 0.2; done"
    )
    job_id = int(submit(slurm, path, body))
    log = path / "log" / f"{job_id}.out"
    deadline = time.monotonic() + 20
    while not (log.exists() and "ready" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert cancel.cancel(path, client(slurm)) == [f"job {job_id}: cancelled"]
    time.sleep(2)
    assert slurm.command("squeue", "-h") == ""


def test_an_array_is_cancelled_as_a_whole(slurm: Cluster, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    job_id = submit(slurm, path, "sleep 300", "--array=0-4")
    slurm.wait(int(job_id), ("RUNNING", "PENDING"))
    said = cancel.cancel(path, client(slurm))
    assert len(said) == 5
    assert all(line.startswith(f"job {job_id}_") and "cancelled" in line for line in said)
    assert slurm.command("squeue", "-h") == ""
