"""How busy each core is, and which cores are the job's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ...site import cgroup
from .reading import text

_SCALE = "0123456789a"  # tenths, as in lines.py


def core_times(stat: str) -> dict[int, tuple[int, int]]:
    """From /proc/stat: per core (busy, all) in clock ticks since the machine started.

    Time that waits for a disk, or that another guest of the host took, is not busy.
    """
    found = {}
    for line in stat.split("\nintr", 1)[0].splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu" and len(fields) >= 8:
            user, nice, system, idle, waits, irq, soft, steal = map(int, fields[:8])
            busy = user + nice + system + irq + soft
            found[int(name[3:])] = busy, busy + idle + waits + steal
    return found


class Cores:
    """Use of the usable cores since the sample before."""

    def __init__(self, usable: tuple[int, ...], root: str = "/") -> None:
        self._usable = usable
        self._path = os.path.join(root, "proc/stat")
        self._before: dict[int, tuple[int, int]] = {}

    def read(self) -> tuple[float | None, float | None, str]:
        """% of all usable cores, of the busiest one, and a character per core.

        None, None and "" the first time.
        """
        now = core_times(text(self._path) or "")
        before, self._before = self._before, now
        used, spent, busiest, shown = 0, 0, 0.0, []
        for core in self._usable:
            busy, total = now.get(core, (0, 0))
            busy_before, total_before = before.get(core, (busy, total))
            busy, total = max(0, busy - busy_before), max(0, total - total_before)
            share = min(1.0, busy / total) if total else 0.0
            shown.append(_SCALE[round(10 * share)])
            busiest = max(busiest, share)
            used, spent = used + busy, spent + total
        if not spent:  # the first one, or a second one within a clock tick
            return None, None, ""
        return round(100 * used / spent, 1), round(100 * busiest, 1), "".join(shown)


def usable(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[int, ...]:
    """Numbers of the cores that the job may use, whatever the sampler itself is bound to.

    A job step of one core beside the training sees that core alone. The job's own cgroup, two
    levels up, says it best; where Slurm makes none (psslurm), a job that was given as many cores
    as there are has them all; else it is what this process may run on.
    """
    job = environment.get("SLURM_JOB_ID")
    if job:
        for group in _cpu_groups(root):
            for above in cgroup.upwards(group):
                if above.folder.name == f"job_{job}":
                    listed = _listed(above.folder)
                    if listed:
                        return listed
    everything = tuple(sorted(core_times(text(str(root / "proc/stat")) or "")))
    given = environment.get("SLURM_CPUS_ON_NODE", "")
    if everything and given.isascii() and given.isdigit() and int(given) >= len(everything):
        return everything
    return tuple(sorted(os.sched_getaffinity(0)))


def _cpu_groups(root: Path) -> list[cgroup.Group]:
    return cgroup.own(root, "cpuset")


def _listed(folder: Path) -> tuple[int, ...]:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        cores = numbers(text(str(folder / name)) or "")
        if cores:
            return cores
    return ()


def numbers(listed: str) -> tuple[int, ...]:
    """The kernel's short form of a set of numbers: "0-3,8" -> (0, 1, 2, 3, 8); empty if it is none.

    >>> numbers("0-3,8")
    (0, 1, 2, 3, 8)
    """
    found: set[int] = set()
    for part in listed.strip().split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if match is None:
            return ()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))
