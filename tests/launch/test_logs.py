"""The view of a log: noise folded, terminals safe, and an end that says why."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankup.base.text import clean
from rankup.launch import cause, logfile, logs, meant
from rankup.launch import follow as following
from rankup.launch.follow import Tail, follow
from rankup.launch.noise import Fold, fold
from rankup.site import rundir
from rankup.slurm.client import Client
from rankup.slurm.parse import Queued

from ..conftest import RunRankup
from ..slurm.fake import FakeSlurm
from .handmade import RECORDED, asked, make_run, record

HARMLESS = re.compile(r"harmless: .* \(\d+ lines?\)")
NOWHERE = {"PATH": os.devnull}


def _folded(name: str) -> list[str]:
    return fold((RECORDED / f"{name}.txt").read_text().splitlines())


@pytest.mark.parametrize("name", ["told", "store"])
def test_what_agents_say_after_another_node_has_ended_is_folded(name: str) -> None:
    lines = _folded(name)
    assert len(lines) <= 3
    assert all(HARMLESS.fullmatch(line) for line in lines)


@pytest.mark.parametrize("name", ["raised", "killed"])
def test_consequences_are_folded_and_the_root_causes_stay(name: str) -> None:
    lines = _folded(name)
    text = "\n".join(lines)
    assert text.count("Root Cause (first observed failure):") == 2
    assert "Connection closed by peer" not in text
    assert "harmless: rank 1 lost its connection: another rank had ended (10 lines)" in lines
    assert "OMP_NUM_THREADS environment variable" not in text
    assert ("[rank3]: ValueError: the loss is not finite at step 7" in lines) == (name == "raised")


def test_no_line_is_lost_in_folding() -> None:
    for file in RECORDED.glob("*.txt"):
        lines = file.read_text().splitlines()
        counts = [int(n) for line in fold(lines) for n in re.findall(r"\((\d+) lines?\)$", line)]
        kept = [line for line in fold(lines) if not HARMLESS.fullmatch(line)]
        assert sum(counts) + len(kept) == len(lines)
        assert set(kept) <= set(lines)


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: cluster configuration lacks support for cpu binding",
        "srun: warning: cluster configuration lacks support for cpu binding",
        "slurmstepd: error: mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:193: can not load PMIx",
        "[W1120 20:45 socket.cpp:767] [c10d] The client socket cannot be initialized to connect to"
        " [n1]:29 (errno: 97 - Address family not supported by protocol).",
    ],
)
def test_harmless_lines_are_known(line: str) -> None:
    (folded,) = fold([line])
    assert HARMLESS.fullmatch(folded)


@pytest.mark.parametrize(
    "block",
    [
        ["Traceback (most recent call last):", '  File "t.py", line 3', "ValueError: no", "after"],
        ["[rank1]: Traceback (most recent call last):", "[rank1]:   x", "[rank1]: KeyError: 1"],
        ["step 1", "", "step 2"],
        ["srun: error: n2: task 1: Killed"],
        ["slurmstepd: error: Detected 1 oom-kill event(s)"],
        ["Traceback (most recent call last):", "  unfinished"],
    ],
)
def test_what_is_not_known_stays_as_it_is(block: list[str]) -> None:
    assert fold(block) == block


def test_tracebacks_of_ranks_that_are_woven_together_are_told_apart() -> None:
    own = ["[rank0]: Traceback (most recent call last):", "[rank0]:   a", "[rank0]: ValueError: no"]
    peer = [line.replace("rank0", "rank1") for line in own[:2]]
    peer.append("[rank1]: RuntimeError: Connection closed by peer [127.0.0.1]:1")
    woven = [line for pair in zip(own, peer, strict=True) for line in pair]
    lines = fold(woven)
    assert sorted(line for line in lines if line in own) == sorted(own)
    assert len(lines) == 4


def test_a_block_is_not_held_back_for_ever() -> None:
    folder = Fold()
    assert folder.feed("Traceback (most recent call last):") == []
    assert folder.flush() == ["Traceback (most recent call last):"]
    assert folder.flush() == []


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


def test_the_log_of_a_task_begins_where_its_own_records_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    for task, offset in (("1", 0), ("2", 12)):
        log = path / "array" / task / "log"
        log.mkdir(parents=True)
        restart = int(offset > 0)
        line = {"job": "12", "task": int(task), "restart": restart, "start": 5, "offset": offset}
        (log.parent / "attempts.jsonl").write_text(json.dumps(line) + "\n")
    (path / "log" / "12_2.out").write_text("0123456789a\nb\n")
    os.utime(path / "log" / "12_2.out", (1, 1))
    (path / "log" / "12_1.out").write_text("0123456789a\nb\n")
    file, start = cause.newest_log(path, rundir.records(path))
    assert (file, start) == (path / "log" / "12_1.out", 0)
    assert cause.newest_log(path, rundir.records(path), "2")[1] == 12
    logs.show(str(path), task="2")
    assert "0123456789a" not in capsys.readouterr().out
    logs.show(str(path), task="1")
    assert "0123456789a" in capsys.readouterr().out


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


def test_what_srun_says_about_the_end_is_folded_once_the_ranks_have_told_themselves() -> None:
    lines = [
        "srun: error: n1: task 0: Terminated",
        "srun: error: n[1-2]: tasks 0,2-3: Exited with exit code 1",
        "srun: Terminating StepId=12.0",
        "srun: Force Terminated StepId=12.0",
        "srun: forcing job termination",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-20T21:48:52 ***",
        "srun: got SIGCONT",
    ]
    assert fold(lines) == lines
    assert fold(lines, lambda: True) == ["harmless: srun ends the ranks that are left (8 lines)"]
    kept = [
        "srun: error: n2: task 1: Out Of Memory",
        "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-20T21:48 DUE TO TIME LIMIT ***",
    ]
    assert fold(kept, lambda: True) == kept


def test_a_lost_store_is_folded_with_its_frames() -> None:
    for what in ("recvValueWithTimeout", "recvVector", "sendBytes"):
        lines = [
            f"[W1120 20:45 TCPStore.cpp:125] [c10d] {what} failed on SocketImpl(fd=3): got 0 bytes",
            "Exception raised from recvBytes at /pytorch/Utils.hpp:678 (most recent call first):",
            "frame #0: c10::Error::Error(...) + 0x98 (0x7f in libc10.so)",
            "",
        ]
        (line,) = fold(lines)
        assert line.endswith("(4 lines)")


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
    last = "rank 3 on localhost failed: ValueError: the loss is not finite at step 7"
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


def test_an_unknown_task_is_refused(rankup_here: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    (path / "log" / "12_3.out").write_text("x\n")
    done = rankup_here(["logs", path, "--task", "4"], env=NOWHERE)
    assert done.returncode == 2
    assert "there are: 3" in done.stderr


def test_the_cause_inside_a_job_needs_no_slurm(rankup_here: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    record(path, start=1)
    (path / "log" / "12.out").write_text((RECORDED / "raised.txt").read_text())
    inside = {**NOWHERE, "SLURM_JOB_ID": "12", "RANKUP_RUN_DIR": str(path)}
    done = rankup_here(["logs", "--cause", path], env=inside)
    assert done.stdout.splitlines()[-1].startswith("rank 3 on localhost failed: ValueError")
    assert done.returncode == 0


def test_the_cause_of_a_tasks_directory(rankup_here: RunRankup, tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    (path / "array" / "2" / "log").mkdir(parents=True)
    (path / "log" / "12_2.out").write_text("preflight: node n1: no\n")
    inside = {**NOWHERE, "SLURM_JOB_ID": "14", "RANKUP_RUN_DIR": str(path / "array" / "2")}
    done = rankup_here(["logs", "--cause", path / "array" / "2"], env=inside)
    assert done.stdout == "preflight: node n1: no\n"


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


def _life(path: Path, restart: int, said: str, **end: object) -> None:
    """A life that has begun, printed something and, where `end` says how, ended."""
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
        _life(path, 0, "hello")
        return queued("RUNNING")

    def requeued() -> list[Queued]:
        record(path, restart=0, end=2, code=0, stopped=True)
        return queued("PENDING", "BeginTime")

    def second() -> list[Queued]:
        _life(path, 1, "bye", code=3)
        return []

    waits = lambda: queued("PENDING", "JobHeldUser")  # noqa: E731
    assert follow(path, client=Steps(waits, first, requeued, second, list)) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("job 12 waits: It was held by its owner")
    assert lines.index("hello") < lines.index("bye")
    assert lines[-1].startswith("job 12: FAILED.")


def test_ctrl_c_ends_the_view_and_not_the_job(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    _life(path, 0, "here")
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
    path = make_run(tmp_path / "runs", lives=[{**began, **ended}])
    (path / "log" / "torchrun.log").write_text("a remark\n")
    assert logs.show(str(path)) == 0
    note, remark = capsys.readouterr().out.splitlines()
    assert note.startswith("note: a local run's output went to its terminal")
    assert remark == "a remark"


def test_a_task_is_found_by_slurms_name_for_it(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs")
    asked(path, "12")
    assert meant.locate(tmp_path / "runs", "12_4") == (path, "4")


def test_torchruns_summary_is_folded_once_the_ranks_have_told_themselves() -> None:
    rule = "=" * 60
    banner = [rule, "train.py FAILED", "Root Cause (first observed failure):", "  rank : 2", rule]
    ended = "E1120 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
    lines = ["step 1", f"{ended}local_rank: 0 (pid: 7)", *banner, "ValueError: boom"]
    assert fold(lines) == lines, "else it is all there is"
    assert fold(lines, lambda: True) == [
        "step 1",
        "harmless: torchrun's summary; the rank's own exception stands at the end (6 lines)",
        "ValueError: boom",
    ]


def test_a_double_rule_of_the_users_own_is_no_summary() -> None:
    lines = ["=" * 60, "my results", "=" * 60, "loss 3"]
    assert fold(lines, lambda: True) == lines


def test_tracebacks_of_two_agents_mixed_line_by_line_fold_once_the_ranks_have_told() -> None:
    frame = '  File "/env/lib/torch/distributed/run.py", line 1028, in main'
    start = '  File "/env/bin/torchrun", line 8, in <module>'
    lines = [
        *(
            "Traceback (most recent call last):",
            start,
            "    sys.exit(main())",
            "             ^^^^^^",
        ),
        *("Traceback (most recent call last):", start, "    sys.exit(main())", frame),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        *("    return f(*args, **kwargs)", "           ^^^^^^^^^^^^^^^^^^", frame, "    run(args)"),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "srun: launch/slurm: _step_signal: Terminating StepId=2.1",
        "ValueError: boom",
    ]
    shown = fold(lines, lambda: True)
    assert [line for line in shown if not line.startswith("harmless: ")] == ["ValueError: boom"]
    mine = ["Traceback (most recent call last):", '  File "my.py", line 5, in <module>', "  f()"]
    assert fold([*mine, "ValueError: mine"], lambda: True) == [*mine, "ValueError: mine"]
