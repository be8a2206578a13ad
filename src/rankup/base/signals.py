"""Signals that end a process, as an exception: what is open then is closed and cleared up.

And kept away while that is done.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_as_an_exception() -> Iterator[None]:
    """SIGTERM and a closed terminal raise SystemExit in the body; for the main thread."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup means it
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ignored() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal do nothing while the body clears up: who is asked to
    stop a second time would leave the half of it. For the main thread."""
    before = {
        number: signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
