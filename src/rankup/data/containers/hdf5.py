"""HDF5: our files, the course's, and other people's arrays."""

from __future__ import annotations

import bisect
import io
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy.typing as npt

from ...base.errors import UserError
from ..errors import BadContainer
from ..index import Index
from . import Choice, hdf5_foreign, hdf5_heap, hdf5_parts
from .hdf5_parts import opened

# Rows are kept in blocks of at most so many bytes: a compressed chunk is unpacked as a whole.
_KEPT = 32 << 20
_BLOCKS = 4


def scan(path: Path, choice: Choice) -> Index:
    """Where everything lies; see `hdf5_foreign` for what is understood.

    Raises:
        BadContainer: it is damaged, hostile, or no HDF5.
        UserError: what `choice` names is not in it.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:  # for its own errors; those of h5py do not tell
        size = os.fstat(file.fileno()).st_size
    try:
        with opened(path) as file:
            if hdf5_parts.MARK in file.attrs:
                raise BadContainer(_ours(path, int(file.attrs[hdf5_parts.MARK])))
            return hdf5_foreign.scan(file, size, choice)
    except UserError as error:
        raise type(error)(f"{path}: {error}") from None
    except Exception as error:  # whatever libhdf5 found, and what its lies led to
        raise BadContainer(
            f"{path} is no HDF5 file, or a damaged one: {type(error).__name__}: {error}"
        ) from None


def _ours(path: Path, version: int) -> str:
    """Why a file of rankup's is not read: only its index says what is in it."""
    if version == 0:
        return "it was being written when that was interrupted: pack again, with --resume"
    return (
        f"it was packed by rankup, and its index {path.name}.index.npz is missing, which stood "
        "beside it: bring that back, or pack the source again"
    )


def fallback(index: Index, root: Path) -> Rows:
    """Reads what is compressed or of variable length."""
    about = index.facts.get(hdf5_foreign.FACT) or {"tables": [], "base": 0, "data": ""}
    try:
        groups = [Group(str(path), int(rows), dict(heaps)) for path, rows, heaps in about["tables"]]
        return Rows(root, groups, int(about["base"]), str(about["data"]))
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise BadContainer(
            f"the index of {root} does not say where its rows are: {error!r}"
        ) from None


class Group(NamedTuple):
    """Where rows are.

    Attributes:
        path: of a group in the file.
        rows: how many each of its data sets has.
        heaps: name of a data set -> where its `hdf5_heap` rows lie.
    """

    path: str
    rows: int
    heaps: dict[str, int]


class Rows:
    """Rows of data sets as bytes. Opens the file when it first reads.

    Rows of variable length are read by position, the others by h5py, which opens the file again
    after a fork.

    Args:
        path: the file.
        groups: in the order of their rows' numbers.
        base: what addresses in the file count from.
        lone: what the one field of bytes is called in the file.
    """

    def __init__(self, path: Path, groups: list[Group], base: int, lone: str) -> None:
        self._path, self._groups, self._base, self._lone = path, groups, base, lone
        self._ends = list(itertools.accumulate(group.rows for group in groups))
        self._raw: io.FileIO | None = None
        self._file: h5py.File | None = None
        self._known: dict[str, h5py.Dataset] = {}
        self._pid = 0
        self._kept: dict[str, tuple[int, npt.NDArray[Any]]] = {}

    def chunks(self, field: str, number: int) -> Iterator[bytes | memoryview]:
        """The bytes of one field of one sample, piece by piece.

        Raises:
            BadContainer: they cannot be read.
        """
        try:
            table = bisect.bisect_right(self._ends, number)
            row = number - (self._ends[table - 1] if table else 0)
            group = self._groups[table]
            name = self._lone if field == "data" and self._lone else field
            heap = group.heaps.get(name)
            if heap is None:
                yield self._row(f"{group.path.rstrip('/')}/{name}", row)
                return
            raw = self._raw  # a name of its own keeps it open while another thread replaces it
            if raw is None:
                raw = self._raw = io.FileIO(self._path)
            at = heap + row * hdf5_heap.WIDTH
            yield from hdf5_heap.row(raw.fileno(), at, self._base)
        except Exception as error:  # as in `scan`
            why = str(error) if isinstance(error, BadContainer) else repr(error)
            raise BadContainer(
                f"{self._path}: row {number} of {field} cannot be read: {why}"
            ) from None

    def _row(self, path: str, row: int) -> bytes:
        kept = self._kept.get(path)
        if kept is None or not kept[0] <= row < kept[0] + len(kept[1]):
            kept = self._read(path, row)
            if not kept[1].dtype.hasobject:
                self._kept = dict([*self._kept.items(), (path, kept)][-_BLOCKS:])
        first, values = kept
        if not values.dtype.hasobject:
            return values[row - first :][:1].tobytes()
        value = values[row - first]
        return value if isinstance(value, bytes) else bytes(value.tobytes())

    def _read(self, path: str, row: int) -> tuple[int, npt.NDArray[Any]]:
        """Rows around one, and the first one's number: those of its chunk, if these are small."""
        data = self._data(path)
        step = data.chunks[0] if data.chunks else 1
        one = math.prod(data.shape[1:]) * data.dtype.itemsize
        if data.dtype.hasobject or step * one > _KEPT:
            step = 1
        first = row // step * step
        return first, data[first : first + step]

    def _data(self, path: str) -> h5py.Dataset:
        file = self._opened()
        if path not in self._known:  # an index from elsewhere may name what `scan` would refuse
            self._known[path] = hdf5_parts.at(file, path)
        return self._known[path]

    def _opened(self) -> h5py.File:
        if self._file is None or self._pid != os.getpid():
            self._close_file()
            self._file, self._pid = opened(self._path), os.getpid()
        return self._file

    def _close_file(self) -> None:
        file, self._file, self._known = self._file, None, {}
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the file; it opens again when something is read."""
        self._close_file()
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def __del__(self) -> None:
        if self._raw is not None:
            self._raw.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_raw": None, "_file": None, "_known": {}, "_kept": {}}
