"""One node's file, gathered into bins: what `load` asks of each file, maybe in a process apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..base.text import encodable
from . import heads
from .bins import Gatherer, Grid, Shares, shaped, shares
from .channels import gpu_channels, host_channels
from .heads import Layout, unknown_gpu
from .lines import Gpu, Head
from .recording import GPU, HOST, RANK, Array, Band
from .samples import MOST_MOUNTS, MOST_RANKS, Batch, End, Note, Part, Torn
from .samples import read as read_samples

Numbers = NDArray[np.float64]
Window = tuple[float, float]  # unix seconds between which times are believed
SHORTEST_GAP = 15.0  # s; what is shorter is a busy node, not a silence
# What hostile files could ask for without end.
MOST_NOTES = 1000
MOST_SAMPLERS = 1000
MOST_BROKEN = 100_000


@dataclass(frozen=True)
class Sampler:
    """What is left of one sampler: its head, its first and last sample, whether it said an end.

    Attributes:
        begin, end: unix seconds; NaN where it took no sample.
    """

    head: Head
    begin: float = math.nan
    end: float = math.nan
    ended: float | None = None


@dataclass(frozen=True)
class Node:
    """A node's file in bins.

    Attributes:
        samplers: in the order of the file.
        gpus: all seen, newest head's first; ranks: numbers.
        gpu, host, rank: (bins, things, channels), of `recording.GPU`, `HOST` (one thing), `RANK`.
        covered: (bins,) share of each bin.
        stretches: (n, 2) begins and ends of what was sampled, in order, apart from one another.
        every: seconds between samples, as they came.
        fs: bytes read and written by mount point.
        broken: times of the samples before torn lines.
        strange: samples whose time cannot be.
        first, last: times that samples stand for; NaN without any.
        twice: seconds that more than one sampler stands for.
        error: why the file could not be read to its end.
    """

    path: Path
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
    broken: Numbers
    strange: int
    first: float
    last: float
    twice: float
    error: str | None = None

    @property
    def name(self) -> str:
        """The node's, as its file is called."""
        return encodable(self.path.stem)


def scan(path: Path, grid: Grid, window: Window) -> Node:
    """Read a node's file into the bins of a grid; an unreadable file is a node without samples."""
    reading = _Reading(path, grid, window)
    error = None
    try:
        for part in read_samples(path):
            reading.take(part)
    except OSError as problem:
        error = problem.strerror or str(problem)
    return replace(reading.result(), error=error)


