"""Fewer points of the same run: a page has room for a thousand of them, not for a day of samples.

What is put together keeps its lowest and its highest value, so that no peak is lost; what was not
sampled stays NaN, and never counts as zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..recording import Array, Band


def mean(values: Array, axis: int | None = None) -> Array:
    """Mean of what is there; NaN, without a warning, where nothing is."""
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0).sum(axis=axis, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, total / count, np.nan), dtype=np.float32)


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
