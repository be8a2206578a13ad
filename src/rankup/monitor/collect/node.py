"""A node: the head line of its sampler, and one sample of everything that lines.py declares."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..lines import FS, Gpu, Head
from . import host
from .gpu import Failed, Gpus, Nvml
from .host import Cores, Devices, FileSystems, Limit, Rates, core_times, numbers, text
from .ranks import Ranks, Table

_TOLD = (
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_ON_NODE",
)
_LONGEST = 200


def name(environment: Mapping[str, str]) -> str:
    """Slurm's name of this node, else the host name, fit to be a file's name."""
    given = environment.get("SLURMD_NODENAME") or socket.gethostname()
    return safe(given)


def safe(given: str) -> str:
    """A name of anybody's as a file's name: nothing in it leads elsewhere or hides."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", given)[:_LONGEST].lstrip(".") or "node"


def attempt_of(environment: Mapping[str, str], now: float) -> str:
    """`<job>.<restart>` of Slurm, else when the sampler started."""
    job = environment.get("SLURM_JOB_ID")
    if job:
        return f"{job}.{environment.get('SLURM_RESTART_COUNT') or 0}"
    return f"{now:.0f}"


def open_source() -> tuple[Nvml | None, str | None]:
    """NVML; None and why where there is no GPU."""
    try:
        return Nvml(), None
    except Failed as error:
        return None, str(error)


