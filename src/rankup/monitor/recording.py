"""A run as it was recorded: arrays over time for GPUs, nodes and ranks, its steps and events.

One form for a run of a minute and one of a day on a thousand GPUs: time is cut into bins of equal
width, each at least as long as a sample stands for, and every value is kept as the lowest, the mean
and the highest of its bin, so that no peak is lost. What was not sampled is NaN.

There is at least one bin. Where nobody sampled, the arrays of nodes, GPUs and ranks have no
columns, and bins go over the attempts and steps that are known; where nothing at all is known of a
run, there is one bin of a second at time 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..slurm.job import Attempt
from .lines import HOST as HOST
from .lines import RANK as RANK
from .lines import Gpu, Head
from .profiles import Profile

Array = NDArray[np.float32]

# Channels per GPU: the columns of `lines.GPU`, but the throttle bits, which are the share of the
# bin (0 to 1) with a bit of that kind set.
GPU = (
    *("util", "memory", "power", "temperature", "clock"),
    *("throttle_power", "throttle_heat", "throttle_hardware"),
    *("pcie_rx", "pcie_tx", "nvlink", "processes"),
)
# Per node and per rank: those of `lines.HOST` and `lines.RANK`.


@dataclass(frozen=True)
class Band:
    """A channel: lowest, mean, highest of each bin, arrays (bins, things); NaN: no sample."""

    low: Array
    mean: Array
    high: Array


@dataclass(frozen=True)
class Gap:
    """A stretch in which a node that should have been sampled was not; unix seconds.

    Attributes:
        why: "killed" (the sampler ended without a word), "not started", "torn" (lines that could
            not be read), "between attempts".
    """

    node: str
    begin: float
    end: float
    why: str


@dataclass(frozen=True)
class Event:
    """Something at one time.

    Attributes:
        kind: start, resume, end, checkpoint, validation or note.
        seconds: how long it took; 0 for a moment.
    """

    time: float
    kind: str
    text: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Steps:
    """The training's own record, from `metrics.jsonl`; equally long arrays, NaN where not said.

    Attributes:
        time: end of the step, unix seconds.
        step: number.
        seconds: that the step took: since the step before it in the same attempt.
        rate: units per second over all ranks.
        unit: tokens, samples, …; empty where no step says a rate.
        data_wait: share of the step (0 to 1) spent waiting for data, mean over ranks.
        valid: (steps with a validation) x 2: step, validation loss.
        extra: whatever else a script logged by `rankup.log_metrics`, numbers by name.
        final: the last record of a run that came to its end; None else.
        not_finite: numbers of the steps whose loss was said to be NaN or infinite, which is NaN in
            `loss` as well.
    """

    time: NDArray[np.float64]
    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    seconds: NDArray[np.float64]
    rate: NDArray[np.float64]
    data_wait: NDArray[np.float64]
    mfu: NDArray[np.float64]
    unit: str = ""
    valid: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    extra: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    final: dict[str, Any] | None = None
    not_finite: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class Facts:
    """What is known of a run beside its samples: from `job.json`, our records and Slurm.

    Attributes:
        run: id; name: what it was called; command: as the user typed it, shell-quoted.
        directory: the run directory, as text.
        nodes: asked for; ranks: per node.
        gpus: per node that the job is billed for; 0 on CPU nodes; None where nobody knows.
        attempts: that have begun, in order.
        unit: the site's (`core-h`, `node-h`, `GPU-h`); per_node_hour: units that one node of the
            job costs per hour; None: no cost can be given (a machine without accounting).
        queued: seconds that the run waited in the queue, all attempts together; None: not known.
        portal: URL of the site's own report of the job; None: there is none.
        what: any other facts worth a line in the report, by title.
    """

    run: str
    name: str
    command: str
    directory: str
    kind: str = "script"
    site: str = ""
    partition: str = ""
    account: str = ""
    nodes: int = 1
    ranks: int | None = None
    gpus: int | None = None
    unit: str | None = None
    per_node_hour: float | None = None
    attempts: tuple[Attempt, ...] = ()
    queued: float | None = None
    portal: str | None = None
    what: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """Everything recorded of a run; see the module.

    Attributes:
        begin, width, bins: bin b covers [begin + b * width, begin + (b + 1) * width).
        end: of the last sample, step or attempt.
        heads: newest head of each node, in the order of the columns of `host`.
        gpus: of all nodes in that order, columns of `gpu`; gpu_node: (GPUs,) place of its node.
        ranks: (ranks,) number of each rank seen, columns of `rank`; rank_node: place of its node.
        covered: (bins, nodes) share of the bin that samples stand for, 0 to 1.
        core_use: per node (cores,) mean use in %.
        fs: per mount point of a network file system: bytes read and bytes written, all nodes.
        samples: read; torn: lines that were none, and samples whose time cannot be.
        unread: node and why of each file of samples that could not be read, or not all of it; and
            name and why of each profile.
        running: whether samplers still write.
        profiles: steps that were profiled, the newest first.
    """

    facts: Facts
    begin: float
    end: float
    width: float
    bins: int
    heads: tuple[Head, ...]
    gpus: tuple[Gpu, ...]
    gpu_node: NDArray[np.int64]
    ranks: NDArray[np.int64]
    rank_node: NDArray[np.int64]
    gpu: dict[str, Band]
    host: dict[str, Band]
    rank: dict[str, Band]
    covered: Array
    core_use: tuple[Array, ...]
    steps: Steps
    events: tuple[Event, ...] = ()
    gaps: tuple[Gap, ...] = ()
    fs: dict[str, tuple[float, float]] = field(default_factory=dict)
    samples: int = 0
    torn: int = 0
    unread: tuple[tuple[str, str], ...] = ()
    running: bool = False
    profiles: tuple[Profile, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names, in the order of the columns of `host`."""
        return tuple(head.node for head in self.heads)

    @property
    def times(self) -> NDArray[np.float64]:
        """(bins,) middle of each bin, unix seconds."""
        return np.float64(self.begin) + (np.arange(self.bins) + 0.5) * self.width

    def gpu_names(self) -> list[str]:
        """`jwb0001:2` for each column of `gpu`."""
        pairs = zip(self.gpu_node, self.gpus, strict=True)
        return [f"{self.heads[int(node)].node}:{gpu.index}" for node, gpu in pairs]


