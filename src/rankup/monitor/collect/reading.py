"""Small files of /proc and /sys, read with as few system calls as can be, and rates of counters."""

from __future__ import annotations

import os
from collections.abc import Hashable

_BLOCK, _SHORT = 1 << 16, 1 << 12  # bytes per read


def text(path: str, *, short: bool = False) -> str | None:
    """A whole file as text; None where there is none, or none for us.

    A quarter of what `Path.read_text` takes, which counts for some hundred files per sample.

    Args:
        short: the file comes in one read, as /proc/PID/stat does, which saves looking for its end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = part = os.read(descriptor, _SHORT if short else _BLOCK)
        while part and not short:
            part = os.read(descriptor, _BLOCK)
            content += part
    except OSError:  # a process that ended between the two calls
        return None
    finally:
        os.close(descriptor)
    return content.decode("utf-8", "replace")


def number(path: str) -> int | None:
    """The one integer of a file."""
    try:
        return int(text(path, short=True) or "")
    except ValueError:
        return None


def names(folder: str) -> list[str]:
    """What a folder holds, sorted; empty where there is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


class Rates:
    """Counters that only grow, as what they grew by per second: the last value of each, by key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}

    def of(self, key: Hashable, value: float | None, seconds: float | None) -> float | None:
        """Growth per second since the last call with this key.

        None for the first one, for a counter that cannot be read, and for one that went back: it
        was reset or overflowed, and what it counted meanwhile is not known.
        """
        if value is None:
            self._last.pop(key, None)
            return None
        before = self._last.get(key)
        self._last[key] = value
        if before is None or not seconds or value < before:
            return None
        return (value - before) / seconds
