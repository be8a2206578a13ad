"""The room of a place: its free space and, where that is memory, the job's limit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...base.amounts import size
from ...site import cgroup, mounts
from ...site.gpus import usable_cores, visible_gpus
from . import place

# What is kept free for the processes that train, per rank, for its GPU, and per worker of its
# loader. Guesses on the safe side: torch alone takes 0.2 GB, measured here on CPU; batches,
# pinned memory and CUDA's own take the rest. `--reserve` says it better for a known script.
RANK, GPU, WORKER = 1 << 30, 2 << 30, 1 << 29


@dataclass(frozen=True)
class Limit:
    """A bound on memory.

    Attributes:
        what: sets it, in words.
        limit, used: bytes; `used` without what the kernel gives back when it is needed.
    """

    what: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """Return the bytes that may still be used."""
        return max(0, self.limit - self.used)


class Reserve(NamedTuple):
    """Bytes that the processes of the job will need, and how they come about."""

    size: int
    why: str


def limits(environment: Mapping[str, str], ours: int, root: Path = Path("/")) -> list[Limit]:
    """Return all bounds on memory that are known: of this process's cgroup and all above, and more.

    Args:
        ours: bytes that copies take already, for bounds that do not say what is in use.
        root: where `proc` and `sys` are, for tests.
    """
    found = [
        Limit(f"memory limit of the cgroup {group.name}", *limit)
        for own in cgroup.own(root)
        for group in cgroup.upwards(own)
        if (limit := group.memory()) is not None
    ]
    asked = _slurm(environment)
    if asked is not None:
        found.append(Limit("memory that the job has asked Slurm for", asked, ours))
    with suppress(OSError):
        text = (root / "proc/meminfo").read_text()
        if available := re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.M):
            found.append(Limit("available memory of the node", int(available[1]) << 10, 0))
    return found


def reserve(environment: Mapping[str, str]) -> Reserve:
    """Return what the ranks of this node and their workers may need: `RANK`, `GPU`, `WORKER`."""
    cores = max(usable_cores(), _number(environment.get("SLURM_CPUS_ON_NODE")))
    gpus = visible_gpus(environment)
    ranks = _number(environment.get("LOCAL_WORLD_SIZE"))
    ranks = ranks or _number(environment.get("SLURM_NTASKS_PER_NODE")) or gpus or 1
    ranks = max(ranks, gpus)  # torchrun starts one for each GPU, in one task of Slurm
    workers = max(ranks, cores - ranks)  # the cores of each rank minus one, as its Loader takes
    kept = ranks * RANK + gpus * GPU + workers * WORKER
    of_gpus = f", {gpus} GPUs of 2 GiB" if gpus else ""
    return Reserve(kept, f"{ranks} ranks of 1 GiB{of_gpus}, {workers} workers of 0.5 GiB")


@dataclass(frozen=True)
class Room:
    """The room that there is at a place.

    Attributes:
        base: the place.
        in_memory: what lies there takes memory.
        free: bytes that its file system has left.
        limits: where it is memory, what else bounds it.
        reserve: what is kept of these.
    """

    base: Path
    in_memory: bool
    free: int
    limits: tuple[Limit, ...]
    reserve: Reserve

    @property
    def fits(self) -> int:
        """Return the bytes of a copy that can be taken in; not negative."""
        left = [self.free]
        if self.in_memory:
            left += [one.left - self.reserve.size for one in self.limits]
        return max(0, min(left))

    def numbers(self) -> list[str]:
        """Return the lines that say how `fits` comes about."""
        lines = [f"free in {self.base}: {size(self.free)}"]
        if self.in_memory:
            for one in self.limits:
                used = f" of {size(one.limit)}, {size(one.used)} in use" if one.used else ""
                lines.append(f"{one.what}: {size(one.left)} left{used}")
            lines.append(
                f"kept for the job's processes: {size(self.reserve.size)} ({self.reserve.why})"
            )
        return lines


def room(base: Path, environment: Mapping[str, str], reserve: Reserve) -> Room:
    """Return what there is at a place now.

    Raises:
        OSError: it is not there.
    """
    about = os.statvfs(base)
    in_memory = mounts.kind_of(base) in mounts.IN_MEMORY
    bounds = limits(environment, place.used(place.folder_of(base))) if in_memory else []
    return Room(base, in_memory, about.f_bavail * about.f_frsize, tuple(bounds), reserve)


def _slurm(environment: Mapping[str, str]) -> int | None:
    """Return the bytes that a job has asked for per node; 0 there means all of the node's."""
    node = _number(environment.get("SLURM_MEM_PER_NODE"))
    if node:
        return node << 20
    core = _number(environment.get("SLURM_MEM_PER_CPU"))
    cores = _number(environment.get("SLURM_CPUS_ON_NODE"))
    return (core * cores) << 20 if core and cores else None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