@dataclass
class _Reading:
    path: Path
    grid: Grid
    window: Window
    samplers: list[Sampler] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    ranks: dict[int, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    broken: list[float] = field(default_factory=list)
    fs: dict[str, tuple[float, float]] = field(default_factory=dict)
    stretches: list[Numbers] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    samples: int = 0
    torn: int = 0
    strange: int = 0
    standing: float = 0.0
    last: float = math.nan

    def __post_init__(self) -> None:
        bins = self.grid.bins
        self._gpu, self._host, self._rank = (
            Gatherer(bins),
            Gatherer(bins, len(HOST)),
            Gatherer(bins),
        )
        self._covered = np.zeros(bins)
        self._core_use = np.zeros(0)
        self._core_seconds = np.zeros(0)
        self._columns: list[int] = []

    def take(self, part: Part) -> None:
        if isinstance(part, Layout):
            self._start(part)
        elif isinstance(part, Batch):
            self._count(part)
        elif isinstance(part, Torn):
            self.torn += part.count
            if len(self.broken) < MOST_BROKEN:
                self.broken.append(self.last)
        elif isinstance(part, End) and self.samplers and self._believed(part.t):
            self.samplers[-1] = replace(self.samplers[-1], ended=part.t)
        elif isinstance(part, Note) and len(self.notes) < MOST_NOTES and self._believed(part.t):
            self.notes.append(part)

    def result(self) -> Node:
        bins = self.grid.bins
        stretches = merged(np.concatenate([np.zeros((0, 2)), *self.stretches]), 0.0)
        every = max((step for _, step in self.steps), default=heads.EVERY)
        once = float((stretches[:, 1] - stretches[:, 0]).sum())
        newest = self.samplers[-1].head.gpus if self.samplers else ()
        shown = [_place(gpu, at, self.gpus) for at, gpu in enumerate(newest)]
        order = [*shown, *(at for at in range(len(self.gpus)) if at not in shown)]
        self._gpu.widen(len(self.gpus) * len(GPU))
        with np.errstate(invalid="ignore"):
            use = np.where(self._core_seconds > 0, self._core_use / self._core_seconds, np.nan)
        return Node(
            path=self.path,
            samplers=tuple(self.samplers),
            gpus=tuple(self.gpus[at] for at in order),
            ranks=tuple(self.ranks),
            gpu=shaped(self._gpu.band(), (bins, len(self.gpus), len(GPU)), order),
            host=shaped(self._host.band(), (bins, 1, len(HOST))),
            rank=shaped(self._rank.band(), (bins, len(self.ranks), len(RANK))),
            covered=np.minimum(self._covered / self.grid.width, 1).astype(np.float32),
            core_use=use.astype(np.float32),
            stretches=stretches,
            every=every,
            fs=self.fs,
            notes=tuple(self.notes),
            samples=self.samples,
            torn=self.torn,
            broken=np.array(self.broken),
            strange=self.strange,
            first=float(stretches[0, 0]) if len(stretches) else math.nan,
            last=float(stretches[-1, 1]) if len(stretches) else math.nan,
            twice=max(0.0, self.standing - once),
        )

    def _believed(self, t: float) -> bool:
        return self.window[0] <= t <= self.window[1]

    def _start(self, layout: Layout) -> None:
        head = layout.head
        if not self._believed(head.t):
            head = replace(head, t=math.nan)
        if len(self.samplers) == MOST_SAMPLERS:
            self.samplers.pop(-2)
        self.samplers.append(Sampler(head))
        self._columns = [self._column(gpu, at) for at, gpu in enumerate(head.gpus)]

    def _column(self, gpu: Gpu, at: int) -> int:
        """Where a GPU is gathered, what is known of it renewed; -1: nowhere, there are too many."""
        place = _place(gpu, at, self.gpus)
        if place == heads.MOST_GPUS:
            return -1
        self.gpus[place : place + 1] = [gpu]  # the newest head knows best
        return place

    def _count(self, batch: Batch) -> None:
        good = (batch.t >= self.window[0]) & (batch.t <= self.window[1])
        if not good.all():
            self.strange += int((~good).sum())
            batch = batch.only(good)
            if not len(batch.t):
                return
        t = batch.t
        self.samples += len(t)
        self.last = float(t[-1])
        sampler = self.samplers[-1]
        begin, end = float(np.fmin(sampler.begin, t.min())), float(np.fmax(sampler.end, t.max()))
        self.samplers[-1] = replace(sampler, begin=begin, end=end)
        # A sampler may slow down, and then a sample stands for longer; but one that was stopped
        # for a while and went on has not seen what was in between.
        said = batch.dt[~np.isnan(batch.dt)]
        usual = max(sampler.head.every, float(np.median(said)) if len(said) else 0.0)
        usual = min(usual, heads.SELDOM)
        self.steps.append((len(t), usual))
        seconds = np.minimum(np.nan_to_num(batch.dt), max(3 * usual, SHORTEST_GAP))
        spread = shares(self.grid, t, seconds)
        real = seconds[spread.sample] > 0
        self._covered += np.bincount(
            spread.bin, np.where(real, spread.seconds, 0), minlength=self.grid.bins
        )
        self.standing += float(seconds.sum())
        self.stretches.append(merged(np.stack([t - seconds, t], axis=1), 1.0))
        self._host.add(spread, host_channels(batch))
        self._gpus(batch, spread)
        self._ranks(batch, spread)
        self._cores(batch, seconds)
        whole = np.nan_to_num(batch.dt)
        for mount, rows in batch.fs.items():
            read, written = np.nansum(rows[:, :2] * whole[:, None], axis=0).tolist()
            if mount in self.fs or len(self.fs) < MOST_MOUNTS:
                before = self.fs.get(mount, (0.0, 0.0))
                self.fs[mount] = (before[0] + read, before[1] + written)

    def _gpus(self, batch: Batch, spread: Shares) -> None:
        values = gpu_channels(batch)
        count = values.shape[1]
        while len(self._columns) < count:  # more than the head told of
            at = len(self._columns)
            self._columns.append(at if at < len(self.gpus) else self._column(unknown_gpu(at), at))
        places = self._columns[:count]
        wide = len(self.gpus)
        if places != list(range(wide)):
            own, values = values, np.full((len(values), wide, len(GPU)), np.nan)
            kept = [at for at, place in enumerate(places) if place >= 0]
            values[:, [places[at] for at in kept]] = own[:, kept]
        self._gpu.widen(wide * len(GPU))
        self._gpu.add(spread, values.reshape(len(values), -1))

    def _ranks(self, batch: Batch, spread: Shares) -> None:
        numbers = batch.ranks[..., 0]
        first = numbers[0].tolist()
        if first == list(self.ranks) and (numbers == numbers[0]).all():  # as mostly
            self._rank.add(spread, batch.ranks[..., 1:].reshape(len(batch.t), -1))
            return
        known = numbers[(numbers < 1e6) & (numbers == np.floor(numbers))]
        for number in np.unique(known).astype(int).tolist():
            if len(self.ranks) < MOST_RANKS:
                self.ranks.setdefault(number, len(self.ranks))
        wide = len(self.ranks)
        values = np.full((len(batch.t), wide, len(RANK)), np.nan)
        for number, column in self.ranks.items():
            sample, place = np.nonzero(numbers == number)
            values[sample, column] = batch.ranks[sample, place, 1:]
        self._rank.widen(wide * len(RANK))
        self._rank.add(spread, values.reshape(len(values), -1))

    def _cores(self, batch: Batch, seconds: Numbers) -> None:
        more = batch.cores.shape[1] - len(self._core_use)
        if more > 0:
            self._core_use = np.pad(self._core_use, (0, more))
            self._core_seconds = np.pad(self._core_seconds, (0, more))
        said = ~np.isnan(batch.cores)
        wide = batch.cores.shape[1]
        self._core_use[:wide] += seconds @ np.where(said, batch.cores, 0)
        self._core_seconds[:wide] += seconds @ said


def merged(stretches: Numbers, apart: float) -> Numbers:
    """The union of (n, 2) stretches, those less than `apart` seconds from one another as one."""
    if not len(stretches):
        return stretches
    stretches = stretches[np.argsort(stretches[:, 0], kind="stable")]
    reach = np.maximum.accumulate(stretches[:, 1])
    new = np.concatenate([[True], stretches[1:, 0] > reach[:-1] + apart])
    begins = np.flatnonzero(new)
    ends = np.append(begins[1:], len(stretches)) - 1
    return np.stack([stretches[begins, 0], reach[ends]], axis=1)


def _place(gpu: Gpu, at: int, gpus: list[Gpu]) -> int:
    """Which of `gpus` it is: the same uuid, else the same place; their number where it is new."""
    for place, other in enumerate(gpus):
        if gpu.uuid and gpu.uuid == other.uuid:
            return place
    if at < len(gpus) and (not gpu.uuid or not gpus[at].uuid):
        return at
    return len(gpus)
