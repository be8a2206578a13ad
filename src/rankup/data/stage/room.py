"""How much of a copy fits into a place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...base.amounts import size
from ...site import mounts
from . import memory, place
from .find import PART
from .memory import Limit, Reserve


@dataclass(frozen=True)
class Room:
    """What there is at a place.

    Attributes:
        base: the place.
        in_memory: whether what lies there takes memory.
        free: bytes that its file system has left.
        promised: bytes that copies being made now will still take.
        limits: where it is memory, what else bounds it.
        reserve: what is kept of these.
        full: whether no file can be made there any more, whatever bytes are free.
    """

    base: Path
    in_memory: bool
    free: int
    promised: int
    limits: tuple[Limit, ...]
    reserve: Reserve
    full: bool = False

    @property
    def fits(self) -> int:
        """Bytes of a copy that can be taken in; not negative."""
        if self.full:
            return 0
        left = [self.free]
        if self.in_memory:
            left += [one.left - self.reserve.size for one in self.limits]
        return max(0, min(left) - self.promised)


def room(base: Path, environment: Mapping[str, str], reserve: Reserve) -> Room:
    """What there is at a place now.

    Raises:
        OSError: it is not there.
    """
    about = os.statvfs(base)
    in_memory = mounts.kind_of(base) in mounts.IN_MEMORY
    taken, promised = copies(place.folder_of(base))
    limits = memory.limits(environment, taken) if in_memory else []
    free = about.f_bavail * about.f_frsize
    full = about.f_files > 0 and about.f_favail == 0  # some count no files at all
    return Room(base, in_memory, free, promised, tuple(limits), reserve, full)


def copies(root: Path) -> tuple[int, int]:
    """Bytes that copies take, and those that the ones being made will still take."""
    taken = promised = 0
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]  # mounts are no copies
        for name in names:
            try:
                about = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            here = about.st_blocks * 512
            taken += here
            if f"/{PART}/" in f"{folder}/":
                promised += max(0, about.st_size - here)
    return taken, promised


def numbers(room: Room) -> list[str]:
    """The lines that say how `fits` comes about."""
    lines = [f"free in {room.base}: {size(room.free)}"]
    if room.full:
        lines.append("but no more files can be made there: it has no inodes left")
    if room.in_memory:
        for one in room.limits:
            used = f" of {size(one.limit)}, {size(one.used)} in use" if one.used else ""
            lines.append(f"{one.what}: {size(one.left)} left{used}")
        lines.append(
            f"kept for the job's processes: {size(room.reserve.size)} ({room.reserve.why})"
        )
    if room.promised:
        lines.append(f"promised to copies that are being made: {size(room.promised)}")
    return lines
