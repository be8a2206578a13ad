"""The one byte index that every container is reduced to: where each sample's bytes lie.

A sample has one or more fields (an image; an image and its caption). Of each field the index knows
`(file, offset, length)`, of each sample its key, label and split. All of it is numpy arrays which
can be mapped into memory, so that a worker of a data set of ten million samples shares them with
all others; its millions of names too (`Strings`), as a Python list would be copied into every one.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from .errors import BadContainer

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2 ** 64
_INVERSE = pow(_BASE, -1, 1 << 64)
_HASHED = 1 << 17  # bytes at a time, so that they stay in the processor's cache
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    result = np.full(count, base, np.uint64)
    result[:1] = 1
    return np.cumprod(result)


@dataclass(frozen=True)
class Strings:
    """Byte strings one after another; `self[i]` is bytes.

    Attributes:
        data: uint8, all of them.
        ends: int64 (n + 1), where each begins, and the end of the last.
    """

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, values: Iterable[bytes]) -> Strings:
        """From byte strings, in their order."""
        values = list(values)
        ends = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
        return cls(np.frombuffer(b"".join(values), np.uint8), ends)

    @classmethod
    def joined(cls, parts: Sequence[Strings]) -> Strings:
        """The strings of several, one after another."""
        if not parts:
            return cls.of([])
        ends = np.zeros(sum(map(len, parts)) + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(part.ends) for part in parts]), out=ends[1:])
        return cls(np.concatenate([part.data for part in parts]), ends)

    @classmethod
    def numbered(cls, counts: Sequence[int], width: int, suffix: str = "") -> Strings:
        """The numbers of rows, from 0 on in each part, with zeros in front so that they sort."""
        width = max(width, len(str(max(1, *counts) - 1)))
        rows = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)])
        cells = np.empty((len(rows), width + len(suffix)), np.uint8)
        for place in range(width):  # all at once would take nine times the memory
            cells[:, place] = rows // 10 ** (width - 1 - place) % 10 + ord("0")
        cells[:, width:] = np.frombuffer(suffix.encode(), np.uint8)
        ends = np.arange(len(rows) + 1, dtype=np.int64) * (width + len(suffix))
        return cls(cells.reshape(-1), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[int(self.ends[row]) : int(self.ends[row + 1])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        ends = self.ends.tolist()
        data = np.ascontiguousarray(self.data).data
        return (bytes(data[a:b]) for a, b in itertools.pairwise(ends))

    def text(self, row: int) -> str:
        """Return a row as str; bytes that are no UTF-8 as surrogates, as in file names."""
        return self[row].decode("utf-8", "surrogateescape")

    def distinct(self) -> bool:
        """Return whether no string is there twice.

        Equal strings have equal hashes: of a position's power each, which cumulated sums give for
        millions at once. Where two hashes are equal the strings themselves are compared.
        """
        hashes = np.empty(len(self), np.uint64)
        longest = int(np.diff(self.ends).max(initial=0))
        size = min(_HASHED + longest, int(self.ends[-1])) + 1
        powers, inverse = (_powers(one, size) for one in (_BASE, _INVERSE))
        row = 0
        while row < len(self):
            fit = int(np.searchsorted(self.ends, self.ends[row] + _HASHED, "right")) - 1
            stop = max(row + 1, fit)
            data = self.data[int(self.ends[row]) : int(self.ends[stop])]
            sums = np.zeros(len(data) + 1, np.uint64)
            np.cumsum(data * powers[: len(data)], out=sums[1:])
            ends = self.ends[row : stop + 1] - self.ends[row]
            hashes[row:stop] = (sums[ends[1:]] - sums[ends[:-1]]) * inverse[ends[:-1]]
            row = stop
        hashes.sort()
        return not (hashes[1:] == hashes[:-1]).any() or len(set(self)) == len(self)

    def take(self, rows: npt.NDArray[np.integer]) -> Strings:
        """The given rows, in their order.

        Raises:
            BadContainer: one would end before it begins, as only a damaged index has it.
        """
        starts, lengths = self.ends[:-1][rows], np.diff(self.ends)[rows]
        if len(lengths) and lengths.min() < 0:
            raise BadContainer("names end before they begin: the index is damaged")
        ends = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        # Of each byte: its place in its string, added to where that string began.
        places = np.arange(int(ends[-1])) - np.repeat(ends[:-1] - starts, lengths)
        return Strings(self.data[places], ends)


@dataclass(frozen=True)
class Split:
    """Samples [start, stop) of an index.

    Attributes:
        name: `train`, `val`, `test`, …
        folder: what stands before its keys when they are made files again; may be empty.
    """

    name: str
    start: int
    stop: int
    folder: str = ""


@dataclass(frozen=True)
class Field:
    """The places of one field of each sample.

    Attributes:
        name: in HDF5 the name of a group or data set, in tar the end of the file's name.
        offset: int64 (n,) in its file. Negative: the bytes lie in several pieces or compressed;
            `~offset` is then the number by which the container's own `Fallback` knows them.
        length: int64 (n,) in bytes; with a fallback -1 where it is not known before it is read.
        file: uint32 (n,), row of `Index.files`; None: all in the first one.
        hash: uint64 (n,), xxh3 of the bytes; None where nobody has computed it.
        dtype, shape: of each sample, where it is an array in C order (numpy's dtype string with its
            byte order, as `<f4`); empty where it is bytes.
    """

    name: str
    offset: Int64s
    length: Int64s
    file: npt.NDArray[np.uint32] | None = None
    hash: UInt64s | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Bytes of each sample of an array."""
        return math.prod(self.shape) * (np.dtype(self.dtype).itemsize if self.dtype else 1)


