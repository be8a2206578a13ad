"""Readings run side by side and end in time, with everything that was started for them."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rankup.login.doctor.deadline import Deadline, Readings, output, reading, start

LONG = 600.0


def test_an_answer_or_an_error_comes_back() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert Deadline(LONG).wait(start(lambda: 1), None) == 1
    with pytest.raises(KeyError):
        Deadline(LONG).wait(start(fail), None)


def test_what_is_late_is_not_waited_for() -> None:
    over = threading.Event()
    future = start(lambda: over.wait(LONG))
    assert Deadline(0.1).wait(future, "late") == "late"
    over.set()
    assert Deadline(LONG).wait(future, "late") is True


def test_many_ask_for_what_is_read_once() -> None:
    class Once(Readings):
        reads = 0

        @reading
        def value(self) -> int:
            self.reads += 1
            return self.reads

    once = Once()
    asked = [start(lambda: once.value) for _ in range(20)]
    assert [future.result(LONG) for future in asked] == [1] * 20


def test_a_command_gives_what_it_prints() -> None:
    words = [sys.executable, "-c", "import os; print(os.environ['X'])"]
    assert output(words, {**os.environ, "X": "there"}, Deadline(LONG)) == "there\n"
    assert output(["/no/such/command"], {}, Deadline(LONG)) == ""


def test_a_command_that_hangs_is_ended_with_its_tree(tmp_path: Path) -> None:
    script = tmp_path / "hang"
    script.write_text('#!/bin/bash\nsleep 600 &\necho $! > "$0.pid"\nwait\n')
    script.chmod(0o755)
    pid = tmp_path / "hang.pid"
    for limit in (0.5, 5.0, 50.0):  # a busy machine may need more to come to it
        assert output([str(script)], os.environ, Deadline(limit)) is None
        if pid.exists() and pid.read_text():
            break
    assert gone(int(pid.read_text()))


def gone(pid: int) -> bool:
    """Return True once a process has ended; one that nobody has waited for has ended, too."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False
