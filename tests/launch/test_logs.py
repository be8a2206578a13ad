"""The view of a log: what is harmless left out, terminals safe, and an end that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankup.base.text import clean
from rankup.launch import follow as following
from rankup.launch import logfile, logs
from rankup.launch.follow import Tail, follow
from rankup.slurm.client import Client
from rankup.slurm.parse import Queued

from ..conftest import RunRankup
from ..slurm.fake import FakeSlurm
from .handmade import RECORDED, asked, make_run, record

NOWHERE = {"PATH": os.devnull}


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("srun: error: cluster configuration lacks support for cpu binding", True),
        ("srun: warning: cluster configuration lacks support for cpu binding", True),
        ("slurmstepd: error: mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:193: can not load", True),
        (
            "[W1120 20:45 socket.cpp:767] [c10d] The client socket cannot be initialized to connect"
            " to [n1]:29 (errno: 97 - Address family not supported by protocol).",
            True,
        ),
        ("[W1120 20:45 TCPStore.cpp:125] [c10d] recvValueWithTimeout failed on SocketImpl(", True),
        ("Traceback (most recent call last):", False),
        ("[rank1]: KeyError: 1", False),
        ("srun: error: n2: task 1: Killed", False),
        ("slurmstepd: error: Detected 1 oom-kill event(s)", False),
    ],
)
def test_harmless_lines_are_known(line: str, known: bool) -> None:
    assert bool(logfile.harmless(line)) == known


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\ttext ü 漢", "plain\ttext ü 漢"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("10%\r50%\r100%", "100%"),
        ("100%\r", "100%"),
        ("a\u202eb", "a\\u202eb"),
    ],
)
def test_control_sequences_but_colours_are_written_out(line: str, shown: str) -> None:
    assert clean(line) == shown


def test_a_line_without_an_end_is_cut() -> None:
    assert len(clean("x" * 10_000_000)) < 5000


def test_a_log_of_one_endless_line_shows_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    (path / "log" / "12.out").write_text("x" * 3_000_000 + "the end")
    logs.show(str(path))
    assert "xthe end\n" in capsys.readouterr().out
    bar = "".join(f"{n}%|####|\r" for n in range(1_000_000))
    (path / "log" / "12.out").write_text(bar + "\ndone\n")
    assert logfile.read_lines(path / "log" / "12.out")[-1] == "done"


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: " + "exceeded " * 200_000,
        "slurmstepd" * 200_000,
        "[W " + "socket.cpp:1] " * 140_000,
        "1" * 2_000_000,
    ],
)
def test_a_hostile_line_costs_no_minutes(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=1)
    record(path, restart=1, start=1)
    record(path, restart=1, end=2, code=1)
    (path / "log" / "12.out").write_text(f"first\n{line}\n")
    logs.show(str(path))  # some 20 ms; minutes, and so the test's time-out, where it matters
    assert capsys.readouterr().out


def test_what_is_harmless_is_said_once_a_kind_and_takes_no_line_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    bind = "srun: warning: cluster configuration lacks support for cpu binding\n"
    text = "".join(f"{bind}step {n}\n" for n in range(50))
    (path / "log" / "12.out").write_text(text)
    logs.show(str(path), lines=3)
    assert capsys.readouterr().out.splitlines()[:4] == [
        "harmless: this Slurm does not bind ranks to cores (50 lines)",
        *("step 47", "step 48", "step 49"),
    ]


def test_a_folder_of_logs_that_is_gone_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    (path / "log").rmdir()
    assert logs.show(str(path)) == 0
    assert f"{path / 'log'} is not there" in capsys.readouterr().out


def test_a_job_that_waits_long_is_not_asked_for_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    clock = [0.0]
    asks: list[float] = []

    class Counting(Client):
        def mine(self) -> list[Queued]:
            asks.append(clock[0])
            if clock[0] > 600:
                raise KeyboardInterrupt
            uid = os.getuid()
            return [Queued("12", "PENDING", "Priority", (), None, uid, str(path))]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    assert follow(path, client=Counting(environment={"PATH": os.devnull})) == 130
    assert 8 <= sum(moment <= 12 for moment in asks) <= 13
    assert sum(moment > 12 for moment in asks) <= 41


def test_a_tail_gives_whole_lines_of_a_file_that_comes_later(tmp_path: Path) -> None:
    file = tmp_path / "12.out"
    tail = Tail(file)
    assert tail.read() == []
    file.write_text("one\ntw")
    assert tail.read() == ["one"]
    with file.open("a") as stream:
        stream.write("o\nthree")
    assert tail.read() == ["two"]
    assert tail.rest() == "three"
    file.write_text("new\n")
    assert tail.read()[1:] == ["new"]


def test_a_tail_shows_a_progress_bar_now_and_then(tmp_path: Path) -> None:
    file = tmp_path / "12.out"
    tail = Tail(file)
    file.write_text("1%\r2%\r")
    first = [clean(line) for line in tail.read()]
    with file.open("a") as stream:
        stream.write("3%\r")
    assert (first, tail.read()) == (["2%"], [])


def test_the_end_of_a_failed_runs_log_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=1, nodes="n[1-2]")
    record(path, end=2, code=1)
    log = (RECORDED / "raised.txt").read_text()
    (path / "log" / "12.out").write_text("".join(f"step {n}\n" for n in range(100)) + log)
    assert logs.show(str(path), lines=5) == 0
    last = "rank 3 failed: ValueError: the loss is not finite at step 7"
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert logs.show(str(path), raw=True, lines=10_000) == 0
    assert "Connection closed by peer" in capsys.readouterr().out
    assert logs.show(str(path), only_cause=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_cause_that_the_job_script_printed_is_not_said_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=1)
    record(path, end=2, code=1)
    (path / "log" / "12.out").write_text("rankup: activating the environment failed: /env\n")
    logs.show(str(path))
    assert capsys.readouterr().out.count("activating the environment failed") == 1


def test_the_cause_inside_a_job_needs_no_slurm(rankup_here: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=1)
    (path / "log" / "12.out").write_text((RECORDED / "raised.txt").read_text())
    inside = {**NOWHERE, "SLURM_JOB_ID": "12", "RANKUP_RUN_DIR": str(path)}
    done = rankup_here(["logs", "--cause", path], env=inside)
    assert done.stdout.splitlines()[-1].startswith("rank 3 failed: ValueError")
    assert done.returncode == 0


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    (path / "log" / "12.out").write_text("line\n" * 100_000)
    command = (
        f"{sys.executable} -m rankup logs {path} -n 100000 | head -n 1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "line\n0\n"
    assert done.stderr == ""


class Steps(Client):
    """A Slurm whose queue is that of the next step with each look at it; the last one stays."""

    def __init__(self, *steps: Callable[[], list[Queued]]) -> None:
        super().__init__(environment={"PATH": os.devnull})
        object.__setattr__(self, "steps", list(steps))

    def mine(self) -> list[Queued]:
        steps: list[Callable[[], list[Queued]]] = self.steps  # type: ignore[attr-defined]
        return (steps.pop(0) if len(steps) > 1 else steps[0])()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting takes no time."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))


def _attempt(path: Path, restart: int, said: str, **end: object) -> None:
    """An attempt that has begun, printed something and, where `end` says how, ended."""
    with (path / "log" / "12.out").open("a") as file:
        record(path, restart=restart, start=1 + restart, nodes="n1", offset=file.tell())
        file.write(f"{said}\n")
    if end:
        record(path, restart=restart, end=2 + restart, **end)


@pytest.mark.usefixtures("quick")
def test_following_shows_a_job_from_the_queue_over_a_requeue_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")

    def queued(state: str, reason: str = "None") -> list[Queued]:
        nodes = ("n1",) if state == "RUNNING" else ()
        return [Queued("12", state, reason, nodes, None, os.getuid(), str(path))]

    def first() -> list[Queued]:
        _attempt(path, 0, "hello")
        return queued("RUNNING")

    def requeued() -> list[Queued]:
        record(path, restart=0, end=2, code=0, stopped=True)
        return queued("PENDING", "BeginTime")

    def second() -> list[Queued]:
        _attempt(path, 1, "bye", code=3)
        return []

    waits = lambda: queued("PENDING", "JobHeldUser")  # noqa: E731
    assert follow(path, client=Steps(waits, first, requeued, second, list)) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("job 12 waits: It is held")
    assert lines.index("hello") < lines.index("bye")
    assert lines[-1].startswith("job 12: FAILED.")


def test_ctrl_c_ends_the_view_and_not_the_job(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    _attempt(path, 0, "here")
    slurm = FakeSlurm(tmp_path)
    slurm.answers("squeue", out=f"12|RUNNING|N/A|n1|None|{os.getuid()}|{path}\n")
    slurm.answers("scontrol show job", err="Invalid job id specified", code=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "rankup", "logs", "-f", str(path)],
        env=dict(slurm.environment),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert "the run goes on" in out
    assert process.returncode == 130
    assert slurm.calls("scancel") == []


def test_of_a_local_run_that_kept_no_output_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    began = {"started": "2026-11-20T12:00:00+0000", "nproc": 2, "node": "here"}
    ended = {"code": 0, "ended": "2026-11-20T12:01:00+0000"}
    path = make_run(tmp_path / "runs", attempts=[{**began, **ended}])
    (path / "log" / "torchrun.log").write_text("a remark\n")
    assert logs.show(str(path)) == 0
    note, remark = capsys.readouterr().out.splitlines()
    assert note.startswith("note: a local run's output went to its terminal")
    assert remark == "a remark"
