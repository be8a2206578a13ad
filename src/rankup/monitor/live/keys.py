"""Single keys from a terminal, without waiting for Enter; the terminal is given back as it was."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

# What terminals send for keys that are no letter.
_NAMES = {
    **{b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up"},
    **{b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down"},
    **{b"\x1b[5~": "page up", b"\x1b[6~": "page down", b" ": "page down"},
    **{b"\x1b[H": "home", b"\x1b[1~": "home", b"g": "home"},
    **{b"q": "quit", b"Q": "quit", b"\x04": "quit"},
}


class Keys:
    """Where keys come from; without a terminal none ever do."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def any(self) -> bool:
        return self._descriptor is not None

    def wait(self, seconds: float) -> list[str]:
        """The keys pressed within so many seconds; returns at the first."""
        if self._descriptor is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return []
        data = os.read(self._descriptor, 256)
        if not data:  # the terminal is gone
            return ["quit"]
        return list(_named(data))


@contextmanager
def keys() -> Iterator[Keys]:
    """Keys of stdin, where that is a terminal. Ctrl-C stays an interrupt."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _named(data: bytes) -> Iterator[str]:
    while data:
        for length in (4, 3, 1):
            if (name := _NAMES.get(data[:length])) is not None:
                yield name
                data = data[length:]
                break
        else:
            data = data[1:]