@dataclass(frozen=True)
class Index:
    """The samples of a container, and their places.

    Attributes:
        container: a name of `containers.FORMATS`.
        files: paths of the data files, relative to the container where that is a folder, empty
            where it is the one data file itself; absolute where a list names files elsewhere.
        splits: cover [0, n) without gaps, in order.
        keys: of the samples; unique and in order within a split where rankup has written them.
        labels: int64 (n,), rows of `classes` where there are any; -1: none. None: no labels at all.
        sizes: int64, bytes of each file when the index was made; empty where that is not known.
        times: int64, modification time of each file then, ns since 1970; None: not noted.
        facts: JSON values: who wrote it, with which options, what a reader may want to see.
    """

    container: str
    files: Strings
    splits: tuple[Split, ...]
    keys: Strings
    fields: tuple[Field, ...]
    labels: Int64s | None = None
    classes: tuple[str, ...] = ()
    sizes: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    facts: Mapping[str, Any] = field(default_factory=dict)
    times: Int64s | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def field(self, name: str | None = None) -> Field:
        """The field of a name; the first without one.

        Raises:
            UserError: there is none of that name.
        """
        for one in self.fields:
            if name is None or one.name == name:
                return one
        known = ", ".join(one.name for one in self.fields) or "none"
        raise UserError(f"no field {name!r} in this container; it has {known}")

    def split(self, name: str) -> Split:
        """The split of a name.

        Raises:
            UserError: there is none of that name.
        """
        for one in self.splits:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.splits) or "none"
        raise UserError(f"no split {name!r} in this container; it has {known}")

    def split_of(self, row: int) -> Split:
        """The split that a sample belongs to."""
        return next(one for one in self.splits if one.start <= row < one.stop)

    def path(self, row: int) -> str:
        """Split and key of a sample, as it is named to people: `train/n01440764/x.JPEG`."""
        return f"{self.split_of(row).name}/{self.keys.text(row)}"

    def take(self, rows: Int64s, splits: tuple[Split, ...]) -> Index:
        """The given samples, in their order, as the given splits."""
        return replace(
            self,
            keys=self.keys.take(rows),
            labels=None if self.labels is None else self.labels[rows],
            fields=tuple(_take(one, rows) for one in self.fields),
            splits=splits,
        )


def _take(one: Field, rows: Int64s) -> Field:
    return replace(
        one,
        offset=one.offset[rows],
        length=one.length[rows],
        file=None if one.file is None else one.file[rows],
        hash=None if one.hash is None else one.hash[rows],
    )


def data_path(root: Path, files: Strings, row: int) -> Path:
    """Return the path of a file of an index.

    Args:
        root: the container, to which `files` are relative; an empty name is the container itself.
    """
    name = files.text(row)
    return root / name if name else root


def folders(splits: Sequence[Split]) -> list[bytes]:
    """Return what stands before the keys of each split as files: a folder with a `/`, or nothing.

    It is the split's own folder, or its name where two of them have the same.
    """
    names = [one.folder for one in splits]
    if len(set(names)) < len(names):
        names = [one.name for one in splits]
    return [os.fsencode(name) + b"/" if name else b"" for name in names]


def ordered(index: Index, split_of: npt.NDArray[np.integer], splits: tuple[Split, ...]) -> Index:
    """The samples by split, and within one by the bytes of their keys.

    Args:
        split_of: (n,) row of `splits` for each sample; samples of -1 are left out.
        splits: names and folders in their order; start and stop are filled in.
    """
    keys = np.array(list(index.keys), dtype=object)
    parts, filled, start = [], [], 0
    for number, split in enumerate(splits):
        rows = np.flatnonzero(split_of == number)
        rows = rows[np.argsort(keys[rows], kind="stable")]
        parts.append(rows)
        filled.append(replace(split, start=start, stop=start + len(rows)))
        start += len(rows)
    rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return index.take(rows.astype(np.int64), tuple(filled))
