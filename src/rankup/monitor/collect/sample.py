"""One sample of a node: everything that lines.py declares, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..lines import FS, Gpu
from . import memory
from .cores import Cores
from .devices import Devices
from .filesystems import FileSystems
from .gpu import Gpus, Source
from .memory import Limit
from .processes import Table
from .ranks import Ranks
from .reading import Rates, text

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
        usable: numbers of the job's cores.
        root: where `proc` and `sys` are, for tests.
    """

    def __init__(
        self,
        run: Path,
        usable: tuple[int, ...],
        environment: Mapping[str, str],
        source: Source | None = None,
        gpus: tuple[Gpu, ...] = (),
        root: Path = Path("/"),
    ) -> None:
        self._root = str(root)
        self.limit = Limit(environment, root)
        self._indices = [gpu.index for gpu in gpus]
        self._gpus = Gpus(source, gpus)
        self._cores = Cores(usable, self._root)
        self._devices = Devices(self._root)
        self._systems = FileSystems(self._root)
        self._ranks = Ranks(str(run), Table(self._root))
        self._rates = Rates()

    def read(self, now: float, seconds: float | None) -> Sample:
        """A sample.

        Args:
            now: unix seconds.
            seconds: since the last one; None for the first.
        """
        reading = self._gpus.read()
        *use, cores = self._cores.read()
        ranks = self._ranks.read(seconds)
        mounts = self._network_file_systems(seconds)
        when = [round(now, 3), None if seconds is None else round(seconds, 3)]
        host = [*use, *self._memory(), *self._traffic(seconds), *_sums(list(mounts.values()))]
        rows: dict[str, list[Row]] = {
            "gpu": [
                [*when, index, *row] for index, row in zip(self._indices, reading.rows, strict=True)
            ],
            "host": [[*when, *host, cores]],
            "rank": [[*when, *row] for row in ranks],
            "fs": [[*when, _one_line(point), *rates] for point, rates in mounts.items()],
        }
        return Sample(rows, reading.rows, len(ranks), reading.notes)

    def _memory(self) -> list[float | None]:
        load = (text(os.path.join(self._root, "proc/loadavg"), short=True) or "").split()
        found = memory.read(self._root)
        return [
            float(load[0]) if load else None,
            found.used if found else None,
            self.limit.used(),
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
