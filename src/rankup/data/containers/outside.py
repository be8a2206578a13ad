"""Files of a source that lie elsewhere: what links and lists lead to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def real(path: bytes) -> bytes:
    """A path without links; as it is where they lead round in circles."""
    return os.path.realpath(path)


def below(path: bytes, folder: bytes) -> bool:
    """Whether one real path is the other, or lies in it."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def told(names: Iterable[bytes], root: Path) -> dict[str, Any]:
    """What an index says of files outside of its source: how many, and the first; or nothing."""
    names = sorted(names)
    if not names:
        return {}
    path = os.path.join(os.fsencode(root), names[0])
    led = f" -> {shown(real(path))}" if real(path) != path else ""
    return {"files": len(names), "first": shown(names[0]) + led}


def shown(path: bytes) -> str:
    """A path in a message; bytes that are no UTF-8 are written out."""
    return path.decode("utf-8", "backslashreplace")
