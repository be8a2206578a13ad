"""Where a script is that has to be stopped."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankup.login.fetch import attempt

# As faulthandler writes it: in pieces of a few bytes, the innermost frame first.
PIECES = (
    "",
    "Current thread 0x00007f30 (most recent call first):\n",
    '  File "/usr/lib/python3.12/threading.py", line 359 in wait\n  File "/home/me/tra',
    'in.py", line 1',
    "2 in",
    ' step\n  File "/home/me/train.py", line 80 in <module>\n',
)


def _where(monkeypatch: pytest.MonkeyPatch, file: Path, pieces: tuple[str, ...]) -> str:
    """What is found where a piece is written whenever the reader waits, half a second each time."""
    left, seconds = iter(pieces), itertools.count()

    def wait(_: float) -> None:
        with file.open("a") as stacks:
            stacks.write(next(left, ""))

    clock = SimpleNamespace(monotonic=lambda: next(seconds) / 2, sleep=wait)
    monkeypatch.setattr(attempt, "time", clock)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    return attempt._where_now(file, 1)


def test_a_frame_is_read_once_its_line_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _where(monkeypatch, tmp_path / "stack.txt", PIECES) == "train.py:12 in step"


def test_a_process_that_does_not_answer_is_waited_for_so_long_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _where(monkeypatch, tmp_path / "none", ()) == ""
    assert _where(monkeypatch, tmp_path / "stack.txt", PIECES[:3]) == ""
