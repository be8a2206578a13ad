"""The bill of a run, nodes x time in the site's unit, and how much of that did work.

The latter is one number, for GPUs by use and power, else by CPU use.

Use alone lies: a GPU that waits in a collective says 100 %, and so does one whose kernels are too
small to matter. Both draw little power. Power alone lies as well: training that is bound by memory
bandwidth draws half of the limit and yet is as fast as that GPU can be. So a GPU's work is

    min(use, (power / limit - floor) / (full - floor)), cut to 0 ... 1

with floor a power at which nothing is computed and full one at which nobody could ask for more
(`thresholds`). Where a driver tells no power, use has to do, and where it tells no use (MIG),
power; the formula says so. Nodes without GPUs count by what the ranks and their data workers use of
the cores that the job may use.

What the attempts of a run were billed for is the weight; time that no sample covers is taken to be
like the time that one does, so that used and wasted make up the bill.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..slurm.job import Attempt
from .recording import Array, Recording
from .thresholds import LIMITS


@dataclass(frozen=True)
class Bill:
    """What a run costs so far.

    Attributes:
        seconds: of each attempt, in order.
        node_seconds: of all attempts, nodes counted.
        unit: the site's; without one `GPU-h`, on CPU nodes `node-h`.
        per_node_hour: units.
        priced: whether `unit` is the site's own.
        units: in all; attempts: of each attempt.
    """

    seconds: tuple[float, ...]
    node_seconds: float
    unit: str
    per_node_hour: float
    priced: bool
    units: float
    attempts: tuple[float, ...]


def bill(recording: Recording) -> Bill:
    """The bill of all attempts of a run; what still runs counts up to its last sample."""
    facts = recording.facts
    known = attempts(recording)
    seconds = tuple(length(attempt, recording) for attempt in known)
    nodes = [
        len(attempt.nodes) or attempt.asked.get("nodes") or max(1, facts.nodes) for attempt in known
    ]
    gpus = facts.gpus
    if gpus is None:
        per_node = np.bincount(recording.gpu_node[billed(recording)], minlength=1)
        gpus = int(per_node.max()) if len(recording.gpus) else 0
    if facts.unit and facts.per_node_hour is not None:
        unit, rate, priced = facts.unit, facts.per_node_hour, True
    else:
        unit, rate, priced = ("GPU-h", float(gpus), False) if gpus else ("node-h", 1.0, False)
    each = [one * count for one, count in zip(seconds, nodes, strict=True)]
    rates = [_rate(attempt, unit) if priced else None for attempt in known]
    units = tuple(
        (rate if own is None else own) * one / 3600 for own, one in zip(rates, each, strict=True)
    )
    return Bill(seconds, sum(each), unit, rate, priced, sum(units), units)


def _rate(attempt: Attempt, unit: str) -> float | None:
    """Units per hour of one node of an attempt; None: as the newest one."""
    own = attempt.asked.get("bill") or {}
    return own.get("per_node_hour") if own.get("unit") == unit else None


def attempts(recording: Recording) -> tuple[Attempt, ...]:
    """The attempts of a run; where nobody wrote one down, one as long as its record."""
    whole = Attempt(
        None,
        "UNKNOWN",
        "",
        "none",
        live=recording.running,
        nodes=recording.nodes,
        started=recording.begin,
    )
    return recording.facts.attempts or (whole,)


def goes_on(recording: Recording) -> bool:
    """True if the run has not ended, as far as anybody says."""
    return recording.running or attempts(recording)[-1].state == "RUNNING"


def end_of(attempt: Attempt, recording: Recording) -> float:
    """When an attempt ended, or was last heard of; unix seconds."""
    if attempt.ended is not None:
        return attempt.ended
    return max(attempt.begin, recording.end)


def length(attempt: Attempt, recording: Recording) -> float:
    """Seconds of an attempt."""
    return max(0.0, end_of(attempt, recording) - attempt.begin)


def billed(recording: Recording) -> NDArray[np.bool_]:
    """(GPUs,) whether each GPU is on the bill: a node may hold others that a neighbour has."""
    facts, nodes = recording.facts, recording.gpu_node
    granted = [gpu.granted for gpu in recording.gpus]
    paid = np.ones(len(recording.gpus), bool)
    for node in range(len(recording.heads)):
        own = np.flatnonzero(nodes == node)
        if facts.gpus is None:
            paid[own] = [granted[column] is not False for column in own]
        elif facts.gpus < len(own):
            # Those of this job first; where nobody says which, those that did something.
            use = (
                recording.gpu["util"].mean[:, own] if "util" in recording.gpu else np.zeros((0, 1))
            )
            busy = np.nansum(use, axis=0) if use.size else np.zeros(len(own))
            first = sorted(
                range(len(own)), key=lambda at: (granted[own[at]] is not True, -busy[at])
            )
            paid[own[first[facts.gpus :]]] = False
    return paid


@dataclass(frozen=True)
class Work:
    """Share of each billed thing, GPU or node, that worked.

    Attributes:
        things: columns of `recording.gpu`, or without GPUs of `recording.host`.
        node: (things,) place of each one's node.
        share: (bins, things) 0 to 1; NaN where not known.
        seconds: (bins, things) that `share` stands for within the attempts of the run.
        formula: of `share`, in words.
        per_gpu: whether the things are GPUs.
    """

    things: NDArray[np.int64]
    node: NDArray[np.int64]
    share: Array
    seconds: Array
    formula: str
    per_gpu: bool

    @property
    def known(self) -> float:
        """Seconds of all things with a share."""
        return float(self.seconds.sum(dtype=np.float64))

    @property
    def efficiency(self) -> float | None:
        """Mean share, 0 to 1, over all known time; None where nothing is known."""
        if not self.known:
            return None
        done = np.nansum(self.share * self.seconds, dtype=np.float64)
        return float(done) / self.known


def work(recording: Recording) -> Work:
    """The work of every billed GPU; on nodes without any, every node."""
    columns = np.flatnonzero(billed(recording))
    if recording.facts.gpus or len(columns):
        share, formula = _of_gpus(recording, columns)
        node = recording.gpu_node[columns]
        per_gpu = True
    else:
        columns = np.arange(len(recording.heads))
        share, formula = _of_nodes(recording)
        node, per_gpu = columns, False
    covered = recording.covered[:, node] * recording.width
    inside = in_attempts(recording)[:, None]
    seconds = np.where(inside & np.isfinite(share), covered, 0).astype(np.float32)
    if len(columns) and not seconds.any() and not formula.startswith("not known"):
        formula = "not known: no sample tells of it"
    return Work(columns, node, share, np.nan_to_num(seconds), formula, per_gpu)


def in_attempts(recording: Recording) -> NDArray[np.bool_]:
    """(bins,) whether the middle of a bin lies in an attempt of the run."""
    times = recording.times
    inside = np.zeros(recording.bins, bool)
    # A sampler outlives its attempt by a sample, and a bin's middle may lie after a short attempt.
    slack = recording.width / 2
    for attempt in attempts(recording):
        end = end_of(attempt, recording)
        inside |= (times >= attempt.begin - slack) & (times <= end + slack)
    return inside


def power_share(recording: Recording, columns: NDArray[np.int64]) -> Array:
    """(bins, columns) mean power over the limit; NaN where one of them is not known."""
    limits = np.array(
        [recording.gpus[column].power_limit or np.nan for column in columns], dtype=np.float32
    )
    return (recording.gpu["power"].mean[:, columns] / limits).astype(np.float32)


def _of_gpus(recording: Recording, columns: NDArray[np.int64]) -> tuple[Array, str]:
    if not len(columns):
        return np.zeros((recording.bins, 0), np.float32), "not known: no GPU could be read"
    use = np.clip(recording.gpu["util"].mean[:, columns] / 100, 0, 1)
    power = power_share(recording, columns)
    floor, full = LIMITS.power_floor, LIMITS.power_full
    drawn = np.clip((power - floor) / (full - floor), 0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        share = np.fmin(use, drawn).astype(np.float32)
    text = (
        f"mean over all billed GPU time of min(use, (power/limit - {floor:.2f}) / "
        f"{full - floor:.2f}), cut to 0..1"
    )
    seen = np.isfinite(use)
    if seen.any() and not (seen & np.isfinite(drawn)).any():
        text = "mean over all billed GPU time of the use of the GPU (its power is not known)"
    elif not seen.any() and np.isfinite(drawn).any():
        text = text.replace("min(use, (power", "((power").replace("), cut", ", cut")
        text += " (its use is not known)"
    return share, text


def _of_nodes(recording: Recording) -> tuple[Array, str]:
    """(bins, nodes): by the ranks and their data workers; what others compute there is no work."""
    share = np.full((recording.bins, len(recording.heads)), np.nan, np.float32)
    if not len(recording.ranks):
        return share, "not known: no rank was seen"
    cores = np.zeros((recording.bins, len(recording.heads)))  # in % of one
    for name in ("cpu", "workers_cpu"):
        if name in recording.rank:
            used = np.nan_to_num(recording.rank[name].mean)
            np.add.at(cores.T, recording.rank_node, used.T)
    usable = np.array([max(1, len(head.usable)) for head in recording.heads], np.float32)
    share = np.clip(cores / usable / LIMITS.cpu_full, 0, 1).astype(np.float32)
    return share, (
        "mean over all billed node time of min(1, CPU use of the ranks and their data workers / "
        f"{LIMITS.cpu_full:.0f} %) of the usable cores (every second may be a hyperthread)"
    )


@dataclass(frozen=True)
class Cost:
    """The cost of a run; amounts in `unit`.

    Attributes:
        unit: the site's; `GPU-h` or `node-h` where it has none.
        priced: whether it is the site's own.
        per_node_hour: of one node.
        node_hours: nodes x hours, all attempts.
        billed: in all; attempts: of each attempt.
        efficiency: 0 to 1; None where nothing is known of what the GPUs did.
        formula: of it, in words.
        used, wasted: together `billed`; None without an efficiency.
        seen: share of the billed time, 0 to 1, that samples tell of.
    """

    unit: str
    priced: bool
    per_node_hour: float
    node_hours: float
    billed: float
    attempts: tuple[float, ...]
    efficiency: float | None
    formula: str
    used: float | None
    wasted: float | None
    seen: float


def cost(recording: Recording) -> Cost:
    """The cost of a run."""
    paid, done = bill(recording), work(recording)
    efficiency = done.efficiency
    used = wasted = None
    if efficiency is not None:
        used = paid.units * efficiency
        wasted = paid.units - used
    per_node = len(done.things) / max(1, len(recording.heads)) or 1
    all_seconds = paid.node_seconds * per_node
    return Cost(
        unit=paid.unit,
        priced=paid.priced,
        per_node_hour=paid.per_node_hour,
        node_hours=paid.node_seconds / 3600,
        billed=paid.units,
        attempts=paid.attempts,
        efficiency=efficiency,
        formula=done.formula,
        used=used,
        wasted=wasted,
        seen=min(1.0, done.known / all_seconds) if all_seconds else 0.0,
    )
