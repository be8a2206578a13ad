"""What is shown of something that takes a while."""

from __future__ import annotations

import io

import pytest

from rankup.base import progress
from rankup.base.progress import shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    with shown("pack\x1b[2Jing", 3_000_000_000, out=out) as show:
        for second in range(25):
            clock.now = 100.0 + second
            show(1_000_000_000 + 40_000_000 * second, samples=30 * second)
    lines = out.getvalue().splitlines()
    assert lines[0] == "rankup: pack\\x1b[2Jing: 1.4 GB of 3 GB, 300 samples, 40 MB/s, 40 s left"
    assert len(lines) == 2
    with shown("copying", out=out) as show:
        clock.now += 10
        show(0)
        show(2_000_000, total=None)
    assert out.getvalue().splitlines()[2:] == ["rankup: copying: 0 bytes, 0 bytes/s"]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), Terminal()
    with shown("[bold]packing", 3000, out=out) as show:
        show(0, samples=0)
        assert out.getvalue() == ""  # what is over soon shows none
        clock.now += 1
        show(2000, samples=30)
    text = out.getvalue()
    assert "[bold]packing" in text  # a name is text, never markup
    assert "2.0/3.0 kB" in text
    assert "30 samples" in text
