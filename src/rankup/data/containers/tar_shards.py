"""Which sample stands in which tar shard, and which of them are written together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..index import Index, Int64s, Split
from ..pack.layout import UNIT
from .tar_headers import END, RECORD

_SAMPLES = 8192  # in a unit, so that its headers stay small


def shards(
    splits: Sequence[Split], total: Int64s, shard: int
) -> tuple[Int64s, npt.NDArray[np.uint32], list[bytes], Int64s]:
    """Where each sample begins in which file; names and sizes of the files."""
    starts = np.empty(len(total), np.int64)
    files = np.empty(len(total), np.uint32)
    names: list[bytes] = []
    sizes: list[int] = []
    for split in splits:
        ends = np.cumsum(total[split.start : split.stop])
        row, done, number = 0, 0, 0
        while row < len(ends) or not number:  # a split without samples has an empty shard
            fit = int(np.searchsorted(ends, done + shard - END, side="right"))
            stop = min(max(fit, row + 1), len(ends))
            begins = np.concatenate([[done], ends[row : stop - 1]]) if stop > row else ends[:0]
            starts[split.start + row : split.start + stop] = begins - done
            files[split.start + row : split.start + stop] = len(names)
            size = (int(ends[stop - 1]) - done if stop > row else 0) + END
            names.append(f"{split.name}-{number:06d}.tar".encode("utf-8", "surrogateescape"))
            sizes.append(-(-size // RECORD) * RECORD)
            done = int(ends[stop - 1]) if stop else 0
            row, number = stop, number + 1
    return starts, files, names, np.array(sizes, np.int64)


def units(source: Index, files: npt.NDArray[np.uint32]) -> Int64s:
    """Rows at which units begin: of one shard, of 64 MiB or 8192 samples."""
    size = sum((field.length for field in source.fields), np.zeros(len(source), np.int64))
    ends = np.cumsum(size)
    edges = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(source)]
    found = [0]
    for start, stop in itertools.pairwise(edges):
        row = start
        while row < stop:
            done = int(ends[row - 1]) if row else 0
            enough = int(np.searchsorted(ends, done + UNIT)) + 1
            row = min(enough, row + _SAMPLES, stop)
            found.append(row)
    return np.array(found, np.int64)
