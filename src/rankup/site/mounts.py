"""The mounts of this node, from `/proc/self/mounts`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# File systems in which what lies there takes memory.
IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Mount:
    """A line of `/proc/self/mounts`."""

    source: str
    point: str
    kind: str


def parse(text: str) -> list[Mount]:
    """The lines of `/proc/self/mounts`, with its escapes (`\\040`) resolved."""
    # No `splitlines`: the kernel escapes no other ends of lines, which a name may have in it.
    rows = (line.split(" ") for line in text.split("\n"))
    return [Mount(*map(_unescaped, row[:3])) for row in rows if len(row) >= 3]


def table() -> list[Mount]:
    """Return the mounts; none where the system does not say (no Linux)."""
    try:
        return parse(os.fsdecode(_MOUNTS.read_bytes()))
    except OSError:
        return []


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that a path lies on: the longest, of equal ones the last."""
    on = [one for one in mounts if Path(path).is_relative_to(one.point)]
    return max(reversed(on), key=lambda one: len(one.point), default=None)


def kind_of(path: Path) -> str:
    """The type of the file system behind a path, as `ext4`; empty where it is not known."""
    mount = mount_of(str(path.resolve()), table())
    return mount.kind if mount is not None else ""


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
