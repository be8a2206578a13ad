"""One node's samples gathered into bins of time: what `load` asks of each node, maybe in a process
apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import lines, samples
from .lines import Gpu, Head
from .recording import GPU, Array, Band, union
from .samples import Journal, Note, Numbers, Rows

Window = tuple[float, float]  # unix seconds between which times are believed
SHORTEST_GAP = 15.0  # s; what is shorter is a busy node, not a silence
MOST_BINS = 1440
# A sample that stands for no time (a sampler's first) counts where nothing else does.
_MOMENT = 1e-6  # s
_BITS = {
    "throttle_power": lines.THROTTLE_POWER,
    "throttle_heat": lines.THROTTLE_HEAT,
    "throttle_hardware": lines.THROTTLE_HARDWARE,
}


@dataclass(frozen=True)
class Grid:
    """Bin b covers [begin + b * width, begin + (b + 1) * width), unix seconds."""

    begin: float
    width: float
    bins: int

    @property
    def end(self) -> float:
        return self.begin + self.bins * self.width


@dataclass(frozen=True)
class Sampler:
    """What is left of one sampler: its head, its first and last sample, whether it said an end.

    Attributes:
        begin, end: unix seconds; NaN where it took no sample.
    """

    head: Head
    begin: float
    end: float
    ended: float | None


@dataclass(frozen=True)
class Node:
    """A node's samples in bins.

    Attributes:
        samplers: in the order of the journal.
        gpus: all seen, newest head's first; ranks: numbers.
        gpu, host, rank: (bins, things, channels), of `recording.GPU`, `HOST` (one thing), `RANK`.
        covered: (bins,) share of each bin.
        stretches: (n, 2) begins and ends of what was sampled, in order, apart from one another.
        every: seconds between samples, as they came.
        fs: bytes read and written by mount point.
        samples: read; torn: lines that were dropped; strange: samples whose time cannot be.
        first, last: times that samples stand for; NaN without any.
        errors: why files, or rows of them, could not be read.
    """

    name: str
    samplers: tuple[Sampler, ...]
    gpus: tuple[Gpu, ...]
    ranks: tuple[int, ...]
    gpu: Band
    host: Band
    rank: Band
    covered: Array
    core_use: Array
    stretches: Numbers
    every: float
    fs: dict[str, tuple[float, float]]
    notes: tuple[Note, ...]
    samples: int
    torn: int
    strange: int
    first: float
    last: float
    errors: tuple[str, ...]


def grid(begin: float, end: float, every: float) -> Grid:
    """At most `MOST_BINS` bins over a stretch, each a multiple of `every` seconds wide.

    Up to a twentieth of a bin at the end is no bin of its own: what is there counts in the last.
    """
    span = max(end - begin, 0.0)
    times = max(1, math.ceil(span / (MOST_BINS * every) - 0.05 / MOST_BINS))
    width = every * times
    return Grid(begin, width, max(1, math.ceil(span / width - 0.05)))


def scan(path: Path, journal: Journal, grid: Grid, window: Window) -> Node:
    """Read a node's tables into the bins of a grid; one that cannot be read has no rows."""
    return _Reading(path, journal, grid, window).node()


@dataclass
class _Reading:
    path: Path
    journal: Journal
    grid: Grid
    window: Window
    errors: list[str] = field(default_factory=list)
    torn: int = 0
    strange: int = 0

    def node(self) -> Node:
        heads, bins = self.journal.heads, self.grid.bins
        host = self._rows("host")
        every = max((head.every for head in heads), default=0.0)
        usual = max(every, float(np.nanmedian(host.dt)) if np.isfinite(host.dt).any() else 0.0)
        self._longest = max(3 * usual, SHORTEST_GAP)
        t, seconds = host.t, self._seconds(host)
        sample, bin, covered = _pieces(self.grid, t, seconds)
        whole = np.bincount(bin, np.where(seconds[sample] > 0, covered, 0), minlength=bins)
        stretches = union(np.stack([t - seconds, t], axis=1), 1.0)
        gpus, gpu = self._gpus()
        ranks = self._rows("rank")
        numbers, place = np.unique(_key(ranks), return_inverse=True)
        return Node(
            name=samples.node_name(self.path),
            samplers=self._samplers(t),
            gpus=gpus,
            ranks=tuple(numbers.tolist()),
            gpu=gpu,
            host=self._band(host, np.zeros(len(t), np.int64), 1, host.values),
            rank=self._band(ranks, place, len(numbers), ranks.values),
            covered=np.minimum(whole / self.grid.width, 1).astype(np.float32),
            core_use=_core_use(host, seconds),
            stretches=stretches,
            every=usual,
            fs=self._file_systems(),
            notes=tuple(note for note in self.journal.notes if self._believed(note.t)),
            samples=len(t),
            torn=self.torn + self.journal.torn,
            strange=self.strange,
            first=float(stretches[0, 0]) if len(stretches) else math.nan,
            last=float(stretches[-1, 1]) if len(stretches) else math.nan,
            errors=tuple(filter(None, [self.journal.error, *self.errors])),
        )

    def _rows(self, kind: str) -> Rows:
        if not self.journal.heads:  # of whose, and of which GPUs, nobody says
            return samples.no_rows(kind)
        try:
            found = samples.rows(self.path, kind)
        except (samples.TornError, OSError) as error:
            self.errors.append(str(error))
            found = samples.no_rows(kind)
        self.torn += found.torn
        if found.damage:
            self.errors.append(found.damage)
        good = self._believed(found.t)
        if kind == "host":
            self.strange = int((~good).sum())
        return found.only(good)

    def _believed(self, t: Any) -> Any:
        return (t >= self.window[0]) & (t <= self.window[1])

    def _seconds(self, rows: Rows) -> Numbers:
        """Seconds that each row stands for.

        A sampler may slow down, and then a sample stands for longer; but one that was stopped for
        a while and went on has not seen what was in between.
        """
        return np.minimum(np.nan_to_num(rows.dt), self._longest)

    def _samplers(self, t: Numbers) -> tuple[Sampler, ...]:
        heads = self.journal.heads
        own = samples.sampler(heads, t)
        found = []
        for at, head in enumerate(heads):
            taken = t[own == at]
            begin, end = (taken.min(), taken.max()) if len(taken) else (math.nan, math.nan)
            found.append(Sampler(head, float(begin), float(end), self.journal.ended.get(at)))
        return tuple(found)

    def _gpus(self) -> tuple[tuple[Gpu, ...], Band]:
        rows = self._rows("gpu")
        gpus, place = samples.gpus(self.journal.heads, rows.t, _key(rows))
        values = np.empty((len(rows.t), len(GPU)))
        bits = rows.values[:, lines.GPU.index("throttle")]
        unknown = np.isnan(bits)
        reasons = np.where(unknown, 0, bits).astype(np.int64)
        for column, name in enumerate(GPU):
            if name in _BITS:
                values[:, column] = np.where(unknown, np.nan, (reasons & _BITS[name]) != 0)
            else:
                values[:, column] = rows.values[:, lines.GPU.index(name)]
        known = place >= 0
        return tuple(gpus), self._band(rows.only(known), place[known], len(gpus), values[known])

    def _band(self, rows: Rows, place: NDArray[np.int64], things: int, values: Numbers) -> Band:
        """Return (bins, things, channels) of rows that are of the thing at `place` each."""
        sample, bin, seconds = _pieces(self.grid, rows.t, self._seconds(rows))
        return _band(self.grid.bins, bin, place[sample], things, values[sample], seconds)

    def _file_systems(self) -> dict[str, tuple[float, float]]:
        rows = self._rows("fs")
        moved = np.nan_to_num(rows.values[:, :2] * rows.dt[:, None])
        mounts = dict.fromkeys(_key(rows).tolist())
        sums = {mount: moved[rows.key == mount].sum(axis=0).tolist() for mount in mounts}
        return {mount: (read, written) for mount, (read, written) in sums.items()}


