"""Of what pieces a copy consists, and which samples lie in each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.errors import UserError
from ..index import Index, Int64s, UInt64s, data_path

# Pieces of 2 MiB stay in the caches while they are read, hashed and written: with 16 MiB the same
# takes 13 % more of a core. File systems with larger blocks get one of them at a time.
LEAST, PIECE = 2 << 20, 16 << 20


class Piece(NamedTuple):
    """Bytes [offset, offset + length) of a file of the index."""

    file: int
    offset: int
    length: int


class Sums(NamedTuple):
    """Samples with hashes, sorted by file and offset."""

    file: Int64s
    offset: Int64s
    length: Int64s
    hash: UInt64s
    row: Int64s
    field: int


def pieces(cuts: Int64s, most: int | None = None) -> tuple[Piece, ...]:
    """The pieces of a copy, in order; equal for equal arguments.

    Args:
        cuts: bytes of each file that are copied, from its beginning.
        most: bytes of a piece; by default `PIECE`.
    """
    most = PIECE if most is None else most
    return tuple(
        Piece(file, offset, min(most, size - offset))
        for file, size in enumerate(cuts.tolist())
        for offset in range(0, size, most)
    )


def best_piece(source: Path) -> int:
    """Bytes of a piece that suit a source's file system; equal on all nodes that see it."""
    return min(max(os.stat(source).st_blksize, LEAST), PIECE)


def sizes(index: Index, source: Path) -> Int64s:
    """Bytes of each file of a container, int64 (files,), as its index says or as they are.

    Raises:
        UserError: a file is not there.
    """
    if len(index.sizes):
        return np.asarray(index.sizes, np.int64)
    return np.array(list(_lengths(index, source, range(len(index.files)))), np.int64)


def _lengths(index: Index, source: Path, rows: Iterable[int]) -> Iterator[int]:
    for row in rows:
        path = data_path(source, index.files, row)
        try:
            yield path.stat().st_size
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None


def sums_of(index: Index, number: int) -> Sums | None:
    """The samples of one field that a piece is compared with; None without hashes."""
    field = index.fields[number]
    if field.hash is None:
        return None
    offset, length = field.offset, field.length
    file = np.zeros(len(offset), np.int64) if field.file is None else field.file.astype(np.int64)
    rows = np.arange(len(offset), dtype=np.int64)
    kept = (offset >= 0) & (length >= 0)
    if not kept.all():
        rows = np.flatnonzero(kept)
    if not _sorted(file[rows], offset[rows]):
        rows = rows[np.lexsort((offset[rows], file[rows]))]
    if len(rows) == len(offset) and bool((np.diff(rows) == 1).all()):
        return Sums(file, offset, length, field.hash, rows, number)
    return Sums(file[rows], offset[rows], length[rows], field.hash[rows], rows, number)


def outside(index: Index, number: int, sizes: Int64s) -> int | None:
    """The first sample of a field that does not lie wholly in a file; None where all do.

    Args:
        sizes: bytes of each file.
    """
    field = index.fields[number]
    file = np.zeros(1, np.int64) if field.file is None else field.file.astype(np.int64)
    there = (file >= 0) & (file < len(sizes))
    of = sizes[np.where(there, file, 0)] if len(sizes) else np.zeros(1, np.int64)
    # Subtracted, since a sum could be more than an int64 holds.
    wrong = ~there | (field.offset > of - np.maximum(field.length, 0))
    wrong &= field.offset >= 0  # others are read by the format itself
    return int(np.argmax(wrong)) if wrong.any() else None


def _sorted(file: Int64s, offset: Int64s) -> bool:
    step = np.diff(file)
    return not bool(np.any(step < 0) or np.any((step == 0) & (np.diff(offset) < 0)))
