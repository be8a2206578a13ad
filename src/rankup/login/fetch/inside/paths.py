"""Where a file really is, and a free name beside it."""

from __future__ import annotations

import os


def real_path(path: object, *, follow: bool, descriptor: int = -1) -> str:
    """The absolute path without links (`follow`: not in its last part either), or nothing."""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    name = os.fsdecode(path)
    if not name or "\0" in name:
        return ""
    try:
        if not os.path.isabs(name):
            base = os.getcwd() if descriptor < 0 else os.readlink(f"/proc/self/fd/{descriptor}")
            name = os.path.join(base, name)
        folder, last = os.path.split(os.path.normpath(name) if ".." not in name else name)
        if last in ("", ".", ".."):
            return os.path.realpath(name)
        real = os.path.join(os.path.realpath(folder), last)
        return os.path.realpath(real) if follow and os.path.islink(real) else real
    except OSError:
        return ""


def aside(suffix: str, real: str) -> str:
    """A free name beside a file or folder, with the suffix."""
    folder, name = os.path.split(real)
    while len(os.fsencode(name)) > 250 - len(os.fsencode(suffix)):
        name = name[:-1]
    path = os.path.join(folder, f".{name}{suffix}")
    number = 1
    while os.path.lexists(path):
        number += 1
        path = os.path.join(folder, f".{name}{suffix}-{number}")
    return path
