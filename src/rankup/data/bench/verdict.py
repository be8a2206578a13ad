"""Which part limits, judged from what was measured: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .measured import Load, Measured

# A count of workers is good where more of them would not give more than this above it.
_CLOSE = 0.95
# Below this share of what its parts allow, handing batches over is what takes the time.
_HANDING = 0.6
# Below this share of a worker's own speed, workers hinder one another.
_SCALING = 0.6
# Seconds: what a first epoch may take without a word on its being slow.
_SOON = 60


@dataclass(frozen=True)
class Verdict:
    """What came of it.

    Attributes:
        limit: the part that there is most to gain from: `read`, `transform`, `collate`, `copy`, or
            `loader`, the way of batches from workers to the loop.
        share: of a worker's time that it takes; 0 for `copy` and `loader`.
        chosen: the smallest number of workers within 5 % of the fastest.
        supply: samples per second that this node gives.
        demand: as asked.
        enough: the smallest number of workers that meets the demand; None: no number does.
        cores: that the demand would take; None where it is met, or where cores would not help.
        first_epoch: samples per second while the file is read for the first time, if that is below
            the demand, takes more than a minute, and later epochs are faster; None otherwise.
        cold: each epoch reads from storage, since the data is larger than the memory.
        crowded: workers hinder one another: this much of a worker's speed is left with `chosen`.
    """

    limit: str
    share: float
    chosen: Load
    supply: float
    demand: float
    enough: Load | None = None
    cores: float | None = None
    first_epoch: float | None = None
    cold: bool = False
    crowded: float | None = None

    @property
    def met(self) -> bool:
        """Whether the demand is met."""
        return self.supply >= self.demand


def judge(measured: Measured) -> Verdict:
    """The verdict on what was measured; `loads` has one entry or more."""
    data, parts = measured.data, measured.parts
    chosen = choose(measured.loads, data.cores)
    works = _works(measured, cold=False)
    cold = parts.cold is not None and not data.resident and data.size > data.memory
    busy = max(1, min(chosen.workers, data.cores))
    fed = slowed = chosen.rate.median
    if parts.cold is not None and fed > 0:
        # Each worker waits for storage by itself, so that their waiting adds to their work.
        slowed = busy / (busy / fed + max(0.0, parts.cold.median - parts.read.median))
    if cold:
        works, fed = _works(measured, cold=True), slowed
    copied = math.inf if parts.copy is None else _ratio(max(1, data.gpus), parts.copy.median)
    supply = min(fed, copied)
    limit = max(works, key=lambda name: works[name])
    share = _ratio(works[limit], sum(works.values()))
    alike = [load for load in measured.loads if load.kind == chosen.kind]
    one = min(alike, key=lambda load: load.workers)
    warm = sum(_works(measured, cold=False).values())
    alone, together = (_efficiency(load, data.cores, warm) for load in (one, chosen))
    if copied < fed:
        limit, share = "copy", 0.0
    elif alone < _HANDING:
        limit, share = "loader", 0.0
    short = supply < measured.demand
    takes = short and limit not in ("copy", "loader") and fed > 0
    left = _ratio(together, alone)
    slow_once = slowed < measured.demand and data.samples > _SOON * slowed
    waits = slow_once and not (short or data.resident or cold)
    return Verdict(
        limit,
        share,
        chosen,
        supply,
        measured.demand,
        enough=None if short else _enough(measured, supply),
        cores=busy * measured.demand / fed if takes else None,
        first_epoch=slowed if waits else None,
        cold=cold,
        crowded=left if left < _SCALING and limit != "copy" else None,
    )


def choose(loads: Sequence[Load], cores: int) -> Load:
    """The smallest number of workers within 5 % of the fastest, of those up to the cores if any."""
    able = [load for load in loads if load.workers <= cores] or list(loads)
    best = max(load.rate.median for load in able)
    near = [load for load in able if load.rate.median >= _CLOSE * best]
    return min(near, key=_small)


def _works(measured: Measured, *, cold: bool) -> dict[str, float]:
    """Seconds per sample of the parts that a worker does."""
    parts = measured.parts
    read = parts.cold if cold and parts.cold is not None else parts.read
    named = {"read": read, "transform": parts.transform, "collate": parts.collate}
    return {name: spread.median for name, spread in named.items() if spread is not None}


def _enough(measured: Measured, supply: float) -> Load | None:
    """Of the loads that meet the demand the smallest; slowed down as the supply is."""
    full = choose(measured.loads, measured.data.cores).rate.median
    slowed = min(1.0, _ratio(supply, full))
    able = [load for load in measured.loads if load.rate.median * slowed >= measured.demand]
    return min(able, key=_small, default=None)


def _small(load: Load) -> tuple[int, bool, float]:
    """Few workers first; of as many, threads, which share their memory."""
    return load.workers, load.kind != "threads", -load.rate.median


def _efficiency(load: Load, cores: int, work: float) -> float:
    """Of what its workers could do by the times of the parts, the share that comes out."""
    return load.rate.median * work / max(1, min(load.workers, cores))


def _ratio(one: float, other: float) -> float:
    if other > 0:
        return one / other
    return math.inf if one > 0 else 1.0
