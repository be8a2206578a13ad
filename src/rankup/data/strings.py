"""Millions of strings in two arrays: a Python list of them would be copied into every worker."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import BadContainer

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2 ** 64
_INVERSE = pow(_BASE, -1, 1 << 64)
_HASHED = 1 << 17  # bytes at a time, so that they stay in the processor's cache


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
