"""The part that all rules share: a finding, and the time and the GPUs of a run that are judged.

Codes are stable, and `docs/findings/CODE.md` explains each. Judged is what lies inside attempts,
after the warm-up, outside explained pauses. Pauses are times between steps, of which somebody may
say what they were for.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...base.findings import Finding
from ...slurm.job import Attempt
from .. import billing
from ..billing import Bill, Work
from ..recording import Array, Recording, stretches, union, weighted
from ..recording import highest as top
from ..thresholds import LIMITS

Window = tuple[float, float]
Mask = NDArray[np.bool_]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Diagnosis(Finding):
    """A finding about a run, with its cost and its place in the plots.

    Attributes:
        cost: in `unit`; what the finding wasted by itself; None where it has no cost that can be
            told.
        unit: the site's, see `billing.Bill`.
        windows: (begin, end) in unix seconds; none: the whole run.
        gpus: columns of `recording.gpu`; nodes: places in `recording.heads`; none of both: all.
        share: the most of the time of those GPUs (or nodes) in those windows, 0 to 1, that the
            finding explains; 0 for one that wastes nothing by itself.
    """

    cost: float | None = None
    unit: str = ""
    windows: tuple[Window, ...] = ()
    gpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    share: float = 0.0


def merged(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Windows in order, those that overlap or touch as one."""
    found = union(np.array(list(windows), np.float64).reshape(-1, 2), 0.0)
    return tuple((begin, end) for begin, end in found.tolist())


_EXPLAINED = ("checkpoint", "validation")


@dataclass(frozen=True)
class Pause:
    """Time without a step, unix seconds; `why`: checkpoint, validation, or stall for no reason."""

    begin: float
    end: float
    why: str


