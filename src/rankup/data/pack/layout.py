"""Where every byte of a container will stand, known before the first of them is written.

That is what lets any number of processes write one file: each sample, and what stands around it,
has its place.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from ...base.errors import UserError
from ..index import Index, Int64s, UInt64s

# Bytes of samples that a unit has at least; it is what is done or not after an interruption.
UNIT = 64 << 20
_SAMPLES = 8192  # and at most, so that what stands around them stays small


class Piece(NamedTuple):
    """Bytes of a container that are no sample: headers, padding, columns.

    Attributes:
        file: row of `Layout.index.files`.
    """

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Shape:
    """The options of a container's form.

    Attributes:
        shard: bytes after which the next tar begins.
    """

    shard: int = 1 << 30


class Layout(Protocol):
    """The form of a container for given samples. The same samples give the same bytes.

    Attributes:
        index: of the container to be: files, splits, keys, labels, and of each field where it will
            lie (each offset and length is known, hashes are not).
        sizes: int64 (files,), bytes of each file once it is whole.
        units: int64 (u + 1,), rows at which units begin, and the end; a unit is written by one
            process.
    """

    @property
    def index(self) -> Index: ...

    @property
    def sizes(self) -> Int64s: ...

    @property
    def units(self) -> Int64s: ...

    def begin(self, root: Path) -> Layout:
        """Make the files, each with its full size, and all in them that belongs to no unit.

        Called once, by one process; the layout it gives is the final one.

        Args:
            root: the folder (it exists), or of a container that is one file that file, new.
        """

    def attach(self, root: Path) -> Layout:
        """The layout that `begin` gave, in another process, from the files."""

    def before(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield the bytes around the samples [start, stop) of a unit; in no order."""

    def after(self, start: int, stop: int, hashes: UInt64s) -> Iterator[Piece]:
        """Yield the bytes that depend on the hashes of a unit's samples.

        Args:
            hashes: uint64 (fields, stop - start).
        """

    def finish(self, root: Path, hashes: UInt64s) -> None:
        """Called once, by one process, when all units are written: side files of the format.

        Args:
            hashes: uint64 (fields, n).
        """


def units(source: Index, stops: Iterable[int]) -> Int64s:
    """Return the rows at which units begin, and the last row's successor.

    Args:
        stops: rows across which no unit goes, in order; the last is the number of samples.
    """
    ends = np.zeros(len(source) + 1, np.int64)
    np.cumsum(sum(field.length for field in source.fields), out=ends[1:])
    rows = [0]
    for stop in stops:
        while rows[-1] < stop:
            full = int(np.searchsorted(ends, ends[rows[-1]] + UNIT))
            rows.append(min(full, rows[-1] + _SAMPLES, stop))
    return np.array(rows, np.int64)


def sample_bytes(index: Index) -> int:
    """Return the bytes of all samples whose length is known."""
    return sum(int(field.length.clip(0).sum()) for field in index.fields)


# Containers that are written at final offsets -> module with `plan(source, shape) -> Layout`.
LAYOUTS = {"hdf5": "hdf5_layout", "arrow": "arrow_layout", "tar": "tar_layout"}


def plan(container: str, source: Index, shape: Shape) -> Layout:
    """The layout of a container for the samples of `source`, in their order. Pure.

    Args:
        source: all lengths are known.

    Raises:
        UserError: these samples cannot be written as this container; the reason is named.
    """
    if not source.fields:
        raise UserError("the source has names and labels, and no bytes for them")
    module = importlib.import_module(f"rankup.data.containers.{LAYOUTS[container]}")
    layout: Layout = module.plan(source, shape)
    return layout
