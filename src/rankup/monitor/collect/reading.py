"""Small files of /proc and /sys, read with as few system calls as can be."""

from __future__ import annotations

import os

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
