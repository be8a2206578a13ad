"""How far a download is, for a person on a terminal and for a log file."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace

import pytest

from rankup.login.fetch import request


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()  # each look at the clock is a millisecond later than the last one
    clock = SimpleNamespace(monotonic=lambda: next(ticks) / 1000)
    monkeypatch.setattr(request, "time", clock)
    out = io.StringIO()
    with request.progress("a\x1b[2J.bin", out, every=0.05) as show:
        for done in range(0, 5_000_000, 10_000):
            show(done, 5_000_000)
    lines = out.getvalue().splitlines()
    assert 9 <= len(lines) <= 10  # in half a second; rounding may put one off by a millisecond
    assert lines[0].startswith("rankup: a\\x1b[2J.bin: ")
    assert lines[0].endswith(" of 5 MB")
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_there_is_a_bar() -> None:
    out = Terminal()
    with request.progress("[bold]a.bin", out) as show:
        show(1_000_000, None)
        show(5_000_000, 5_000_000)
    assert "[bold]a.bin" in out.getvalue()  # a name is text, never markup
    assert "5.0/5.0 MB" in out.getvalue()
