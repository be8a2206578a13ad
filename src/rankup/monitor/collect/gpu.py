"""A row per GPU of the node, from what answers for them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from ..lines import GPU, Gpu
from .host import Rates

# Questions to `Source.ask`, units as in lines.GPU; energy in J since some time, and the traffic of
# the moment in bytes/s.
QUESTIONS = ("util", "memory", "power", "energy", "temperature", "clock", "throttle", "processes")
MOMENTARY = ("pcie_rx", "pcie_tx")
# NVML measures PCIe traffic over 20 ms in which the call does not return, 160 ms for four GPUs and
# two directions. Where the driver has no counters of it, one GPU is asked per so many seconds, and
# the others have null meanwhile.
_BETWEEN_MOMENTS = 10.0
# An H100 takes 4.2 ms of the host's CPU to say what energy it has used, a thousand times what its
# power costs, which is a mean over a second there. Where the cheapest of some answers is dearer
# than this, the power is asked for alone.
_DEAR_SECONDS = 1e-3
_TRIES = 3


class NotThere(Exception):  # noqa: N818 - an answer, and the usual one
    """This GPU, its driver or our rights never give an answer to this."""


class Lost(Exception):  # noqa: N818
    """The GPU has fallen off the bus; it comes back with a reset at the earliest."""


class Failed(Exception):  # noqa: N818
    """No answer this time."""


class Source(Protocol):
    """What knows the GPUs of this node."""

    def gpus(self) -> list[Gpu]:
        """All that may be asked, without `granted`."""

    def ask(self, index: int, what: str) -> float:
        """The answer of GPU `index` (`Gpu.index`) to one of `QUESTIONS` or `MOMENTARY`.

        Raises:
            NotThere, Lost, Failed: there is none.
        """

    def counters(self, index: int) -> dict[str, float]:
        """Bytes since some time: `pcie_rx`, `pcie_tx`, `nvlink`, those that there are.

        Raises:
            NotThere, Lost, Failed: there are none.
        """


@dataclass(frozen=True)
class Reading:
    """All GPUs at one time: rows of `lines.GPU`, and what is to be written down about them."""

    rows: list[list[float | None]]
    notes: tuple[str, ...] = ()


class Gpus:
    """Reads all GPUs of the node, each question by itself: any may fail, and none ends it."""

    def __init__(self, source: Source | None, gpus: tuple[Gpu, ...]) -> None:
        self._source, self._gpus = source, gpus
        self._rates = Rates()
        self._asked: dict[tuple[int, str], float] = {}  # when, of counters
        self._never: set[tuple[int, str]] = set()
        self._lost: set[int] = set()
        self._energy_costs: dict[int, list[float]] = {}
        self._turn, self._moment = 0, -_BETWEEN_MOMENTS
        self._notes: list[str] = []

    def read(self) -> Reading:
        """One row per GPU; rates are since the last call."""
        rows = [self._row(gpu.index) for gpu in self._gpus]
        notes, self._notes = tuple(self._notes), []
        return Reading(rows, notes)

    def _row(self, index: int) -> list[float | None]:
        found: dict[str, float | None] = {}
        for what in QUESTIONS:
            if what not in ("power", "energy"):
                found[what] = self._ask(index, what)
        # The mean since the last sample; what the GPU says of this moment jumps with each kernel.
        mean = self._rate(index, "energy", self._energy(index))
        found["power"] = self._ask(index, "power") if mean is None else round(mean, 1)
        for what, count in self._counters(index).items():
            rate = self._rate(index, what, count)
            found[what] = None if rate is None else round(rate)
        if not {"pcie_rx", "pcie_tx"} & found.keys():
            found |= self._momentary(index)
        return [_whole(found.get(name)) for name in GPU]

    def _energy(self, index: int) -> float | None:
        began = time.process_time()
        found = self._ask(index, "energy")
        costs = self._energy_costs.setdefault(index, [])
        if len(costs) < _TRIES:
            costs.append(time.process_time() - began)
            if len(costs) == _TRIES and min(costs) > _DEAR_SECONDS:
                self._never.add((index, "energy"))
        return found

    def _rate(self, index: int, what: str, count: float | None) -> float | None:
        key, now = (index, what), time.monotonic()
        before = self._asked.get(key)
        self._asked[key] = now
        return self._rates.of(key, count, None if before is None else now - before)

    def _momentary(self, index: int) -> dict[str, float | None]:
        living = [gpu.index for gpu in self._gpus if gpu.index not in self._lost]
        turn = living and living[self._turn % len(living)] == index
        if not turn or time.monotonic() - self._moment < _BETWEEN_MOMENTS:
            return {}
        self._turn, self._moment = self._turn + 1, time.monotonic()
        return {what: self._ask(index, what) for what in MOMENTARY}

    def _ask(self, index: int, what: str) -> float | None:
        if self._source is None or index in self._lost or (index, what) in self._never:
            return None
        try:
            return self._source.ask(index, what)
        except (NotThere, Lost, Failed) as why:
            self._note(index, what, why)
            return None

    def _counters(self, index: int) -> dict[str, float]:
        if self._source is None or index in self._lost or (index, "counters") in self._never:
            return {}
        try:
            return self._source.counters(index)
        except (NotThere, Lost, Failed) as why:
            self._note(index, "counters", why)
            return {}

    def _note(self, index: int, what: str, why: Exception) -> None:
        if isinstance(why, Lost):
            self._lost.add(index)
            self._notes.append(f"GPU {index} is lost: the driver says {why}")
        elif isinstance(why, NotThere):
            self._never.add((index, what))


def _whole(value: float | None) -> float | None:
    """An integer where it is one: bits of reasons are, and lines are shorter for it."""
    return int(value) if value is not None and value == int(value) else value
