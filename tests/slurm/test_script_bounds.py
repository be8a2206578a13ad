"""No run goes on for ever: attempts and restarts are counted, and a torn count stops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.site import rundir
from rankup.slurm.script import JobScript

from .jobscripts import Bash

_TORN = ["", "1\n2", "99999999999999999999"]
# So near that no attempt is short.
SOON = {"SLURM_JOB_END_TIME": "1000"}


def _requeued(bash: Bash) -> bool:
    return (bash.notes / "scontrol").exists()


def _end(job: JobScript) -> tuple[int, int]:
    """Restart and exit code of the last attempt, as it wrote them down."""
    last = rundir.records(Path(job.run_dir))[-1]
    return last["restart"], last["code"]


@pytest.mark.parametrize("text", _TORN)
def test_a_torn_count_of_retries_stops_the_job(bash: Bash, job: JobScript, text: str) -> None:
    job, file = replace(job, retries=1000), Path(job.run_dir) / "log" / "retries"
    file.parent.mkdir()
    file.write_text(text)
    ran = bash.run(job, SLURM_RESTART_COUNT="2")
    assert (ran.code, ran.torchrun) == (1, ())
    assert "--retries allows 1000 of that" in ran.output


@pytest.mark.parametrize("name", ["retries", "requeues"])
def test_a_count_that_cannot_be_kept_stops_the_job(bash: Bash, job: JobScript, name: str) -> None:
    (Path(job.run_dir) / "log" / name).mkdir(parents=True)
    if name == "requeues":
        (Path(job.run_dir) / "requeue").touch()
    ran = bash.run(replace(job, retries=9), SLURM_RESTART_COUNT="1")
    assert (ran.code, ran.torchrun) == (1, ())
    assert f"cannot write to {job.run_dir}/log" in ran.output


def test_the_attempts_of_a_run_are_bounded(bash: Bash, job: JobScript) -> None:
    job, count = replace(job, max_attempts=2), Path(job.run_dir) / "log" / "requeues"
    for restart in range(2):
        ran = bash.run(job, FAKE_RANKS="stop", SLURM_RESTART_COUNT=str(restart), **SOON)
        assert ran.torchrun
        assert (Path(job.run_dir) / "requeue").exists()
    assert count.read_text() == "1\n"
    # A job that follows counts as an attempt as well.
    ran = bash.run(job, SLURM_JOB_ID="4243", **SOON)
    assert (ran.code, ran.torchrun) == (1, ())
    assert (
        f"stopped after 2 attempts (--max-attempts); go on with: rankup run --resume {job.run_dir}"
        in (ran.output)
    )
    assert _end(job) == (0, 1)


def test_three_short_attempts_in_a_row_stop_the_run(bash: Bash, job: JobScript) -> None:
    ran = bash.run(job, FAKE_RANKS="stop")  # its time ends in years
    assert (ran.code, _requeued(bash)) == (0, True)
    (Path(job.run_dir) / "log" / "short").write_text("2\n")
    ran = bash.run(job, FAKE_RANKS="stop")
    assert (ran.code, _requeued(bash)) == (1, False)
    assert "three attempts in a row stopped in the first tenth of their time" in ran.output
    assert f"rankup run --resume {job.run_dir}" in ran.output
    assert _end(job) == (1, 1)


def test_an_attempt_of_usual_length_is_the_end_of_the_row(bash: Bash, job: JobScript) -> None:
    (Path(job.run_dir) / "log").mkdir()
    (Path(job.run_dir) / "log" / "short").write_text("2\n")
    assert bash.run(job, FAKE_RANKS="stop", **SOON).code == 0
    assert bash.run(job, FAKE_RANKS="stop").code == 0


def test_a_cancelled_run_starts_no_other_attempt(bash: Bash, job: JobScript) -> None:
    (Path(job.run_dir) / "log").mkdir()
    (Path(job.run_dir) / "log" / "cancelled").touch()
    (Path(job.run_dir) / "requeue").touch()
    ran = bash.run(replace(job, retries=9), SLURM_RESTART_COUNT="1")
    assert (ran.code, ran.torchrun) == (1, ())
    assert "cancelled by `rankup cancel`" in ran.output
    [records] = Path(job.run_dir).rglob("attempts.jsonl")
    _, end = map(json.loads, records.read_text().splitlines())
    assert (end["code"], end["cancelled"]) == (1, True), "told once, and not as a failure"
