"""What is shown of a pack while it goes."""

from __future__ import annotations

import io

import pytest

from rankup.data.pack import progress
from rankup.data.pack.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    shown = Progress("packing", 3_000_000_000, 900, before=1_000_000_000, out=out)
    for second in range(25):
        clock.now = 100.0 + second
        shown(40_000_000 * second, 30 * second)
    shown.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "rankup: packing: 1.4 GB of 3 GB, 300 samples, 40 MB/s, 40 s left"
    assert len(lines) == 2


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), Terminal()
    shown = Progress("packing", 3000, 90, before=1000, out=out)
    shown(0, 0)
    assert out.getvalue() == ""  # a short pack shows none
    clock.now += 1
    shown(1000, 30)
    shown.close()
    text = out.getvalue()
    assert "packing" in text
    assert "2.0/3.0 kB" in text
    assert "30 samples" in text
