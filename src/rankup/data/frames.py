"""Hashes of the bytes around the samples: headers, padding, columns, what a format is made of.

Each sample has a hash of its own. With one more per group of samples, over the bytes of the file
that belong to no sample, no byte of a container can change without being found, and the place of a
damage is known to a thousand samples. Which bytes belong to which group follows from the index.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from .errors import BadContainer
from .index import Index, Int64s, UInt64s, data_path
from .strings import Strings

GROUP = 1024
_CHUNK = 8 << 20
# Gaps nearer to each other than this are read in one go, with the samples between them.
_NEAR = 8 << 10


@dataclass(frozen=True)
class Frames:
    """The groups of an index, by file and place.

    Attributes:
        file: int64 (g,), row of `Index.files`.
        start, stop: int64 (g,), the bytes of the file that a group looks after.
        first, last: int64 (g,), lowest and highest row of the samples in it; -1 without any.
        gaps: int64 (k, 2), bytes [from, to) of no sample, in the order of files and places.
        ends: int64 (g + 1,), rows of `gaps` at which each group's begin, and the end.
    """

    file: Int64s
    start: Int64s
    stop: Int64s
    first: Int64s
    last: Int64s
    gaps: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.file)


def frames(index: Index) -> Frames:
    """The groups of an index: 1024 spans of bytes each, at least one group per file. Pure.

    Args:
        index: with the `sizes` of its files; what has a negative offset counts as no sample.
    """
    offset, length, file, row = _spans(index)
    edges = np.searchsorted(file, np.arange(len(index.files) + 1))
    parts = [
        _of_file(
            number,
            int(size),
            offset[edges[number] : edges[number + 1]],
            length[edges[number] : edges[number + 1]],
            row[edges[number] : edges[number + 1]],
        )
        for number, size in enumerate(index.sizes.tolist())
    ]
    none = np.empty(0, np.int64)
    counts = np.concatenate([none, *(part[6] for part in parts)])
    gaps = np.concatenate([np.empty((0, 2), np.int64), *(part[5] for part in parts)])
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    whole = (np.concatenate([none, *(part[column] for part in parts)]) for column in range(5))
    number, start, stop, first, last = whole
    return Frames(number, start, stop, first, last, gaps, ends)


def _spans(index: Index) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Offset, length, file and row of each field of each sample, sorted by file and offset."""
    columns: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
    for field in index.fields:
        rows = np.flatnonzero(field.offset >= 0)
        file = np.zeros(len(rows), np.int64)
        if field.file is not None:
            file = field.file[rows].astype(np.int64)
        columns.append((field.offset[rows], np.maximum(field.length[rows], 0), file, rows))
    if not columns:
        none = np.empty(0, np.int64)
        return none, none, none, none
    offset, length, file, row = (np.concatenate(column) for column in zip(*columns, strict=True))
    if _sorted(file, offset):  # as what rankup has written with one field
        return offset, length, file, row
    # Then by length, so that an empty sample and the one behind it have one order.
    order = np.lexsort((row, length, offset, file))
    return offset[order], length[order], file[order], row[order]


def _sorted(file: Int64s, offset: Int64s) -> bool:
    step = np.diff(file)
    same = (step == 0) & (np.diff(offset) <= 0)
    return not bool(np.any(step < 0) or np.any(same))


def _of_file(
    number: int, size: int, offset: Int64s, length: Int64s, row: Int64s
) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s, Int64s, Int64s]:
    """The columns of `Frames` for one file, with the number of gaps of each group at last."""
    begins = np.arange(0, max(len(offset), 1), GROUP)
    start = offset[begins].copy() if len(offset) else np.zeros(1, np.int64)
    start[0] = 0
    stop = np.append(start[1:], size)
    if len(row):
        first, last = np.minimum.reduceat(row, begins), np.maximum.reduceat(row, begins)
    else:
        first = last = np.full(1, -1, np.int64)
    # Samples may share bytes (a SquashFS keeps equal files once): the furthest end so far counts.
    ends = np.maximum.accumulate(offset + length)
    lower = np.concatenate([np.zeros(1, np.int64), ends])
    upper = np.append(offset, size)
    kept = np.flatnonzero(upper > lower)
    gaps = np.stack([lower[kept], upper[kept]], axis=1)
    # The gap in front of a group's first span ends where the group begins: it is of the one before.
    group = np.maximum(np.searchsorted(begins, kept, side="left") - 1, 0)
    counts = np.bincount(group, minlength=len(begins)).astype(np.int64)
    return np.full(len(begins), number, np.int64), start, stop, first, last, gaps, counts


def hashes(of: Frames, root: Path, files: Strings, start: int, stop: int) -> UInt64s:
    """xxh3 over the bytes of the groups [start, stop), read from the files.

    Args:
        root: the container; `files` are relative to it, or empty where it is the one file.

    Raises:
        BadContainer: a file ends before.
        OSError: it cannot be read.
    """
    result = np.empty(stop - start, np.uint64)
    descriptor, opened = -1, -1
    try:
        for group in range(start, stop):
            file = int(of.file[group])
            if file != opened:
                if descriptor >= 0:
                    os.close(descriptor)
                path = data_path(root, files, file)
                descriptor, opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC), file
            gaps = of.gaps[of.ends[group] : of.ends[group + 1]]
            result[group - start] = _hash(descriptor, gaps, path)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return result


def _hash(descriptor: int, gaps: Int64s, path: Path) -> int:
    state = xxhash.xxh3_64()
    window, at = memoryview(b""), 0  # bytes of the file from `at` on
    lows, highs = gaps[:, 0].tolist(), gaps[:, 1].tolist()
    for number, (low, high) in enumerate(zip(lows, highs, strict=True)):
        while low < high:
            if not at <= low < at + len(window):
                until = _run(lows, highs, number, low)
                window, at = memoryview(os.pread(descriptor, until - low, low)), low
                if not window:
                    raise BadContainer(f"{path} ends at {low} bytes, too early: it was cut short")
            part = window[low - at : high - at]
            state.update(part)
            low += len(part)
    return state.intdigest()


def _run(lows: list[int], highs: list[int], number: int, low: int) -> int:
    """How far to read from `low` on, so that near gaps come with it."""
    until = highs[number]
    while number + 1 < len(lows) and lows[number + 1] - until < _NEAR and until - low < _CHUNK:
        number += 1
        until = highs[number]
    return min(until, low + _CHUNK)


# Of the files in a container's folder these say of themselves whether they are whole.
_OWN = {"index.npz", "report.json"}


def beside(root: Path, index: Index) -> dict[str, str]:
    """xxh3, as hex, of the small files that a format puts beside its data files, by name.

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