class Look:
    """A recording, and what several rules ask of it, each worked out once."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        return billing.attempts(self.recording)

    @cached_property
    def bill(self) -> Bill:
        return billing.bill(self.recording)

    @cached_property
    def work(self) -> Work:
        return billing.work(self.recording)

    @cached_property
    def in_attempts(self) -> Mask:
        return billing.in_attempts(self.recording)

    @property
    def ran(self) -> float:
        """Seconds of all attempts together."""
        return sum(self.bill.seconds)

    @cached_property
    def judged(self) -> Mask:
        """(bins,) bins of an attempt after its warm-up without a validation or checkpoint."""
        times, width = self.recording.times, self.recording.width
        inside = self.in_attempts.copy()
        for attempt in self.attempts:
            # The first bin that lies wholly after it.
            warm = (times >= attempt.begin) & (times < attempt.begin + LIMITS.warm_up + width / 2)
            inside &= ~warm
        for pause in self.pauses:
            if pause.why != "stall":
                middle = (pause.begin + pause.end) / 2
                inside &= ~(np.abs(times - middle) < (pause.end - pause.begin) / 2 + width / 2)
        return inside

    def covered(self, mask: Mask) -> Array:
        """(bins, nodes) seconds that samples stand for in the bins of a mask."""
        covered = self.recording.covered * np.float32(self.recording.width)
        return np.nan_to_num(covered * mask[:, None])

    @cached_property
    def node_seconds(self) -> Array:
        """(bins, nodes) seconds of judged time that samples stand for."""
        return self.covered(self.judged)

    @cached_property
    def seconds(self) -> Array:
        """(bins, GPUs) seconds of judged time that samples stand for."""
        return self.node_seconds[:, self.recording.gpu_node]

    @property
    def long_enough(self) -> bool:
        """True if the GPUs of the run can be judged at all."""
        if not len(self.recording.gpus) or self.recording.facts.gpus == 0:
            return False
        return lasts(self.seconds)

    def gpu(self, channel: str) -> Values:
        """(GPUs,) mean of a channel over judged time."""
        return weighted(self.recording.gpu[channel].mean, self.seconds)

    def peak(self, channel: str) -> Values:
        """(GPUs,) highest value of a channel in judged time."""
        return highest(self.recording.gpu[channel].high, self.seconds)

    @cached_property
    def use(self) -> Values:
        """(GPUs,) mean use in %."""
        return self.gpu("util")

    @cached_property
    def power_share(self) -> Array:
        """(bins, GPUs) mean power over the limit."""
        return billing.power_share(self.recording, np.arange(len(self.recording.gpus)))

    @cached_property
    def power(self) -> Values:
        """(GPUs,) mean power over the limit."""
        return weighted(self.power_share, self.seconds)

    @cached_property
    def billed(self) -> Mask:
        """(GPUs,) those on the bill."""
        return billing.billed(self.recording)

    @cached_property
    def unused(self) -> Mask:
        """(GPUs,) billed ones that did nothing: next to no use, no process, hardly any memory."""
        if not self.long_enough:
            return np.zeros(len(self.recording.gpus), bool)
        util = self.recording.gpu["util"].mean
        calm = np.where(np.isfinite(util), util <= LIMITS.unused_util, np.nan)
        nobody = ~(self.gpu("processes") > 0.05)  # not known counts as nobody
        empty = ~(self.peak("memory") >= LIMITS.unused_memory)
        still = weighted(calm, self.seconds) >= LIMITS.unused_share
        return self.billed & still & nobody & empty

    @property
    def used(self) -> Mask:
        """(GPUs,) billed ones that did something."""
        return self.billed & ~self.unused

    @cached_property
    def pauses(self) -> tuple[Pause, ...]:
        """Steps that took many times the median, and events that say how long they took.

        A long step belongs to a checkpoint or a validation that ended in it or right before it.
        """
        steps = self.recording.steps
        known = np.isfinite(steps.seconds) & np.isfinite(steps.time)
        found: list[Pause] = []
        if known.any():
            usual = float(np.median(steps.seconds[known]))
            least = max(LIMITS.pause_least, LIMITS.pause_times * usual)
            for at in np.flatnonzero(known & (steps.seconds > least)).tolist():
                end = float(steps.time[at])
                found.append(self._named(end - float(steps.seconds[at]), end, usual))
        found += [
            Pause(event.time - event.seconds, event.time, event.kind)
            for event in self.recording.events
            if event.kind in _EXPLAINED and event.seconds > 0
        ]
        return tuple(sorted(found, key=lambda pause: (pause.begin, pause.end)))

    def _named(self, begin: float, end: float, usual: float) -> Pause:
        for event in self.recording.events:
            near = begin - usual - 1 <= event.time <= end + usual + 1
            if event.kind in _EXPLAINED and near:
                return Pause(begin, end, event.kind)
        for attempt in self.attempts:
            # Compilation and the first batches are no pause of the training.
            if attempt.begin <= begin <= attempt.begin + LIMITS.warm_up:
                return Pause(begin, end, "start")
        return Pause(begin, end, "stall")

    def stretches(self, mask: Mask, least: float) -> tuple[Window, ...]:
        """Windows of unix seconds of at least `least` seconds in which a (bins,) mask holds."""
        begin, width = self.recording.begin, self.recording.width
        found = [(begin + a * width, begin + b * width) for a, b in stretches(mask)]
        return tuple((first, last) for first, last in found if last - first >= least)

    def until_the_end(self, window: Window) -> bool:
        return window[1] >= self.recording.end - LIMITS.warm_up


def lasts(seconds: Array) -> bool:
    """True if (bins, things) seconds are enough of any thing to be judged."""
    return float(seconds.sum(axis=0).max(initial=0)) >= LIMITS.judged_least


def places(mask: Mask) -> tuple[int, ...]:
    """The places at which a mask holds."""
    return tuple(np.flatnonzero(mask).tolist())


def longest(windows: Iterable[Window]) -> Window:
    return max(windows, key=lambda window: window[1] - window[0])


def percentile(values: Array, seconds: Array, percent: float) -> Values:
    """(things,) percentile over the bins with judged time; NaN where there are none."""
    seen = np.where(seconds > 0, values, np.nan)
    if not len(seen):
        return np.full(values.shape[1], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column of NaN has none
        return np.asarray(np.nanpercentile(seen, percent, axis=0), np.float64)


def highest(values: Array, seconds: Array) -> Values:
    """(things,) highest value in the bins with judged time."""
    return top(np.where(seconds > 0, values, np.nan)).astype(np.float64)