def granted(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs with `granted` as far as it is known.

    Slurm's numbers are those of the node; where its cgroup hides the other GPUs, NVML counts anew
    from 0 and sees nothing but granted ones. CUDA_VISIBLE_DEVICES outside a job is what somebody
    wants to use, no grant, and says no more than that the others may be anybody's.
    """
    listed = _listed(environment)
    if listed is None:
        return tuple(gpus)
    names, ids = listed
    indices = {gpu.index for gpu in gpus}
    if not ids <= indices or (len(ids) == len(gpus) and not names):
        return tuple(replace(gpu, granted=True) for gpu in gpus)
    return tuple(
        replace(
            gpu,
            granted=gpu.index in ids or any(gpu.uuid.startswith(name) for name in names),
        )
        for gpu in gpus
    )


def _listed(environment: Mapping[str, str]) -> tuple[frozenset[str], frozenset[int]] | None:
    """(UUIDs, numbers) of granted GPUs; None where nobody says."""
    of_job = numbers(environment.get("SLURM_JOB_GPUS", ""))
    of_step = numbers(environment.get("SLURM_STEP_GPUS", ""))
    # The job's list is the first node's, carried to the others by the environment; the step's is
    # this node's, but a step may have got less than the job.
    best = of_job if set(of_step) <= set(of_job) else of_step
    if best:
        return frozenset(), frozenset(best)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    words = [word.strip() for word in visible.split(",") if word.strip()]
    ids = frozenset(int(word) for word in words if word.isascii() and word.isdigit())
    names = frozenset(word for word in words if word.startswith("GPU-"))
    return (names, ids) if ids or names else None


Row = list[str | float | None]


@dataclass(frozen=True)
class Sample:
    """The rows of one sample by kind, and what is to be written down beside them.

    Attributes:
        rows: as `lines.header` has them.
        gpu: rows of `lines.GPU`.
        ranks: that are running.
        notes: about GPUs.
    """

    rows: dict[str, list[Row]]
    gpu: list[list[float | None]]
    ranks: int
    notes: tuple[str, ...]


class Node:
    """All that is read of a node, over and over.

    Args:
        run: the run directory, by which ranks are known.
        root: where `proc` and `sys` are, for tests.
    """

    def __init__(
        self,
        run: Path,
        environment: Mapping[str, str],
        source: Nvml | None = None,
        gpus: tuple[Gpu, ...] = (),
        root: Path = Path("/"),
    ) -> None:
        self._environment, self._root = environment, str(root)
        self._usable = host.usable(environment, root)
        self._limit = Limit(environment, root)
        self._known = gpus
        self._gpus = Gpus(source, gpus)
        self._cores = Cores(self._usable, self._root)
        self._devices = Devices(self._root)
        self._systems = FileSystems(self._root)
        self._ranks = Ranks(str(run), Table(self._root))
        self._rates = Rates()

    def head(
        self, *, every: float, attempt: str | None, ranks: int | None, gpu_error: str | None
    ) -> Head:
        """The head line of a sampler that starts now; see `Head`."""
        found, now, known = host.memory(self._root), time.time(), self._environment
        stat = text(os.path.join(self._root, "proc/stat")) or ""
        return Head(
            node=name(known),
            t=round(now, 3),
            every=every,
            attempt=attempt or attempt_of(known, now),
            cores=len(core_times(stat)) or len(self._usable),
            usable=self._usable,
            memory=found.total if found else 0.0,
            memory_limit=self._limit.size,
            swap=found.swap if found else 0.0,
            gpus=self._known,
            gpu_error=gpu_error,
            ranks=ranks,
            environment={key: known[key] for key in _TOLD if key in known},
        )

    def read(self, now: float, seconds: float | None) -> Sample:
        """A sample.

        Args:
            now: unix seconds.
            seconds: since the last one; None for the first.
        """
        reading = self._gpus.read()
        indices = [gpu.index for gpu in self._known]
        *use, cores = self._cores.read()
        ranks = self._ranks.read(seconds)
        mounts = self._network_file_systems(seconds)
        when = [round(now, 3), None if seconds is None else round(seconds, 3)]
        host = [*use, *self._memory(), *self._traffic(seconds), *_sums(list(mounts.values()))]
        rows: dict[str, list[Row]] = {
            "gpu": [[*when, index, *row] for index, row in zip(indices, reading.rows, strict=True)],
            "host": [[*when, *host, cores]],
            "rank": [[*when, *row] for row in ranks],
            "fs": [[*when, _one_line(point), *rates] for point, rates in mounts.items()],
        }
        return Sample(rows, reading.rows, len(ranks), reading.notes)

    def _memory(self) -> list[float | None]:
        load = (text(os.path.join(self._root, "proc/loadavg"), short=True) or "").split()
        found = host.memory(self._root)
        return [
            float(load[0]) if load else None,
            found.used if found else None,
            self._limit.used(),
            found.swap_used if found else None,
        ]

    def _traffic(self, seconds: float | None) -> list[float | None]:
        rates: list[float | None] = []
        for name, pair in (
            ("disk", self._devices.disk()),
            ("net", self._devices.net()),
            ("ib", self._devices.infiniband()),
        ):
            for way, count in enumerate(pair or (None, None)):
                rates.append(self._rate((name, way), count, seconds))
        return rates

    def _network_file_systems(self, seconds: float | None) -> dict[str, list[float | None]]:
        found = {}
        for point, counts in self._systems.read().items():
            values = (counts.read, counts.write, counts.operations) if counts else (None,) * 3
            rates = [self._rate((point, way), value, seconds) for way, value in enumerate(values)]
            # One that never says anything is named by the first sample, and by no other.
            if counts is not None or seconds is None:
                found[point] = rates
        return found

    def _rate(
        self, key: tuple[str, int], count: float | None, seconds: float | None
    ) -> float | None:
        rate = self._rates.of(key, count, seconds)
        return None if rate is None else round(rate)


def _sums(rates: list[list[float | None]]) -> list[float | None]:
    """Read, written and operations of all file systems; None where none of them says."""
    known = [[rate for rate in way if rate is not None] for way in zip(*rates, strict=True)]
    return [sum(way) if way else None for way in known] or [None] * len(FS)


def _one_line(point: str) -> str:
    """A mount point whose row is one line, whatever it is called."""
    return point.translate({ord("\n"): " ", ord("\r"): " "})
