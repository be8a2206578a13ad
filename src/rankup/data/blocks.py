"""Hashes of the bytes around the samples, one for each block of a file.

Each sample has a hash of its own. What a format puts around them (headers, padding, columns) is
hashed by blocks of the files: of each block the bytes that belong to no sample. So no byte of a
container can change unnoticed, and a damaged block names the samples in it.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xxhash

from .index import Index, Int64s, UInt64s
from .spans import Spans

SIZE = 4 << 20
# Gaps that are on average nearer to each other than this are read in one go, with what is between.
_NEAR = 16 << 10


class Blocks:
    """The blocks of all files of a container, in their order.

    Args:
        index: with the `sizes` of its files; what has a negative offset counts as no sample.
        root: the container, which the names of the files are relative to.
    """

    def __init__(self, index: Index, root: Path) -> None:
        self._index, self._root = index, root
        self._spans = Spans(root, index.files, index.sizes[:0], "pread")
        # Places are counted as if the files stood one behind another, so that a search finds them.
        ends = np.cumsum(index.sizes)
        self._base: Int64s = ends - index.sizes
        counts = -(-index.sizes // SIZE)
        self._file: Int64s = np.repeat(np.arange(len(ends)), counts)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._start: Int64s = self._base[self._file] + number * SIZE
        self._stop: Int64s = np.minimum(self._start + SIZE, ends[self._file])
        self._sample, stop, self._row = _samples(index, self._base)
        # Samples may share bytes (a SquashFS keeps equal files once): the furthest end counts.
        low = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(stop)])
        high = np.append(self._sample, ends[-1] if len(ends) else 0)
        self._low, self._high = low[high > low], high[high > low]

    def __len__(self) -> int:
        return len(self._file)

    def hashes(self, first: int, last: int) -> UInt64s:
        """Return xxh3 of the bytes of no sample in each of the blocks [first, last).

        Raises:
            BadContainer: a file ends before.
            OSError: one cannot be read.
        """
        return np.array([self._hash(block) for block in range(first, last)], np.uint64)

    def _hash(self, block: int) -> int:
        state, gaps, file = xxhash.xxh3_64(), self._gaps(block), int(self._file[block])
        if not len(gaps):
            return state.intdigest()
        begin, end = int(gaps[0, 0]), int(gaps[-1, 1])
        if end - begin < len(gaps) * _NEAR:
            data = memoryview(self._spans.read(file, begin, end - begin))
            for low, high in gaps.tolist():
                state.update(data[low - begin : high - begin])
        else:
            for low, high in gaps.tolist():
                state.update(self._spans.read(file, low, high - low))
        return state.intdigest()

    def name(self, block: int) -> str:
        """Return how the bytes of no sample in a block are named to people."""
        file = int(self._file[block])
        start, stop = int(self._start[block]), int(self._stop[block])
        base = int(self._base[file])
        name = self._index.files.text(file) or self._root.name
        where = f"bytes of no sample in {name} between {start - base} and {stop - base}"
        first = max(int(np.searchsorted(self._sample, start, side="right")) - 1, 0)
        last = int(np.searchsorted(self._sample, stop))
        rows = self._row[first:last]
        if not len(rows):
            return where
        one, other = self._index.path(int(rows[0])), self._index.path(int(rows[-1]))
        return f"{where}, around {one}" + (f" to {other}" if one != other else "")

    def _gaps(self, block: int) -> Int64s:
        """Return the bytes [from, to) of a block that belong to no sample, int64 (k, 2)."""
        start, stop = self._start[block], self._stop[block]
        first = int(np.searchsorted(self._high, start, side="right"))
        last = int(np.searchsorted(self._low, stop))
        gaps = np.stack([self._low[first:last], self._high[first:last]], axis=1)
        return gaps.clip(start, stop) - self._base[self._file[block]]


def blocks_of(index: Index) -> int:
    """Return how many blocks the files of an index have, whatever sizes it says."""
    return sum(max(0, -(-size // SIZE)) for size in index.sizes.tolist())


def _samples(index: Index, base: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return start, end and row of each field of each sample, by their places."""
    none = np.empty(0, np.int64)
    starts, stops, rows = [none], [none], [none]
    for field in index.fields:
        row = np.flatnonzero(field.offset >= 0)
        start = field.offset[row]
        if len(row):
            start = start + (base[0] if field.file is None else base[field.file[row]])
        starts.append(start)
        stops.append(start + np.maximum(field.length[row], 0))
        rows.append(row)
    start, stop, row = (np.concatenate(column) for column in (starts, stops, rows))
    if np.all(start[1:] >= start[:-1]):  # as what rankup has written with one field
        return start, stop, row
    order = np.argsort(start, kind="stable")
    return start[order], stop[order], row[order]


# Of the files in a container's folder these say of themselves whether they are whole.
_OWN = {"index.npz", "report.json"}


def beside(root: Path, index: Index) -> dict[str, str]:
    """Return xxh3, as hex, of the small files that a format puts beside its data files, by name.

    Empty where the container is one file. It stands in `Index.facts["beside"]`.

    Raises:
        OSError: one cannot be read.
    """
    if not root.is_dir():
        return {}
    data = {os.fsdecode(name) for name in index.files} | _OWN
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return {
        name: xxhash.xxh3_64((root / name).read_bytes()).hexdigest()
        for name in found
        if name not in data
    }