def _key(rows: Rows) -> NDArray[Any]:
    assert rows.key is not None
    return rows.key


def _pieces(
    grid: Grid, t: Numbers, seconds: Numbers
) -> tuple[NDArray[np.int64], NDArray[np.int64], Numbers]:
    """Spread samples, each of which stands for the `seconds` before its `t`, over the bins.

    A sliver of less than a hundredth of a sample goes to its neighbour, so that clocks that are
    off by milliseconds do not show everything in two bins.

    Returns:
        Which sample counts in which bin, for how many seconds; equally long.
    """
    stop = (t - grid.begin) / grid.width
    start = stop - seconds / grid.width
    sliver = 0.01 * (stop - start)
    first = np.clip(np.floor(start + sliver), 0, grid.bins - 1).astype(np.int64)
    last = np.clip(np.ceil(stop - sliver) - 1, 0, grid.bins - 1).astype(np.int64)
    last = np.maximum(first, last)
    many = last - first + 1
    sample = np.repeat(np.arange(len(t)), many)
    bin = first[sample] + np.arange(len(sample)) - np.repeat(np.cumsum(many) - many, many)
    left = np.where(bin == first[sample], start[sample], bin)
    right = np.where(bin == last[sample], stop[sample], bin + 1)
    covered = (right - left) * grid.width
    return sample, bin, np.where(covered > 0, covered, _MOMENT)


def _band(
    bins: int,
    bin: NDArray[np.int64],
    place: NDArray[np.int64],
    things: int,
    values: Numbers,
    seconds: Numbers,
) -> Band:
    """Return the lowest, the mean and the highest of the pieces of each bin and thing.

    (bins, things, channels); NaN where nothing was said. A value of NaN counts nowhere.
    """
    channels = values.shape[1]
    # In memory channel by channel and thing by thing, so that nodes are joined in large pieces.
    shape = (channels, things * bins)
    low, mean, high = (np.full(shape, np.nan, np.float32) for _ in range(3))
    if len(bin):
        group = place * bins + bin
        order = np.argsort(group, kind="stable")
        group = group[order]
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        at = group[begins]
        weights = seconds[order]
        for channel in range(channels):
            own = values[order, channel]
            said = ~np.isnan(own)
            low[channel, at] = np.fmin.reduceat(own, begins)
            high[channel, at] = np.fmax.reduceat(own, begins)
            whole = np.add.reduceat(np.where(said, weights, 0), begins)
            total = np.add.reduceat(np.where(said, own, 0) * weights, begins)
            with np.errstate(invalid="ignore"):
                mean[channel, at] = total / whole
    # Rounding to float32 must not put a mean outside its band.
    mean = np.clip(mean, low, high)
    return Band(*(a.reshape(channels, things, bins).transpose(2, 1, 0) for a in (low, mean, high)))


def _core_use(host: Rows, seconds: Numbers) -> Array:
    """Return (cores,) mean use in %."""
    done, known = np.zeros(0), np.zeros(0)
    for of, use in samples.core_use(host.cores):
        more = max(0, use.shape[1] - len(done))
        done, known = np.pad(done, (0, more)), np.pad(known, (0, more))
        said = ~np.isnan(use)
        done[: use.shape[1]] += seconds[of] @ np.where(said, use, 0)
        known[: use.shape[1]] += seconds[of] @ said
    with np.errstate(invalid="ignore"):
        return (done / np.where(known > 0, known, np.nan)).astype(np.float32)
