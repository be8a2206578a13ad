"""Parts that all rules share: codes, a finding about a run, and the time of a run that is judged.

Codes are stable, and `docs/findings/CODE.md` explains each. Judged is what lies inside attempts,
after the warm-up, outside explained pauses. Pauses are times between steps, of which somebody may
say what they were for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.findings import Finding
from .. import billing
from ..billing import in_attempts
from ..recording import Array, Recording
from ..thresholds import LIMITS
from ..thresholds import UNUSED as UNUSED

IDLE = "RK702"
LOW = "RK703"
STARVED = "RK704"
IMBALANCE = "RK705"
SPINNING = "RK706"
MEMORY_FAR = "RK707"
MEMORY_NEAR = "RK708"
OVERSUBSCRIBED = "RK709"
FEW_CORES = "RK710"
POWER = "RK711"
HEAT = "RK712"
SWAP = "RK713"
HOST_MEMORY = "RK714"
CHECKPOINTS = "RK715"
LIMIT_LONG = "RK716"
LIMIT_HIT = "RK717"
SHORT = "RK718"
FILE_SYSTEM = "RK719"
LOSS_NAN = "RK720"
LOSS_FLAT = "RK721"
GAPS = "RK722"
GPU_LOST = "RK723"
FAILED = "RK724"
WAITING = "RK725"
STALLED = "RK726"

Window = tuple[float, float]


@dataclass(frozen=True)
class Diagnosis(Finding):
    """A finding about a run, with its cost and its place in the plots.

    Attributes:
        cost: in `unit`; what the finding wasted and no other finding of the run has counted
            already; None where it has no cost that can be told.
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
    found: list[Window] = []
    for begin, end in sorted(windows):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


_EXPLAINED = ("checkpoint", "validation")


@dataclass(frozen=True)
class Pause:
    """Time without a step, unix seconds; `why`: checkpoint, validation, or stall for no reason."""

    begin: float
    end: float
    why: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def pauses(recording: Recording) -> tuple[Pause, ...]:
    """Steps that took many times the median, and events that say how long they took.

    A long step belongs to a checkpoint or a validation that ended in it or right before it.
    """
    steps = recording.steps
    known = np.isfinite(steps.seconds) & np.isfinite(steps.time)
    found: list[Pause] = []
    if known.any():
        usual = float(np.median(steps.seconds[known]))
        least = max(LIMITS.pause_least, LIMITS.pause_times * usual)
        for at in np.flatnonzero(known & (steps.seconds > least)).tolist():
            end = float(steps.time[at])
            found.append(_named(end - float(steps.seconds[at]), end, usual, recording))
    found += [
        Pause(event.time - event.seconds, event.time, event.kind)
        for event in recording.events
        if event.kind in _EXPLAINED and event.seconds > 0
    ]
    return tuple(sorted(found, key=lambda pause: (pause.begin, pause.end)))


def _named(begin: float, end: float, usual: float, recording: Recording) -> Pause:
    for event in recording.events:
        near = begin - usual - 1 <= event.time <= end + usual + 1
        if event.kind in _EXPLAINED and near:
            return Pause(begin, end, event.kind)
    for attempt in billing.attempts(recording):
        # Compilation and the first batches are no pause of the training.
        if attempt.begin <= begin <= attempt.begin + LIMITS.warm_up:
            return Pause(begin, end, "start")
    return Pause(begin, end, "stall")


Mask = NDArray[np.bool_]


def judged(recording: Recording) -> Mask:
    """(bins,) bins of an attempt after its warm-up that no validation or checkpoint falls into."""
    times = recording.times
    inside = in_attempts(recording)
    for attempt in billing.attempts(recording):
        # The first bin that lies wholly after it.
        warm = (times >= attempt.begin) & (
            times < attempt.begin + LIMITS.warm_up + recording.width / 2
        )
        inside &= ~warm
    for pause in pauses(recording):
        if pause.why != "stall":
            inside &= ~(
                np.abs(times - (pause.begin + pause.end) / 2)
                < ((pause.end - pause.begin) / 2 + recording.width / 2)
            )
    return inside


def gpu_seconds(recording: Recording, mask: Mask | None = None) -> Array:
    """(bins, GPUs) seconds of judged time that samples stand for."""
    mask = judged(recording) if mask is None else mask
    covered = recording.covered * np.float32(recording.width) * mask[:, None]
    return np.nan_to_num(covered[:, recording.gpu_node])


def node_seconds(recording: Recording, mask: Mask | None = None) -> Array:
    """(bins, nodes) seconds of judged time that samples stand for."""
    mask = judged(recording) if mask is None else mask
    return np.nan_to_num(recording.covered * np.float32(recording.width) * mask[:, None])


def mean(values: Array, seconds: Array) -> NDArray[np.float64]:
    """(things,) mean over time of (bins, things) values, weighted; NaN where nothing is known."""
    weight = np.where(np.isfinite(values), seconds, 0)
    total = weight.sum(axis=0, dtype=np.float64)
    done = np.nansum(np.where(weight > 0, values, 0) * weight, axis=0, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, done / total, np.nan)


def percentile(values: Array, seconds: Array, percent: float) -> NDArray[np.float64]:
    """(things,) percentile over the bins with judged time; NaN where there are none."""
    return _quiet(lambda seen: np.nanpercentile(seen, percent, axis=0), values, seconds)


def highest(values: Array, seconds: Array) -> NDArray[np.float64]:
    """(things,) highest value in the bins with judged time."""
    return _quiet(lambda seen: np.nanmax(seen, axis=0), values, seconds)


def stretches(mask: Mask, recording: Recording, least: float) -> tuple[Window, ...]:
    """Windows of unix seconds of at least `least` seconds in which a (bins,) mask holds."""
    padded = np.concatenate([[False], mask, [False]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(padded)).reshape(-1, 2)
    begin, width = recording.begin, recording.width
    found = ((begin + first * width, begin + last * width) for first, last in edges.tolist())
    return tuple((first, last) for first, last in found if last - first >= least)


def _quiet(
    reduce: Callable[[Array], NDArray[Any]], values: Array, seconds: Array
) -> NDArray[np.float64]:
    seen = np.where(seconds > 0, values, np.nan)
    if not len(seen):
        return np.full(values.shape[1], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column of NaN has no highest value
        return np.asarray(reduce(seen), np.float64)
