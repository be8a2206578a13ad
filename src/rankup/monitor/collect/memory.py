"""Memory of the node, and what counts against the job's limit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...site import cgroup
from .reading import text


@dataclass(frozen=True)
class Memory:
    """Bytes: in use without caches, in all, of swap in use and in all."""

    used: float
    total: float
    swap_used: float
    swap: float


def meminfo(content: str) -> Memory | None:
    """From /proc/meminfo; None where it lacks what is asked for."""
    found = {
        name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", content, re.M)
    }
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    swap = found.get("SwapTotal", 0)
    return Memory(
        used=found["MemTotal"] - found["MemAvailable"],
        total=found["MemTotal"],
        swap_used=swap - found.get("SwapFree", swap),
        swap=swap,
    )


def read(root: str = "/") -> Memory | None:
    """Of this node, now."""
    return meminfo(text(os.path.join(root, "proc/meminfo")) or "")


class Limit:
    """The tightest memory limit that this process, and so the job's ranks beside it, is under.

    Attributes:
        size: bytes; None without a limit.
    """

    def __init__(self, environment: Mapping[str, str], root: Path = Path("/")) -> None:
        # Of equal limits (Slurm gives the job and each of its steps the same) the uppermost group
        # counts for all ranks; the lowest is the sampler's own.
        limits = [
            (found[0], -depth, group)
            for own in cgroup.own(root)
            for depth, group in enumerate(_of_job(own, environment.get("SLURM_JOB_ID")))
            if (found := group.memory()) is not None
        ]
        tightest = min(limits, key=lambda one: one[:2], default=None)
        self._group = tightest[2] if tightest else None
        sizes = [tightest[0]] if tightest else []
        self.size: float | None = min([*sizes, *_asked(environment)], default=None)

    def used(self) -> float | None:
        """Bytes that count against the cgroup's limit, without caches; None without one."""
        found = self._group.memory() if self._group else None
        return found[1] if found else None


def _of_job(own: cgroup.Group, job: str | None) -> list[cgroup.Group]:
    """A group and those above it, without those of the sampler's own step: ranks are in others."""
    groups = list(cgroup.upwards(own))
    names = [group.folder.name for group in groups]
    return groups[names.index(f"job_{job}") :] if f"job_{job}" in names else groups


def _asked(environment: Mapping[str, str]) -> list[int]:
    """What the job has asked Slurm for per node, in bytes; 0 means all of the node's."""
    asked = environment.get("SLURM_MEM_PER_NODE", "")
    return [int(asked) << 20] if asked.isascii() and asked.isdigit() and int(asked) else []
