"""How much memory this job may still use: its cgroups, Slurm's word, and what the node has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...site import mounts
from ...site.gpus import usable_cores, visible_gpus

_ROOT = Path("/")
# Version 1 says "no limit" as the largest number of pages.
_NO_LIMIT = 1 << 60

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
        """Bytes that may still be used."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True)
class Reserve:
    """Memory that the processes of the job will need.

    Attributes:
        size: bytes.
        why: how that comes about.
    """

    size: int
    why: str


def limits(environment: Mapping[str, str], ours: int, root: Path = _ROOT) -> list[Limit]:
    """All bounds that are known.

    Args:
        ours: bytes that copies take already, for bounds that do not say what is in use.
        root: where `proc` and `sys` are, for tests.
    """
    found = cgroups(root)
    asked = _slurm(environment)
    if asked is not None:
        found.append(Limit("memory that the job has asked Slurm for", asked, ours))
    available = _meminfo(root).get("MemAvailable")
    if available is not None:
        found.append(Limit("available memory of the node", available, 0))
    return found


def reserve(environment: Mapping[str, str]) -> Reserve:
    """What the ranks of this node and their workers may need: see `RANK`, `GPU` and `WORKER`."""
    cores = max(usable_cores(), _number(environment.get("SLURM_CPUS_ON_NODE")))
    gpus = visible_gpus(environment)
    ranks = _number(environment.get("LOCAL_WORLD_SIZE"))
    ranks = ranks or _number(environment.get("SLURM_NTASKS_PER_NODE")) or gpus or 1
    ranks = max(ranks, gpus)  # torchrun starts one for each GPU, in one task of Slurm
    workers = max(ranks, cores - ranks)  # the cores of each rank minus one, as its Loader takes
    size = ranks * RANK + gpus * GPU + workers * WORKER
    of_gpus = f", {gpus} GPUs of 2 GiB" if gpus else ""
    return Reserve(size, f"{ranks} ranks of 1 GiB{of_gpus}, {workers} workers of 0.5 GiB")


def cgroups(root: Path = _ROOT) -> list[Limit]:
    """The memory limits of this process's cgroup and all above it, of version 2 and 1."""
    found = []
    for folder, top, new in _folders(root):
        here = folder
        while True:
            limit = (_limit2 if new else _limit1)(here)
            if limit is not None:
                name = f"/{here.relative_to(top)}" if here != top else "/"
                found.append(Limit(f"memory limit of the cgroup {name}", *limit))
            if here == top or top not in here.parents:
                break
            here = here.parent
    return found


def _folders(root: Path) -> list[tuple[Path, Path, bool]]:
    """(own folder, top of the hierarchy, whether it is of version 2) of the memory controllers."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        table = mounts.parse((root / "proc/self/mounts").read_text(errors="replace"))
    except OSError:
        return []
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        new = number == "0" and not controllers
        if not new and "memory" not in controllers.split(","):
            continue
        kind = "cgroup2" if new else "cgroup"
        for mount in table:
            # Of version 1 each controller has a mount, whose last word names it.
            if mount.kind == kind and (new or "memory" in Path(mount.point).name.split(",")):
                top = root / mount.point.lstrip("/")
                own = top / path.lstrip("/")
                # In a container the hierarchy may begin at its own group.
                found.append((own if own.is_dir() else top, top, new))
    return found


def _limit2(folder: Path) -> tuple[int, int] | None:
    limit, used = _read(folder / "memory.max"), _read(folder / "memory.current")
    if limit is None or used is None:
        return None
    stat = _stat(folder / "memory.stat")
    cache = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    return limit, max(0, used - cache)


def _limit1(folder: Path) -> tuple[int, int] | None:
    limit, used = _read(folder / "memory.limit_in_bytes"), _read(folder / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    stat = _stat(folder / "memory.stat")
    cache = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    return limit, max(0, used - cache)


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max": none
        return None


def _stat(path: Path) -> dict[str, int]:
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except (OSError, ValueError):
        return {}


def _meminfo(root: Path) -> dict[str, int]:
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return {}
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}


def _slurm(environment: Mapping[str, str]) -> int | None:
    """Bytes that a job has asked for per node; 0 there means all of the node's."""
    node = _number(environment.get("SLURM_MEM_PER_NODE"))
    if node:
        return node << 20
    core = _number(environment.get("SLURM_MEM_PER_CPU"))
    cores = _number(environment.get("SLURM_CPUS_ON_NODE"))
    return (core * cores) << 20 if core and cores else None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
