"""Time cut into bins: what samples stand for, gathered as lowest, mean and highest of each bin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .recording import Array, Band

Numbers = NDArray[np.float64]
MOST_BINS = 1440
# A sample that stands for no time (a sampler's first) counts where nothing else does.
MOMENT = 1e-6  # s


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
class Shares:
    """Which sample counts in which bin, for how many seconds; equally long, in order of bins.

    Attributes:
        alike: bins with equally many of these, (bins,), and where they are, (bins, many).
        whole: whether each sample is in one bin, and they are in order.
    """

    sample: NDArray[np.int64]
    bin: NDArray[np.int64]
    seconds: Numbers
    alike: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    whole: bool


def grid(begin: float, end: float, every: float) -> Grid:
    """At most `MOST_BINS` bins over a stretch, each a multiple of `every` seconds wide.

    Up to a twentieth of a bin at the end is no bin of its own: what is there counts in the last.
    """
    span = max(end - begin, 0.0)
    times = max(1, math.ceil(span / (MOST_BINS * every) - 0.05 / MOST_BINS))
    width = every * times
    return Grid(begin, width, max(1, math.ceil(span / width - 0.05)))


def shares(grid: Grid, t: Numbers, seconds: Numbers) -> Shares:
    """Spread samples, each of which stands for the `seconds` before its `t`, over the bins.

    A sliver of less than a hundredth of a sample goes to its neighbour, so that clocks that are
    off by milliseconds do not show everything in two bins.
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
    covered = np.where(covered > 0, covered, MOMENT)
    order = np.argsort(bin, kind="stable")
    sample, bin = sample[order], bin[order]
    begins = np.flatnonzero(np.diff(bin, prepend=-1))
    counts = np.diff(begins, append=len(bin))
    alike = []
    for count in np.unique(counts).tolist():  # few, since samplers keep their pace
        places = begins[counts == count][:, None] + np.arange(count)
        alike.append((bin[places[:, 0]], places))
    whole = len(sample) == len(t) and bool((sample == np.arange(len(t))).all())
    return Shares(sample, bin, covered[order], tuple(alike), whole)


class Gatherer:
    """Gathers values (samples, columns) into bins; the number of columns may grow.

    A value of NaN counts nowhere.
    """

    def __init__(self, bins: int, columns: int = 0) -> None:
        shape = (bins, columns)
        self._low: Array = np.full(shape, np.inf, np.float32)
        self._high: Array = np.full(shape, -np.inf, np.float32)
        self._sum: Numbers = np.zeros(shape)
        self._seconds: Numbers = np.zeros(shape)

    @property
    def columns(self) -> int:
        return self._low.shape[1]

    def widen(self, columns: int) -> None:
        """Have at least so many columns."""
        more = columns - self.columns
        if more <= 0:
            return

        def padded(array: NDArray[Any], value: float) -> NDArray[Any]:
            return np.pad(array, ((0, 0), (0, more)), constant_values=value)

        self._low, self._high = padded(self._low, np.inf), padded(self._high, -np.inf)
        self._sum, self._seconds = padded(self._sum, 0), padded(self._seconds, 0)

    def add(self, shares: Shares, values: NDArray[Any]) -> None:
        """Count samples in; `values` is (samples, columns)."""
        if not values.shape[1]:
            return
        for bins, places in shares.alike:
            # Several times as fast as ufunc.reduceat, which goes from bin to bin.
            first, last = int(places[0, 0]), int(places[-1, -1]) + 1
            if shares.whole and last - first == places.size:
                some = values[first:last].reshape(*places.shape, -1)
            else:
                some = values[shares.sample[places]]
            seconds = shares.seconds[places][..., None]
            self._low[bins] = np.fmin(self._low[bins], np.fmin.reduce(some, axis=1))
            self._high[bins] = np.fmax(self._high[bins], np.fmax.reduce(some, axis=1))
            said = ~np.isnan(some)
            if said.all():
                self._sum[bins] += np.add.reduce(some * seconds, axis=1)
                self._seconds[bins] += np.add.reduce(seconds, axis=1)
            else:
                weighted = np.where(said, some, 0) * seconds
                self._sum[bins] += np.add.reduce(weighted, axis=1)
                self._seconds[bins] += np.add.reduce(said * seconds, axis=1)

    def band(self) -> Band:
        """(bins, columns); NaN where nothing was counted."""
        some = self._seconds > 0
        mean = np.full(some.shape, np.nan, np.float32)
        np.divide(self._sum, self._seconds, out=mean, where=some, casting="same_kind")
        low = np.where(some, self._low, np.float32(np.nan))
        high = np.where(some, self._high, np.float32(np.nan))
        # Rounding to float32 must not put a mean outside its band.
        return Band(low, np.clip(mean, low, high), high)


def shaped(band: Band, shape: tuple[int, ...], order: list[int] | None = None) -> Band:
    """A band (bins, columns) as (bins, things, channels).

    Args:
        shape: that, with things times channels columns.
        order: of the things; None leaves them as they are.
    """

    def by_channel(array: Array) -> Array:
        whole = array.reshape(shape)
        if order is not None and order != list(range(shape[1])):
            whole = whole[:, order]
        # In memory channel by channel and thing by thing, so that nodes are joined in large pieces.
        return np.ascontiguousarray(whole.transpose(2, 1, 0)).transpose(2, 1, 0)

    return Band(by_channel(band.low), by_channel(band.mean), by_channel(band.high))
