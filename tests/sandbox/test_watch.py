"""Watching a real child: its limits hold, Ctrl-C ends it, and nothing that it started is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rankup.sandbox.events import Journal
from rankup.sandbox.inside.spec import STATE
from rankup.sandbox.processes import Tree, marked
from rankup.sandbox.watch import Ended, Interrupt, Limits, default_memory, watch

ROOMY = 4 * 10**9
_EVENT = json.dumps({"event": "url", "time": 1.0, "pid": 7, "url": "http://a/b"}).encode() + b"\n"


def _watch(
    program: str,
    tmp_path: Path,
    *,
    seconds: float = 120,
    memory: int = ROOMY,
    look: Callable[[], bool] = lambda: False,
) -> Ended:
    mark = str(tmp_path)
    with Interrupt() as interrupt:
        ended = watch(
            [sys.executable, "-c", program],
            {**os.environ, STATE: mark},
            Limits(seconds, memory),
            interrupt,
            look=look,
        )
    assert marked(mark) == [], "a process was left"
    assert ended.left == ()
    return ended


@pytest.mark.parametrize("code", [0, 3])
def test_a_child_that_ends_by_itself_gives_its_exit_code(tmp_path: Path, code: int) -> None:
    ended = _watch(f"raise SystemExit({code})", tmp_path)
    assert (ended.why, ended.code) == ("exit", code)


def test_the_child_reads_no_input_and_does_not_get_the_terminals_signals(tmp_path: Path) -> None:
    program = (
        "import os, sys; sys.exit(10 * (sys.stdin.read() == '') + (os.getsid(0) == os.getpid()))"
    )
    assert _watch(program, tmp_path).code == 11


@pytest.mark.slow
def test_a_child_that_ignores_sigterm_ends_when_its_time_is_over(tmp_path: Path) -> None:
    """Helpers that tidy up after the dead may do so: shared memory goes with its tracker."""
    name = f"rankup{os.getpid()}"
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        f"kept = SharedMemory({name!r}, create=True, size=1000)\n"
        f"file = open({str(tmp_path / 'out')!r}, 'w'); time.sleep(600)"
    )
    ended = _watch(program, tmp_path, seconds=4)
    assert (ended.why, ended.code) == ("time", None)
    assert ended.seconds >= 4
    assert str(tmp_path / "out") in ended.writing
    assert not Path("/dev/shm", name).exists()


def test_memory_counts_over_all_processes(tmp_path: Path) -> None:
    """Two children with 150 MB each: one alone would be below the limit."""
    program = (
        "import subprocess, sys, time\n"
        "hold = 'import time; kept = bytearray(150_000_000); time.sleep(600)'\n"
        "for _ in range(2): subprocess.Popen([sys.executable, '-c', hold])\n"
        "time.sleep(600)"
    )
    ended = _watch(program, tmp_path, seconds=300, memory=250 * 10**6)
    assert ended.why == "memory"
    assert ended.memory > 250 * 10**6


@pytest.mark.slow
def test_memory_shared_by_forked_workers_counts_once(tmp_path: Path) -> None:
    """They live until they have been weighed."""
    program = (
        "import os, time\n"
        "kept = b'x' * 200_000_000\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0: time.sleep(600)\n"
        f"open({str(tmp_path / 'forked')!r}, 'w').close()\n"
        "time.sleep(600)"
    )
    looks: list[bool] = []

    def look() -> bool:
        looks.append((tmp_path / "forked").exists())
        return sum(looks) > 20

    ended = _watch(program, tmp_path, seconds=300, memory=450 * 10**6, look=look)
    assert ended.why == "stopped"
    assert 200 * 10**6 < ended.memory < 450 * 10**6


def test_descendants_are_ended_also_those_that_left_the_family(tmp_path: Path) -> None:
    """A tree that forks, and a daemon: its parents are gone, its session is its own."""
    file = tmp_path / "daemon"
    program = (
        "import os, time\n"
        "top = os.getpid()\n"
        "for depth in range(3): os.fork()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(600)\n"
        "    os._exit(0)\n"
        "if os.getpid() != top: time.sleep(600)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        open({str(file)!r}, 'w').write(str(os.getpid()))\n"
        "        os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "    os._exit(0)\n"
        f"while not os.path.exists({str(file)!r}) or not open({str(file)!r}).read(): pass\n"
    )
    assert _watch(program, tmp_path, seconds=120).why == "exit"
    assert _ended(int(file.read_text()))


def test_only_processes_with_the_mark_are_ended() -> None:
    words = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    ours = psutil.Popen(words, env={**os.environ, STATE: "ours"}, stdout=-1)
    theirs = psutil.Popen(words, env={**os.environ, STATE: "theirs"}, stdout=-1)
    try:
        for process in (ours, theirs):
            process.stdout.readline()
        assert Tree("ours").kill() == []
        assert ours.wait(timeout=60) != 0
        assert theirs.is_running()
    finally:
        for process in (ours, theirs):
            if process.is_running():
                process.kill()
            process.wait(timeout=60)
            process.stdout.close()


def _ended(pid: int) -> bool:
    """Whether a process is gone, or about to be: a killed one needs a moment of a busy machine."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.wait(60) is None
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_child_and_is_remembered(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def interrupted() -> bool:
        os.kill(os.getpid(), number)
        return False

    ended = _watch("import time; time.sleep(600)", tmp_path, seconds=120, look=interrupted)
    assert ended.why == "interrupt"
    assert signal.getsignal(number) == before


def test_a_program_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with Interrupt() as interrupt, pytest.raises(FileNotFoundError):
        watch(["/x/none"], {"RANKUP_SANDBOX": "x"}, Limits(1, 1), interrupt, look=lambda: False)


def test_the_default_memory_is_half_of_what_is_free_at_most() -> None:
    assert 0 < default_memory() <= min(16 * 10**9, psutil.virtual_memory().total // 2)


def test_a_line_of_the_journal_that_is_not_whole_yet_is_left(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    journal = Journal(file)
    assert journal.read_all() == ()
    file.write_bytes(_EVENT + _EVENT[:20])
    assert len(journal.read()) == 1
    with file.open("ab") as more:
        more.write(_EVENT[20:])
    assert len(journal.read()) == 1
    assert len(journal.events) == 2
