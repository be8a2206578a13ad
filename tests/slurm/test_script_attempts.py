"""The attempts of a job, by its real script and fake Slurm commands: exit codes, the marker."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.site import rundir
from rankup.slurm.script import JobScript

from .jobscripts import Bash


def _attempts(job: JobScript) -> list[dict[str, Any]]:
    """All lines, each of which must be JSON; the times are left away once they are numbers."""
    lines = (Path(job.run_dir) / "attempts.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert found == rundir.records(Path(job.run_dir))
    for record in found:
        for name in ("start", "end"):
            if name in record:
                assert record[name] > 1_700_000_000
                record[name] = True
        if "start" in record:  # of what it will print, in a log that earlier attempts have begun
            assert record.pop("offset") >= 0
    return found


START: dict[str, Any] = {"start": True, "nodes": "n[1-3]", "id": "4242"}


def _of(restart: int = 0, **values: Any) -> dict[str, Any]:
    return {"job": "4242", "restart": restart, **values}


@pytest.mark.parametrize("code", [0, 137])
def test_the_exit_code_is_that_of_the_ranks(bash: Bash, job: JobScript, code: int) -> None:
    ran = bash.run(replace(job, monitor=False), FAKE_CODE=str(code))
    assert ran.code == code
    assert _attempts(job) == [_of(**START), _of(end=True, code=code)]
    assert ("the cause" in ran.output) == (code != 0)
    assert not (bash.notes / "sbatch").exists()


def test_ranks_ended_by_srun_after_a_failure_are_a_failure_and_no_signal(
    bash: Bash, job: JobScript
) -> None:
    assert bash.run(job, FAKE_CODE="143", FAKE_RANKS="fail").code == 1


def test_failures_of_an_earlier_attempt_are_forgotten(bash: Bash, job: JobScript) -> None:
    old = Path(job.run_dir) / "log" / "failure-rank0.json"
    old.parent.mkdir()
    old.write_text("{}")
    assert bash.run(job).code == 0
    assert not old.exists()


def test_with_the_marker_the_job_is_requeued_and_the_next_attempt_takes_it_away(
    bash: Bash, job: JobScript
) -> None:
    marker = Path(job.run_dir) / "requeue"
    ran = bash.run(job, FAKE_RANKS="stop", FAKE_CODE="1")  # whatever the ranks' own code is
    assert ran.code == 0
    assert marker.exists()
    assert "requeue 4242" in (bash.notes / "scontrol").read_text()
    assert not (bash.notes / "sbatch").exists()
    assert "going on in a next attempt" in ran.output
    (Path(job.run_dir) / "checkpoints").mkdir()
    ran = bash.run(job, SLURM_RESTART_COUNT="1")  # retries=0: not a node's failure
    assert ran.code == 0
    assert not marker.exists()
    assert ran.environment[0]["RANKUP_RESUME"] == "1"
    assert not _noted(bash), "one requeue for one marker"
    assert _attempts(job) == [
        _of(**START),
        _of(end=True, code=0, stopped=True),
        _of(1, **START),
        _of(1, end=True, code=0),
    ]


def _noted(bash: Bash) -> bool:
    return (bash.notes / "scontrol").exists()


def test_where_requeue_is_refused_another_job_follows(bash: Bash, job: JobScript) -> None:
    job = replace(job, retries=1)
    ran = bash.run(job, FAKE_RANKS="stop", FAKE_REQUEUE="1", SLURM_RESTART_COUNT="1")
    assert ran.code == 0
    assert (bash.notes / "restart-of-sbatch").read_text() == "none\n", "it does not inherit it"
    script = str(bash.notes.parent / "job.sh")
    assert bash.words("sbatch") == ["--parsable", "--dependency=afterany:4242", script]
    assert "this site does not requeue; job 4243 follows" in ran.output
    assert _attempts(job)[-1] == {"job": "4243", "follows": "4242"}
    assert rundir.slurm_jobs(Path(job.run_dir), _empty()) == ["4242", "4243"]


def test_where_neither_is_allowed_it_says_how_to_go_on(bash: Bash, job: JobScript) -> None:
    ran = bash.run(job, FAKE_RANKS="stop", FAKE_REQUEUE="1", FAKE_NO_SBATCH="1")
    assert ran.code == 1
    assert "this site allows neither requeue nor sbatch in a job; go on with:" in ran.output
    assert f"go on with: rankup run --resume {job.run_dir}" in ran.output
    assert _attempts(job)[-1] == _of(end=True, code=1)


def _back_after(bash: Bash, seconds: int) -> None:
    """The controller answers again after a pause of so many seconds."""
    bash.program(
        "sleep",
        'echo "$1" >>"$FAKES/slept"\n'
        f'if [ "$1" = {seconds} ]; then rm "$FAKES/controller-is-away"; fi',
    )


def test_while_the_controller_is_away_the_requeue_is_tried_again(
    bash: Bash, job: JobScript
) -> None:
    _back_after(bash, seconds=15)
    ran = bash.run(job, FAKE_RANKS="away", FAKE_NO_SBATCH="1")
    assert ran.code == 0, ran.output
    assert (bash.notes / "slept").read_text().split() == ["5", "15", "120"]
    assert _attempts(job)[-1] == _of(end=True, code=0, stopped=True)


def test_a_controller_that_stays_away_is_waited_for_within_the_time_limit(
    bash: Bash, job: JobScript
) -> None:
    _back_after(bash, seconds=999)
    end = int(time.time()) + 100  # the third pause would end behind it
    ran = bash.run(job, FAKE_RANKS="away", FAKE_NO_SBATCH="1", SLURM_JOB_END_TIME=str(end))
    assert ran.code == 1
    assert (bash.notes / "slept").read_text().split() == ["5", "15", "30", "60"]
    assert "Slurm's controller does not answer; go on with: rankup run --resume" in ran.output


def test_a_restart_without_the_marker_stops_with_the_reason(bash: Bash, job: JobScript) -> None:
    ran = bash.run(job, SLURM_RESTART_COUNT="1")
    assert (ran.code, ran.torchrun) == (1, ())
    assert "(a node failed, or the job was preempted), and --retries allows 0" in ran.output
    assert f"rankup run --resume {job.run_dir}" in ran.output
    assert _attempts(job)[-1] == _of(1, end=True, code=1)


def test_retries_bound_the_restarts_after_failures_alone(bash: Bash, job: JobScript) -> None:
    job = replace(job, retries=1)
    assert bash.run(job, SLURM_RESTART_COUNT="1", FAKE_RANKS="stop").torchrun
    assert bash.run(job, SLURM_RESTART_COUNT="2").torchrun, "our own requeue is no failure"
    ran = bash.run(job, SLURM_RESTART_COUNT="3")
    assert (ran.code, ran.torchrun) == (1, ())


# --- psslurm, which JSC runs in slurmd's place: no SLURM_RESTART_COUNT, and a pipe for stdout


def test_a_job_counts_its_starts_where_slurm_does_not(bash: Bash, job: JobScript) -> None:
    job = replace(job, retries=1)
    for restart in range(2):
        ran = bash.run(job, SLURM_RESTART_COUNT="")
        assert ran.torchrun
        assert ran.environment[0].get("SLURM_RESTART_COUNT") == (str(restart) if restart else "")
    ran = bash.run(job)  # a node has failed twice
    assert (ran.code, ran.torchrun) == (1, ())
    assert "--retries allows 1 of that" in ran.output
    starts = [record for record in _attempts(job) if "start" in record]
    assert starts == [_of(restart, **START) for restart in range(3)]
    assert bash.run(job, SLURM_JOB_ID="4243").torchrun, "another job begins anew"


def test_an_attempts_place_in_the_log_is_known_where_stdout_is_a_pipe(
    bash: Bash, job: JobScript
) -> None:
    log = Path(job.run_dir) / "log"
    log.mkdir()
    (log / "4242.out").write_text("what an earlier attempt has printed\n")
    bash.run(job)
    first = rundir.records(Path(job.run_dir))[0]
    assert first["offset"] == (log / "4242.out").stat().st_size


# --- one attempt at a time


def test_resume_is_what_was_asked_for_or_what_is_there(bash: Bash, job: JobScript) -> None:
    asked = replace(job, resume=True)
    assert bash.run(asked).environment[0]["RANKUP_RESUME"] == "1"


def test_a_run_that_another_process_holds_is_not_started(bash: Bash, job: JobScript) -> None:
    bash.program("flock", 'exec /usr/bin/env PATH=/usr/bin:/bin flock -n "${@: -1}"')
    lock = Path(job.run_dir) / "log" / "lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran = bash.run(job)
        assert (ran.code, ran.torchrun) == (1, ())
        assert f"another job or process works in {job.run_dir}" in ran.output
    assert bash.run(job).code == 0
    assert lock.read_text() == "job 4242"


@pytest.mark.parametrize(("code", "runs"), [(1, False), (66, True)])
def test_only_a_lock_that_is_held_keeps_an_attempt_out(
    bash: Bash, job: JobScript, code: int, runs: bool
) -> None:
    bash.program("flock", f"exit {code}")  # some file systems have no locks
    assert bool(bash.run(job).torchrun) is runs


def test_the_lock_is_held_while_the_ranks_run(bash: Bash, job: JobScript) -> None:
    bash.program("torchrun", 'flock -n "$RANKUP_RUN_DIR/log/lock" true && exit 7; exit 0')
    assert bash.run(job).code == 0


def test_a_sleeping_shell_does_not_keep_the_next_attempt_out(bash: Bash, job: JobScript) -> None:
    bash.program("sleep", 'flock -n "$RANKUP_RUN_DIR/log/lock" true && touch "$FAKES/free"')
    assert bash.run(job, FAKE_RANKS="stop").code == 0
    assert (bash.notes / "free").exists()


def test_in_an_allocation_it_writes_no_attempts_and_asks_for_no_next_one(
    bash: Bash, job: JobScript
) -> None:
    inside = {"RANKUP_INTERACTIVE": str(os.getpid()), "SLURM_RESTART_COUNT": "3"}
    ran = bash.run(job, FAKE_RANKS="stop", **inside)
    assert ran.code == 0
    assert not (Path(job.run_dir) / "attempts.jsonl").exists()
    assert not (bash.notes / "sbatch").exists()
    assert not _noted(bash)


# --- until when


def _end(ran_environment: dict[str, str] | Any) -> int:
    return int(ran_environment["RANKUP_END_TIME"])


BEFORE = 10  # seconds before the limit in which torchrun, srun and the requeue have room


def test_the_end_is_what_slurm_says(bash: Bash, job: JobScript) -> None:
    ran = bash.run(job, SLURM_JOB_END_TIME="1900000000")
    assert _end(ran.environment[0]) == 1900000000 - BEFORE
    assert not (bash.notes / "squeue").exists()
    ran = bash.run(job, FAKE_END="2030-01-02T03:04:05", TZ="UTC", SLURM_JOB_ID="4243")
    assert _end(ran.environment[0]) == 1893553445 - BEFORE


def test_a_deadline_brings_the_end_forward_and_never_puts_it_off(
    bash: Bash, job: JobScript
) -> None:
    job, before = replace(job, stop_after=100), int(time.time())
    late = bash.run(job, SLURM_JOB_END_TIME="1900000000")
    assert before + 100 <= _end(late.environment[0]) <= time.time() + 100
    early = bash.run(job, SLURM_JOB_END_TIME="1010", SLURM_JOB_ID="4243")
    assert _end(early.environment[0]) == 1000
    alone = bash.run(job, FAKE_END="NONE", SLURM_JOB_ID="4244")
    assert _end(alone.environment[0]) >= before + 100


@pytest.mark.parametrize("said", ["", "Unknown"])
def test_no_job_without_a_deadline(bash: Bash, job: JobScript, said: str) -> None:
    before = int(time.time())
    ran = bash.run(job, FAKE_END=said)
    assert ran.code == 0, ran.output
    wanted = 3600 - BEFORE  # what was asked for: an hour
    assert before + wanted <= _end(ran.environment[0]) <= time.time() + wanted


def test_where_squeue_fails_the_end_is_what_was_asked_for(bash: Bash, job: JobScript) -> None:
    bash.program("squeue", "echo cannot reach the controller >&2; exit 1")
    before = int(time.time())
    ran = bash.run(replace(job, minutes=10, stop_after=7200))
    assert ran.code == 0, ran.output
    assert before + 590 <= _end(ran.environment[0]) <= time.time() + 590


def test_in_an_allocation_without_an_end_there_is_no_deadline(bash: Bash, job: JobScript) -> None:
    settings = {"RANKUP_INTERACTIVE": "1", "RANKUP_END_TIME": "1000"}  # of an outer job
    ran = bash.run(replace(job, minutes=0), FAKE_END="NONE", **settings)
    assert ran.code == 0, ran.output
    assert "RANKUP_END_TIME" not in ran.environment[0]
    ran = bash.run(replace(job, minutes=0), SLURM_JOB_END_TIME="1900000000", **settings)
    assert _end(ran.environment[0]) == 1900000000 - BEFORE


def _empty() -> rundir.Job:
    return rundir.Job("id", "script", "/a.py", [], "/", {}, {})
