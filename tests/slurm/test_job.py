"""What became of a job, from whoever still knows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankup.slurm.client import Client
from rankup.slurm.job import state_of
from rankup.slurm.parse import moment

from .fake import FakeSlurm, recorded

START = {"job": "123", "restart": 0, "start": 1700000000, "nodes": "n[1-2]"}
END = {"job": "123", "restart": 0, "end": 1700000100, "code": 1}


def shown(job: str, state: str, start: str = "Unknown", nodes: str = "(null)", **more: str) -> str:
    """A job as `scontrol show job -o` has it."""
    fields = {"JobState": state, "StartTime": start, "NodeList": nodes, **more}
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"JobId={job} JobName=x UserId=ada(1) GroupId=x(1) {text} Command=/x WorkDir=/x\n"


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    """A Slurm that answers, knows no job and keeps no accounts."""
    slurm = FakeSlurm(tmp_path)
    slurm.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    slurm.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    return slurm


@pytest.fixture
def client(fake: FakeSlurm) -> Client:
    return Client(timeout=20, environment=fake.environment)


@pytest.mark.parametrize(
    ("file", "state", "code", "nodes", "words"),
    [
        ("exit-3", "FAILED", 3, ("n1",), "exit code 3"),
        ("no-workdir", "FAILED", None, ("n1",), "died before its first line"),
        ("killed", "FAILED", 137, ("n1",), "killed by SIGKILL"),
        ("completed", "COMPLETED", 0, ("n1",), "ended as it should"),
        ("timeout", "TIMEOUT", 143, ("n1",), "time limit"),
        ("node-fail", "NODE_FAIL", 143, ("n3",), "A node died on n3"),
        ("cancelled", "CANCELLED", 143, ("n2",), "cancelled while it ran on n2"),
    ],
)
def test_an_ended_job_is_told_by_scontrol(
    fake: FakeSlurm,
    client: Client,
    file: str,
    state: str,
    code: int | None,
    nodes: tuple[str, ...],
    words: str,
) -> None:
    fake.answers("scontrol show job", out=recorded(f"22.05.8/{file}.txt"))
    found = state_of(client, "31")
    assert (found.state, found.exit_code, found.source, found.live) == (
        state,
        code,
        "scontrol",
        False,
    )
    assert found.nodes == nodes
    assert words in found.words
    assert found.started is not None
    assert found.ended is not None
    assert found.ended >= found.started
    assert found.expected is None


def test_a_pending_job_says_why_and_when_it_may_start(fake: FakeSlurm, client: Client) -> None:
    line = shown("9", "PENDING", "2026-11-21T20:52:53", Reason="Resources")
    fake.answers("scontrol show job", out=line)
    found = state_of(client, "9")
    assert (found.state, found.source, found.live) == ("PENDING", "scontrol", True)
    assert "next in line" in found.words
    assert found.expected == moment("2026-11-21T20:52:53")
    assert (found.started, found.exit_code, found.nodes) == (None, None, ())


def test_a_running_job_has_its_nodes_and_its_count_of_restarts(
    fake: FakeSlurm, client: Client
) -> None:
    fake.answers("scontrol show job", out=recorded("24.05/running.txt"))
    found = state_of(client, "9001")
    assert (found.source, found.restart, found.exit_code) == ("scontrol", 2, None)
    assert found.words == "It runs on jwb[0007-0008]."
    assert found.started == moment("2026-11-20T20:36:56")
    assert found.ended is None


def test_accounting_tells_the_last_attempt(fake: FakeSlurm, client: Client) -> None:
    fake.answers("sacct", out=recorded("24.05/sacct.txt"))
    found = state_of(client, "9001", [{**START, "job": "9001"}])
    assert (found.state, found.restart, found.source) == ("OUT_OF_MEMORY", 2, "sacct")
    assert found.nodes == ("jwb0007", "jwb0008")
    assert found.exit_code is None
    assert "main memory" in found.words


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("ours", [True, False])
def test_accounts_of_another_folder_are_of_an_older_job_of_the_number(
    fake: FakeSlurm, client: Client, tmp_path: Path, ours: bool, at_once: bool
) -> None:
    folder = tmp_path if ours else "/an/older/run"
    ends = "2026-11-20T10:00:00|2026-11-20T11:00:00"
    fake.answers("scontrol show job", err="Invalid job id specified\n", code=1)
    fake.answers("sacct", out=f"123|TIMEOUT|0:0|{ends}|n1|None|{folder}\n")
    rows = client.account_records(["123"]) if at_once else None
    found = state_of(client, "123", [START], tmp_path, rows)
    expected = ("TIMEOUT", "sacct") if ours else ("UNKNOWN", "own record")
    assert (found.state, found.source) == expected


def test_accounts_that_lag_behind_do_not_make_a_job_live(fake: FakeSlurm, client: Client) -> None:
    fake.answers("sacct", out="123|RUNNING|0:0|2026-11-20T10:00:00|Unknown|n1|None|\n")
    found = state_of(client, "123", [START, END])
    assert (found.state, found.live, found.source) == ("FAILED", False, "own record")


def test_what_slurm_knows_comes_before_our_own_records(fake: FakeSlurm, client: Client) -> None:
    fake.answers("scontrol show job", out=shown("123", "PENDING", Reason="BeginTime"))
    found = state_of(client, "123", [START, END])
    assert (found.state, found.source) == ("PENDING", "scontrol")


def test_a_forgotten_job_ended_as_it_wrote(fake: FakeSlurm, client: Client) -> None:
    found = state_of(client, "123", [START, END])
    assert (found.state, found.exit_code, found.source) == ("FAILED", 1, "own record")
    assert (found.started, found.ended, found.nodes) == (1700000000, 1700000100, ("n1", "n2"))
    assert not found.live


def test_the_last_attempt_that_was_written_counts(fake: FakeSlurm, client: Client) -> None:
    second = [{**START, "restart": 1}, {**END, "restart": 1, "code": 0}]
    found = state_of(client, "123", [START, END, *second, {"job": "124", "restart": 5}])
    assert (found.state, found.restart) == ("COMPLETED", 1)


def test_a_start_without_an_end_ended_without_a_word(fake: FakeSlurm, client: Client) -> None:
    found = state_of(client, "123", [START])
    assert (found.state, found.live, found.exit_code) == ("UNKNOWN", False, None)
    assert found.words == "It ended without a word on n[1-2] (killed, or its node died)."


def test_without_a_controller_a_job_that_has_not_ended_may_run(
    fake: FakeSlurm, client: Client
) -> None:
    fake.unreachable()
    found = state_of(client, "123", [START])
    assert (found.state, found.live, found.source) == ("UNKNOWN", True, "own record")
    assert "may still run" in found.words
    ended = state_of(client, "123", [START, END])
    assert (ended.state, ended.live) == ("FAILED", False)
    nothing = state_of(client, "123")
    assert (nothing.source, nothing.live) == ("none", True)
    assert "does not answer" in nothing.words


def test_without_slurms_commands_own_records_are_told(tmp_path: Path) -> None:
    client = Client(environment={"PATH": str(tmp_path)})
    found = state_of(client, "123", [START, END])
    assert (found.state, found.source) == ("FAILED", "own record")


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("wrong", ["uid", "folder"])
def test_another_job_of_the_same_number_is_not_this_one(
    fake: FakeSlurm, client: Client, tmp_path: Path, ours: bool, wrong: str
) -> None:
    uid = os.getuid() + (not ours and wrong == "uid")
    folder = "/elsewhere" if not ours and wrong == "folder" else str(tmp_path)
    line = f"JobId=123 JobName=x UserId=ada({uid}) GroupId=x(1) JobState=RUNNING NodeList=n1 "
    fake.answers("scontrol show job", out=f"{line}Command=/x WorkDir={folder} StdErr=/x\n")
    fake.answers("sacct", out="123|RUNNING|0:0|2026-11-20T10:00:00|Unknown|n1|None|\n")
    found = state_of(client, "123", [START, END], tmp_path)
    assert (found.state, found.source) == (
        ("RUNNING", "scontrol") if ours else ("FAILED", "own record")
    )


def test_a_job_that_nobody_knows_is_unknown(fake: FakeSlurm, client: Client) -> None:
    found = state_of(client, "123")
    assert (found.state, found.source, found.live) == ("UNKNOWN", "none", False)
    assert "does not know it any more" in found.words
