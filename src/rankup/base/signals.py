"""Signals that end a process, as an exception: what is open then is closed and cleared up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_as_an_exception() -> Iterator[None]:
    """SIGTERM and a closed terminal raise SystemExit in the body; for the main thread.

    After the first one no other signal disturbs the clearing up, until the body is left.
    """

    def end(number: int, frame: FrameType | None) -> None:
        ignore()
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if before[number] is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore Ctrl-C, SIGTERM and a closed terminal until `ended_as_an_exception` is left.

    For what clears up: a second request to stop would leave half of it. A signal that comes while
    this runs raises its exception here, so call it in a `try` whose `finally` clears up.
    """
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
