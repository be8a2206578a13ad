"""How runs are: one question to Slurm for all, none needed, and no broken run hides another."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import attempts, failure, meant, show_status, status
from rankup.site import rundir
from rankup.site.config import Config
from rankup.slurm.client import Client

from ..conftest import RunRankup
from ..slurm.fake import FakeSlurm
from .handmade import asked, make_run, record

NO_SLURM = Client(environment={"PATH": os.devnull})


def _summary(path: Path, asked_of: Client = NO_SLURM) -> status.Summary:
    job = rundir.read(path)
    return status.summary(path, job, attempts.of_run(path, job, asked_of))


def _local(path: Path, **attempt: object) -> None:
    job = rundir.read(path)
    began = {"started": "2026-11-20T12:00:00+0000", "nproc": 2, "node": os.uname().nodename}
    rundir.write(path, replace(job, attempts=[*job.attempts, {**began, **attempt}]))


def _fake(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_a_run_that_was_never_started(tmp_path: Path) -> None:
    short = _summary(make_run(tmp_path))
    assert (short.state, short.live, short.step) == ("NEW", False, None)


def test_a_local_run_ends_as_its_record_says(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    _local(path, code=0, ended="2026-11-20T12:01:00+0000")
    short = _summary(path)
    assert (short.state, short.until, short.live) == ("COMPLETED", 1795176060.0, False)
    _local(path, code=3, ended="2026-11-20T12:02:00+0000")
    assert _summary(path).words == "It failed: exit code 3."
    _local(path, code=143, ended="2026-11-20T12:03:00+0000")
    short = _summary(path)
    assert (short.state, short.words) == ("CANCELLED", "It was stopped: killed by SIGTERM.")


def test_a_local_run_that_says_nothing_has_died(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    _local(path)
    (path / "log" / "lock").write_text(f"process 4194305 on {os.uname().nodename}")
    short = _summary(path)
    assert (short.state, short.live) == ("UNKNOWN", False)
    assert "without a word" in short.words


def test_a_process_that_merely_has_the_number_is_not_the_run(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    text = f"process {os.getppid()} on {os.uname().nodename}"
    (path / "log" / "lock").write_text(text)
    with (path / "log" / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert attempts.holder(path) is None
    assert not attempts.held(path)


def test_steps_are_counted_by_the_last_whole_line(tmp_path: Path) -> None:
    path = make_run(tmp_path, kind="recipe", target="language-model", args=["--steps", "9"])
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (1, 2)]
    (path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "lo']))
    short = _summary(path)
    assert (short.step, short.steps) == (2, 9)


def test_attempts_are_told_without_slurm(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    asked(path, "12")
    record(path, start=100, nodes="n[1-2]")
    record(path, end=200, code=0, stopped=True)
    record(path, restart=1, start=300, nodes="n3")
    record(path, restart=1, end=400, code=1)
    record(path, job="13", follows="12")
    record(path, job="13", start=500, nodes="n1")
    record(path, job="13", end=600, code=0)
    job = rundir.read(path)
    found = attempts.of_run(path, job, NO_SLURM)
    assert [(x.job, x.restart, x.state, x.follows) for x in found] == [
        ("12", 0, "COMPLETED", None),
        ("12", 1, "FAILED", None),
        ("13", 0, "COMPLETED", "12"),
    ]
    assert "stopped with a checkpoint" in found[0].words
    assert found[0].nodes == ("n1", "n2")
    assert {attempt.source for attempt in found} == {"own record"}
    assert _summary(path).state == "COMPLETED"


def test_one_squeue_and_one_sacct_for_all_runs(tmp_path: Path) -> None:
    """Of the newest 20 one waits for nothing that Slurm knows, one runs, three left no end."""
    slurm, uid = FakeSlurm(tmp_path), os.getuid()
    run = tmp_path / "runs" / "train" / "20261120-120023-abcd"
    slurm.answers("squeue", out=f"23|RUNNING|2026-11-20T10:00:00|n1|None|{uid}|{run}\n")
    slurm.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    over = {"20": "TIMEOUT", "21": "NODE_FAIL", "22": "OUT_OF_MEMORY"}
    began = "0:0|2026-11-20T10:00:00"
    rows = [f"{job}|{state}|{began}|2026-11-20T11:00:00|n1|None|" for job, state in over.items()]
    slurm.answers("sacct -j 24,22,21,20", out="\n".join(rows))
    for number in range(25):
        path = make_run(tmp_path / "runs", f"20261120-1200{number:02}-abcd")
        asked(path, str(number))
        record(path, job=str(number), start=1000, nodes="n1")
        if number < 20:
            record(path, job=str(number), end=2000, code=0)
    found, note = status.newest(tmp_path / "runs", Client(environment=slurm.environment))
    assert note == "the newest 20 of 25 runs; of another: rankup status RUN"
    assert len(found) == status.NEWEST
    assert found[0].id == "20261120-120024-abcd"
    states = [
        "UNKNOWN",
        "RUNNING",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "TIMEOUT",
    ]
    assert [short.state for short in found[:5]] == states
    assert {short.state for short in found[5:]} == {"COMPLETED"}
    assert len(slurm.calls("squeue")) == len(slurm.calls("sacct")) == 1
    # For the only run that nobody else accounts for; and no ping, since squeue has answered.
    assert [words[-1] for words in slurm.calls("scontrol")] == ["24"]


def test_accounting_is_asked_for_runs_without_an_end_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm(tmp_path)
    slurm.answers("squeue")
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0)
    ((short,), _) = status.newest(tmp_path / "runs", Client(environment=slurm.environment))
    assert (short.state, slurm.calls("sacct")) == ("COMPLETED", [])


@pytest.mark.parametrize("number", [13, None, "no number"])
def test_a_job_without_a_number_keeps_accounting_from_no_other_run(
    tmp_path: Path, number: object
) -> None:
    slurm = FakeSlurm(tmp_path)
    slurm.answers("squeue")
    row = "12|TIMEOUT|0:0|2026-11-20T10:00:00|2026-11-20T11:00:00|n1|None|\n"
    slurm.answers("sacct", err="sacct: fatal: Bad job/step specified\n", code=1)
    slurm.answers("sacct -j 12", out=row)
    slurm.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    for name in ("20261120-120000-aaaa", "20261120-120001-bbbb"):
        path = make_run(tmp_path / "runs", name)
        asked(path, "12")
        record(path, start=100, nodes="n1")
    record(path, job=number, start=100)
    (_, sound), _ = status.newest(tmp_path / "runs", Client(environment=slurm.environment))
    assert (sound.id, sound.state) == ("20261120-120000-aaaa", "TIMEOUT")


def test_without_a_controller_the_runs_own_records_speak(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0)
    (short,), note = status.newest(tmp_path / "runs", NO_SLURM)
    assert (short.state, short.source) == ("COMPLETED", "own record")
    assert "own records" in note


def test_a_run_between_two_attempts_waits_while_slurm_does_not_answer(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0, stopped=True)
    (short,), _ = status.newest(tmp_path / "runs", NO_SLURM)
    assert (short.state, short.live) == ("PENDING", True)
    assert "waits for its next attempt" in short.words
    record(path, end=300, code=1)  # the requeue was refused
    (short,), _ = status.newest(tmp_path / "runs", NO_SLURM)
    assert (short.state, short.live) == ("FAILED", False)
    record(path, start=400, restart=1, nodes="n1")
    (short,), _ = status.newest(tmp_path / "runs", NO_SLURM)
    assert "may still run" in short.words


def test_an_attempt_that_rankup_cancel_had_ended_is_cancelled_and_has_not_failed(
    tmp_path: Path,
) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=101, code=1, cancelled=True)
    (short,), _ = status.newest(tmp_path / "runs", NO_SLURM)
    assert (short.state, short.words) == (
        "CANCELLED",
        "`rankup cancel` had cancelled it before it began.",
    )


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-20 DUE TO TIME LIMIT ***",
            "TIMEOUT",
        ),
        ("error: *** job 12 CANCELLED DUE TO TIME LIMIT ***", "TIMEOUT"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch.", "OUT_OF_MEMORY"),
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-20 ***", "CANCELLED"),
        ("step 100", "UNKNOWN"),
    ],
)
def test_the_end_is_kept_where_slurm_has_forgotten_the_job(
    tmp_path: Path, line: str, state: str
) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    (path / "log" / "12.out").write_text(f"step 99\n{line}\n")
    slurm = FakeSlurm(tmp_path)
    slurm.answers("squeue")
    slurm.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    slurm.answers("scontrol ping", out="Slurmctld(primary) at c1 is UP\n")
    slurm.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    client = Client(timeout=20, environment=slurm.environment)
    (short,), _ = status.newest(tmp_path / "runs", client)
    assert short.state == state


def test_a_job_that_was_cancelled_while_it_waited_stays_so(tmp_path: Path) -> None:
    """Without accounting Slurm forgets it within minutes, and it has written nothing."""
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    slurm = FakeSlurm(tmp_path)
    slurm.answers("squeue")
    slurm.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    slurm.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    client = Client(environment=slurm.environment)
    assert status.newest(tmp_path / "runs", client)[0][0].state == "UNKNOWN"
    (path / "log" / "cancelled").touch()
    ((short,), _) = status.newest(tmp_path / "runs", client)
    assert (short.state, short.live) == ("CANCELLED", False)


def test_a_job_that_stopped_and_was_cancelled_before_its_next_start_says_so(tmp_path: Path) -> None:
    """In the list as on the page of the run."""
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0, stopped=True)
    (path / "requeue").touch()
    slurm = FakeSlurm(tmp_path)
    slurm.answers("squeue")
    slurm.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    client = Client(environment=slurm.environment)
    slurm.answers("sacct")
    ((short,), _) = status.newest(tmp_path / "runs", client)
    assert (short.state, short.words[:28]) == ("COMPLETED", "It stopped with a checkpoint")
    slurm.answers("sacct", out="12|CANCELLED by 0|0:0|None|2026-11-20T11:00:00|None|None|\n")
    ((short,), _) = status.newest(tmp_path / "runs", client)
    page = status.report(path, Config(), client).summary
    assert (short.state, page.state) == ("CANCELLED", "CANCELLED")


def test_of_a_job_that_slurm_put_back_it_is_said_that_no_retry_is_allowed(tmp_path: Path) -> None:
    """Its second attempt ends as it starts, perhaps after hours in the queue."""
    path = make_run(tmp_path / "runs", launch={"retries": 1})
    asked(path, "12")
    record(path, start=100, nodes="n1", offset=0)
    slurm = FakeSlurm(tmp_path)
    row = f"12|PENDING|N/A||BeginTime|{os.getuid()}|{path}\n"
    slurm.answers("squeue", out=row)
    client = Client(environment=slurm.environment)
    ((waits,), _) = status.newest(tmp_path / "runs", client)
    assert "--retries" not in waits.words
    (path / "log" / "retries").write_text("1\n")
    ((waits,), _) = status.newest(tmp_path / "runs", client)
    assert "--retries allows 1 of that. Sooner is: rankup cancel " in waits.words
    assert "Nothing to do" not in waits.words
    line = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT now DUE TO NODE FAILURE ***\n"
    (path / "log" / "12.out").write_text(f"{line}rankup: Slurm started this job again\n")
    record(path, start=300, restart=1, nodes="n1", offset=len(line))
    record(path, end=301, restart=1, code=1)
    slurm.answers("squeue")
    ((failed,), _) = status.newest(tmp_path / "runs", client)
    assert failed.words == "rankup: Slurm started this job again"
    found = attempts.of_run(path, rundir.read(path), NO_SLURM)
    assert [attempt.state for attempt in found] == ["NODE_FAIL", "FAILED"]


DAMAGE: Mapping[str, str] = {
    "job.json": "{",
    "attempts.jsonl": '{"job": "12", "start": 1, "nodes": "n1"}\n[3]\n{"job"',
    "metrics.jsonl": '\x00\n[1]\n{"step": "many"}\n',
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_hides_no_other(tmp_path: Path, name: str) -> None:
    good = make_run(tmp_path / "runs", "20261120-120000-good")
    bad = make_run(tmp_path / "runs", "20261120-120001-evil")
    asked(bad, "12")
    (bad / name).write_text(DAMAGE[name])
    found, _ = status.newest(tmp_path / "runs", NO_SLURM)
    assert [short.id for short in found] == [bad.name, good.name]
    assert (found[0].state == "DAMAGED") == (name == "job.json")


@pytest.mark.parametrize("note", ["failure-rank3.json", "failure-hang.json"])
def test_the_table_shows_what_a_rank_wrote_down(tmp_path: Path, note: str) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    (path / "log" / "12.out").touch()
    record(path, start=100, nodes="n1")
    record(path, end=200, code=1)
    own = failure.Failure(3, "n2", 150.0, "ValueError: no", "Traceback\nValueError: no\n", 1)
    failure.write(path / "log", own)
    (path / "log" / "failure-rank3.json").rename(path / "log" / note)
    (short,), _ = status.newest(tmp_path / "runs", NO_SLURM)
    assert (short.state, short.words) == ("FAILED", "rank 3 on n2 failed: ValueError: no")
    # A later job that was cancelled while it waited has another end, as `logs` says, too.
    asked(path, "13")
    slurm = FakeSlurm(tmp_path)
    slurm.answers("squeue")
    slurm.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    slurm.answers("sacct", out="13|CANCELLED by 0|0:0|None|2026-11-20T11:00:00|None|None|\n")
    client = Client(environment=slurm.environment)
    (short,), _ = status.newest(tmp_path / "runs", client)
    assert (short.state, short.words) == ("CANCELLED", "It was cancelled.")
    assert status.report(path, Config(), client).cause == ""


def test_the_table_names_the_rank_that_was_killed_and_not_one_that_lost_its_peer(
    tmp_path: Path,
) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    (path / "log" / "12.out").touch()
    record(path, start=100, nodes="n[1-2]")
    record(path, end=200, code=1)
    peer = "Connection closed by peer [127.0.0.1]:2001"
    failure.write(path / "log", failure.Failure(0, "n1", 150.0, peer, "", 1, consequence=True))
    killed = failure.Failure(2, "n2", 151.0, failure.said(-9), "", 137)  # as torchrun has seen it
    failure.write(path / "log", killed)
    (short,), _ = status.newest(tmp_path / "runs", NO_SLURM)
    assert short.words.startswith("rank 2 on n2 failed: its process was killed by SIGKILL")


def test_an_attempt_that_stopped_with_a_checkpoint_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0, stopped=True)
    attempt, waits = attempts.of_run(path, rundir.read(path), NO_SLURM)
    assert attempt.words == "It stopped with a checkpoint before the time limit."
    assert waits.state == "PENDING"
    show_status.print_page(status.report(path, Config(), NO_SLURM))
    assert capsys.readouterr().out.count("It stopped with a checkpoint before") == 1
    other = make_run(tmp_path / "runs", "20261120-120001-abcd")
    _local(other, code=0, ended="2026-11-20T12:02:00+0000", stopped=True)
    assert _summary(other).words == "It stopped with a checkpoint before the deadline."


def test_a_toml_that_is_wrong_elsewhere_does_not_hide_the_runs(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    path = make_run(tmp_path / "elsewhere")
    (tmp_path / "rankup.toml").write_text('runs = "elsewhere"\nrnus = 3\n[job]\ntime = 5\n')
    for verb in ("status", "logs", "cancel"):
        done = rankup_here([verb, path.name], env={"PATH": os.devnull})
        assert done.returncode == 0, done.stderr
        assert "warning: " in done.stderr
        assert "rnus" in done.stderr


def test_a_run_is_found_by_its_allocation_and_elsewhere_by_its_job(tmp_path: Path) -> None:
    path = make_run(tmp_path / "elsewhere")
    _local(path, allocation="77")
    assert meant.locate(tmp_path / "elsewhere", "77") == path
    shown = (
        f"JobId=88 JobName=x UserId=ada({os.getuid()}) GroupId=x(1) JobState=RUNNING "
        f"Command=/x WorkDir={path} StdErr=/x"
    )
    _fake(tmp_path / "bin", "scontrol", f"echo '{shown}'")
    asked_of = Client(environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert meant.locate(tmp_path / "runs", "88", asked_of) == path
    _fake(tmp_path / "bin", "scontrol", f"echo '{shown.replace(str(os.getuid()), '4711')}'")
    with pytest.raises(UserError, match="go to the folder it was started in"):
        meant.locate(tmp_path / "runs", "88", asked_of)


def test_a_chain_of_jobs_asks_slurm_a_few_times(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for name, body in (("squeue", ""), ("scontrol", "echo 'x is UP'"), ("sacct", "")):
        _fake(tmp_path / "bin", name, f'echo "$0 $*" >>{calls}; {body}')
    path = make_run(tmp_path / "runs")
    for number in range(20):
        record(path, job=str(number), start=number * 100, nodes="n1")
        record(path, job=str(number), end=number * 100 + 90, code=0, stopped=number < 19)
    asked_of = Client(environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    found = attempts.of_run(path, rundir.read(path), asked_of)
    assert [attempt.state for attempt in found] == ["COMPLETED"] * 20
    assert len(calls.read_text().splitlines()) <= 5


def test_a_job_cancelled_while_it_waits_keeps_the_attempt_before(tmp_path: Path) -> None:
    shown = (
        "JobId=12 JobName=x UserId=ada({uid}) GroupId=x(1) JobState=CANCELLED Reason=None "
        "Restarts=1 ExitCode=0:0 StartTime=2026-11-20T10:00:00 EndTime=2026-11-20T10:00:00 "
        "NodeList= Command=/x WorkDir={path} StdErr=/x"
    )
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0, stopped=True)
    _fake(tmp_path / "bin", "squeue", "exit 0")
    text = shown.format(uid=os.getuid(), path=path)
    body = f"case $1 in ping) echo 'x is UP';; *) echo '{text}';; esac"
    _fake(tmp_path / "bin", "scontrol", body)
    asked_of = Client(environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    found = attempts.of_run(path, rundir.read(path), asked_of)
    assert [(attempt.restart, attempt.state) for attempt in found] == [
        (0, "COMPLETED"),
        (1, "CANCELLED"),
    ]


def test_the_table_in_a_terminal_of_its_own(rankup_here: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs", target="/x/\x1b[2J[red]evil\x1b[31m.py")
    _local(path, code=3, ended="2026-11-20T12:02:00+0000")
    nowhere = {"PATH": os.devnull}
    done = rankup_here(["status"], env=nowhere)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[1]
    assert line.startswith(path.name)
    assert "\\x1b[2J[red]evil\\x1b[31m" in line
    assert "exit code 3" in line
    (row,) = json.loads(rankup_here(["status", "--json"], env=nowhere).stdout)
    assert (row["state"], row["id"]) == ("FAILED", path.name)
    page = rankup_here(["status", "last"], env=nowhere).stdout
    assert "next: rankup run … '/x/\\x1b[2J[red]evil\\x1b[31m.py' --lr 0.1 (once more" in page
    assert "\x1b" not in page
    full = json.loads(rankup_here(["status", "last", "--json"], env=nowhere).stdout)
    assert full["attempts"][0]["exit_code"] == 3
    unknown = rankup_here(["status", "nothing"], env=nowhere)
    assert unknown.returncode == 2
    assert "no run 'nothing'" in unknown.stderr


def test_jobs_that_slurm_has_are_told_as_it_says(tmp_path: Path) -> None:
    """One waits, one runs on two nodes."""
    fake, uid = FakeSlurm(tmp_path / "slurm"), os.getuid()
    fake.answers("scontrol show job", err="Invalid job id specified", code=1)
    fake.answers("sacct", err="Slurm accounting storage is disabled", code=1)
    paths = [make_run(tmp_path / "runs", f"20261120-12000{n}-abcd") for n in range(2)]
    for path, job in zip(paths, ("12", "13"), strict=True):
        asked(path, job)
    record(paths[1], job="13", start=100, nodes="n[1-2]")
    rows = [f"12|PENDING|N/A||JobHeldUser|{uid}|{paths[0]}"]
    rows += [f"13|RUNNING|2026-11-20T10:00:00|n[1-2]|None|{uid}|{paths[1]}"]
    fake.answers("squeue", out="\n".join([*rows, ""]))
    slurm = Client(environment=fake.environment)
    found, note = status.newest(tmp_path / "runs", slurm)
    assert note == ""
    assert [short.state for short in found] == ["RUNNING", "PENDING"]
    assert (found[1].where, found[1].live) == ("12", True)
    assert "scontrol release" in found[1].words
    running = status.report(paths[1], Config(), slurm)
    (attempt,) = running.attempts
    assert (attempt.state, attempt.nodes, attempt.source) == ("RUNNING", ("n1", "n2"), "squeue")
    assert f"rankup cancel {paths[1].name}" in running.next_steps


def test_what_to_do_next_after_a_failure(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=4)
    full = status.report(path, Config(), NO_SLURM)
    assert full.attempts[0].exit_code == 4
    assert full.next_steps[-1].startswith("rankup run … /home/user/train.py --lr 0.1")
    job = rundir.read(path)
    typed = {**job.attempts[0], "command": ["rankup", "run", "--nodes", "2", "train.py"]}
    rundir.write(path, replace(job, attempts=[typed]))
    again = status.report(path, Config(), NO_SLURM).next_steps
    assert again[-1].startswith("rankup run --nodes 2 train.py (once more")
    (path / "checkpoints" / "5").mkdir(parents=True)
    again = status.report(path, Config(), NO_SLURM).next_steps
    assert again[-1] == f"rankup run --resume {path.name}"


def test_a_run_that_stopped_with_a_checkpoint_of_its_own_is_resumed(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=100, nodes="n1")
    record(path, end=200, code=0, stopped=True)
    record(path, restart=1, start=300, nodes="n1")
    record(path, restart=1, end=310, code=1)
    full = status.report(path, Config(), NO_SLURM)
    assert full.next_steps[-1] == f"rankup run --resume {path.name}"


@pytest.mark.parametrize("name", [rundir.JOB, "attempts.jsonl", "metrics.jsonl"])
def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path, name: str) -> None:
    path = make_run(tmp_path)
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    found, _ = status.newest(tmp_path, NO_SLURM)
    assert [short.id for short in found] == [path.name]


def test_a_loss_that_is_no_number_is_null_in_json(rankup_here: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    (path / "metrics.jsonl").write_text('{"step": 3, "loss": NaN, "lr": Infinity, "time": 1.7e9}\n')
    done = rankup_here(["status", path, "--json"], cwd=tmp_path, env={"PATH": os.devnull})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads(done.stdout, parse_constant=refuse)["metrics"]
    assert (found["step"], found["loss"], found["lr"]) == (3, None, None)