def mean(values: Array, axis: int | None = None) -> Array:
    """Mean of what is there; NaN, without a warning, where nothing is."""
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0).sum(axis=axis, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, total / count, np.nan), dtype=np.float32)


def weighted(values: Array, seconds: Array) -> NDArray[np.float64]:
    """(things,) mean over time of (bins, things) values, weighted; NaN where nothing is known."""
    weight = np.where(np.isfinite(values), seconds, 0)
    total = weight.sum(axis=0, dtype=np.float64)
    done = np.nansum(np.where(weight > 0, values, 0) * weight, axis=0, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, done / total, np.nan)


def lowest(values: Array, axis: int = 0) -> Array:
    """Lowest of what is there; NaN where nothing is."""
    return np.asarray(np.fmin.reduce(values, axis=axis, initial=np.nan), dtype=np.float32)


def highest(values: Array, axis: int = 0) -> Array:
    """Highest of what is there; NaN where nothing is."""
    return np.asarray(np.fmax.reduce(values, axis=axis, initial=np.nan), dtype=np.float32)


def folded(values: Array, factor: int) -> Array:
    """(bins, …) as (ceil(bins / factor), factor, …), filled up with NaN."""
    bins = len(values)
    short = -bins % factor
    if short:
        filler = np.full((short, *values.shape[1:]), np.nan, dtype=values.dtype)
        values = np.concatenate([values, filler])
    return values.reshape(len(values) // factor, factor, *values.shape[1:])


def strip(band: Band, factor: int = 1) -> Band:
    """All things together: (ceil(bins / factor),) lowest, mean and highest of any of them."""

    def flat(values: Array) -> Array:
        wide = folded(values, factor)
        return wide.reshape(len(wide), -1)

    return Band(
        low=lowest(flat(band.low), axis=1),
        mean=mean(flat(band.mean), axis=1),
        high=highest(flat(band.high), axis=1),
    )


def coarse(values: Array, factor: int) -> Array:
    """(bins, things) as the mean of every `factor` bins."""
    return values if factor == 1 else mean(folded(values, factor), axis=1)


def stretches(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return where each stretch in which a mask holds begins, and where it has ended."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(first, last) for first, last in edges.reshape(-1, 2).tolist()]


def union(windows: NDArray[np.float64], apart: float) -> NDArray[np.float64]:
    """The union of (n, 2) windows, those less than `apart` seconds from one another as one."""
    if not len(windows):
        return windows
    windows = windows[np.argsort(windows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(windows[:, 1])
    new = np.concatenate([[True], windows[1:, 0] > reach[:-1] + apart])
    begins = np.flatnonzero(new)
    ends = np.append(begins[1:], len(windows)) - 1
    return np.stack([windows[begins, 0], reach[ends]], axis=1)


def buckets(groups: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Where to begin a bucket, so that there are about `most` of equal length.

    No bucket has values of two groups (attempts of a run).

    Args:
        groups: (values,) number of the group of each value, ascending.
    """
    if not len(groups):
        return np.zeros(0, dtype=np.int64)
    size = max(1, -(-len(groups) // most))
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
    ends = np.append(starts[1:], len(groups))
    pieces = [np.arange(begin, end, size) for begin, end in zip(starts, ends, strict=True)]
    return np.concatenate(pieces)
