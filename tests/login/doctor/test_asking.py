"""Questions are asked at once and end in time, with everything that was started for them."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rankup.login.doctor import commands
from rankup.login.doctor.asking import Clock, Late, Question

LONG = 600.0


def test_an_answer_comes_back() -> None:
    assert Question("one", Clock(LONG), lambda: 1).answer() == 1


def test_an_error_comes_back_as_itself() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        Question("wrong", Clock(LONG), fail).answer()


def test_a_question_that_waits_for_another_names_that_one() -> None:
    over = threading.Event()
    inner = Question("the inner one", Clock(0.1), lambda: over.wait(LONG))
    outer = Question("the outer one", Clock(LONG), inner.answer)
    with pytest.raises(Late) as caught:
        outer.answer()
    over.set()
    assert caught.value.what == "the inner one"


def test_a_command_gives_what_it_prints() -> None:
    words = [sys.executable, "-c", "import os; print(os.environ['X'])"]
    assert commands.run(words, {**os.environ, "X": "there"}, Clock(LONG)) == "there\n"


def test_a_command_that_hangs_is_ended_with_its_tree(tmp_path: Path) -> None:
    script = tmp_path / "hang"
    script.write_text('#!/bin/bash\nsleep 600 &\necho $! > "$0.pid"\nwait\n')
    script.chmod(0o755)
    pid = tmp_path / "hang.pid"
    for limit in (0.5, 5.0, 50.0):  # a busy machine may need more to come to it
        with pytest.raises(Late):
            commands.run([str(script)], os.environ, Clock(limit))
        if pid.exists() and pid.read_text():
            break
    assert gone(int(pid.read_text()))


def test_only_processes_with_the_mark_are_ended() -> None:
    words = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    marked = psutil.Popen(words, env={**os.environ, commands.MARK: "ours"}, stdout=-1)
    other = psutil.Popen(words, env={**os.environ, commands.MARK: "theirs"}, stdout=-1)
    try:
        for process in (marked, other):
            process.stdout.readline()
        commands.end_all("ours")
        assert marked.wait(timeout=60) != 0
        assert other.is_running()
    finally:
        for process in (marked, other):
            if process.is_running():
                process.kill()
            process.wait(timeout=60)
            process.stdout.close()


def gone(pid: int) -> bool:
    """Whether a process ends within seconds; one that nobody has waited for has ended, too."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False
