"""HDF5 files of others: groups, or the root, with data sets whose rows are samples.

Numbers that lie in one piece are read where they lie, like our own. Rows of variable length, as
the `images` of many a course, are read by `hdf5_data`; compressed ones by h5py, chunk by chunk.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import images
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Strings
from ..keys import CLASSES, KEYS, LABELS, kind_of, split_order
from . import Choice, hdf5_layout
from .columns import Column, Table, check_known, indexed
from .hdf5_layout import column, members, opened, place

_FACT = "hdf5"
_DEPTH = 16
# Rows are kept in blocks of at most so many bytes: a compressed chunk is unpacked as a whole.
_KEPT = 32 << 20
_BLOCKS = 4


def scan(path: Path, choice: Choice) -> Index:
    """Return the index of a file of others; splits are its groups.

    Raises:
        BadContainer: it is damaged, hostile, or no HDF5.
        UserError: what `choice` names is not in it, or what is there cannot be samples.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:  # for its own errors; those of h5py do not tell
        size = os.fstat(file.fileno()).st_size
    try:
        with opened(path) as file:
            if hdf5_layout.MARK in file.attrs:
                raise BadContainer(_ours(path, int(file.attrs[hdf5_layout.MARK])))
            return _scan(file, size, choice)
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


def _scan(file: h5py.File, size: int, choice: Choice) -> Index:
    groups = _chosen(file, choice)
    tables = [
        Table(
            *_named(path.rpartition("/")[2], path, len(groups), choice),
            {
                name: (_MemberColumn if isinstance(one, _Member) else _Column)(one, size)
                for name, one in data.items()
            },
        )
        for path, data in groups
    ]
    splits = [table.split for table in tables]
    if len(set(splits)) != len(splits):
        raise UserError(f"two of its groups would be the same split: {', '.join(sorted(splits))}")
    order = sorted(range(len(tables)), key=lambda row: split_order(tables[row].split))
    classes = _class_names(file, size)
    index = indexed("hdf5", [tables[row] for row in order], choice, size, width=1, classes=classes)
    lies = [
        [groups[row][0], split.stop - split.start, _heaps(groups[row][1], size)]
        for row, split in zip(order, index.splits, strict=True)
    ]
    base, lone = hdf5_layout.base(file), index.facts["columns"].get("data", "")
    return replace(index, facts={_FACT: {"tables": lies, "base": base, "data": lone}})


def _chosen(file: h5py.File, choice: Choice) -> list[tuple[str, dict[str, Any]]]:
    """The groups that have samples, by their paths, with the data sets that may be taken.

    Of a compound data set, which is a table, each member is one.
    """
    found = []
    known: set[str] = set()
    for group, everything in _groups(file):
        data: dict[str, Any] = {
            name: one for name, one in everything.items() if one.ndim and not _is_classes(name, one)
        }
        for table in [name for name, one in data.items() if _dtype(one).names]:
            rows = data.pop(table)
            for member in rows.dtype.names:
                name = f"{table}.{member}" if member in data or member in everything else member
                data[name] = _Member(rows, member)
        known.update(data)
        if choice.fields:
            wanted = {*choice.fields, choice.label, choice.key, *LABELS, *KEYS}
            if not set(choice.fields) & set(data):
                continue
            data = {name: one for name, one in data.items() if name in wanted}
        else:  # axes, as netCDF has them, are no column beside what they are axes of
            axes = {name for name, one in data.items() if _is_axis(one)}
            if axes < {*data}:
                data = {name: one for name, one in data.items() if name not in axes}
        if data:
            found.append((str(group.name), data))
    check_known(choice, known, "data set")
    if not found:
        raise UserError("there is no data set in it whose rows could be samples")
    return found


class _Member:
    """A member of a compound data set, with what a data set of it alone would have."""

    attrs: ClassVar[dict[str, object]] = {}

    def __init__(self, data: h5py.Dataset, member: str) -> None:
        self.data, self._member = data, member
        inner = data.dtype[member]
        self.dtype, below = inner.subdtype or (inner, ())
        self.shape = (*data.shape, *below)
        self.ndim, self.chunks = len(self.shape), data.chunks
        self.name = f"{data.name}.{member}"

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self.data.fields(self._member)[rows]
        return values

    @classmethod
    def of(cls, group: h5py.Group, name: str) -> _Member | None:
        """The member that is a column of this name in a group."""
        for table, data in members(group):
            if isinstance(data, h5py.Dataset) and data.ndim and _dtype(data).names:
                for member in data.dtype.names:
                    if name in (member, f"{table}.{member}"):
                        return cls(data, member)
        return None


def _is_axis(data: h5py.Dataset) -> bool:
    mark = data.attrs.get("CLASS")  # of HDF5's dimension scales
    return isinstance(mark, bytes | str) and mark in (b"DIMENSION_SCALE", "DIMENSION_SCALE")


def _groups(file: h5py.File) -> Iterator[tuple[h5py.Group, dict[str, h5py.Dataset]]]:
    """Every group with its data sets; each once, also where links make a circle."""
    seen = set()
    left = [(file["/"], 0)]
    while left:
        group, depth = left.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            continue
        seen.add(address)
        if depth > _DEPTH or len(seen) > 1000:
            raise BadContainer("its groups are nested very deeply, or more than a thousand")
        tree = dict(members(group))
        yield group, {name: one for name, one in tree.items() if isinstance(one, h5py.Dataset)}
        left += [(one, depth + 1) for one in tree.values() if isinstance(one, h5py.Group)]


def _named(last: str, path: str, tables: int, choice: Choice) -> tuple[str, str]:
    """Split and folder of a group; a group alone is one split, whatever its name is."""
    if tables == 1:
        return (last, last) if kind_of(last) else (choice.split, "")
    name = path.strip("/").replace("/", ".") or choice.split
    return name, name


def _heaps(data: dict[str, h5py.Dataset], size: int) -> dict[str, int]:
    """Where the tables of rows of variable length lie that can be read without h5py."""
    places = {
        name: place(one, size)
        for name, one in data.items()
        if isinstance(one, h5py.Dataset) and one.dtype.kind == "O" and hdf5_layout.is_heap(one)
    }
    return {name: at for name, at in places.items() if at is not None}


class _Column(Column):
    """A data set, of a file of `size` bytes."""

    def __init__(self, data: h5py.Dataset, size: int) -> None:
        self._data, self._size = data, size
        if math.prod(data.shape[1:]) == 1:
            number = "number" if _dtype(data).kind in "iub" else ""
            self.kind = "text" if _is_text(data) else number

    def rows(self) -> int:
        return int(self._data.shape[0])

    def values(self) -> Any:
        found = column(self._data, self._size)
        return Strings.of(found.tolist()) if self.kind == "text" else found

    def suffix(self) -> str:
        data = self._data
        at = place(data, self._size)
        if data.dtype.kind != "O" or not len(data) or at is None or not hdf5_layout.is_heap(data):
            return ""
        try:
            rows = hdf5_layout.Rows(Path(data.file.filename), hdf5_layout.base(data.file))
            head = next(rows.row(at), b"")
        except BadContainer:  # a damaged sample is named by who reads it
            return ""
        return images.suffix_of(head)

    def field(self, first: int) -> Field:
        data, size = self._data, self._size
        at, dtype, n = place(data, size), _dtype(data), self.rows()
        if n > size * 1032:  # more than deflate can make of so many bytes
            raise BadContainer(f"{data.name} has {n} rows, more than {size} bytes can hold")
        number = ~np.arange(first, first + n, dtype=np.int64)
        if dtype.kind == "O":
            _check_variable(data)
            return Field("", number, _lengths(data, at, size))
        shape = tuple(map(int, data.shape[1:]))
        one = math.prod(shape) * dtype.itemsize
        raw = data.id.get_type()
        lies = at is not None and raw.get_size() == dtype.itemsize and _as_in_memory(raw, dtype)
        offset = (at or 0) + np.arange(n, dtype=np.int64) * one if lies else number
        return Field("", offset, np.full(n, one, np.int64), None, None, dtype.str, shape)


class _MemberColumn(Column):
    """A member of a compound data set: its rows lie in no piece, and are read by h5py."""

    def __init__(self, data: _Member, size: int) -> None:
        self._data, self._size = data, size
        self._text = data.dtype.kind == "S" or h5py.check_string_dtype(data.dtype) is not None
        if math.prod(data.shape[1:]) == 1:
            self.kind = "text" if self._text else "number" if data.dtype.kind in "iub" else ""

    def rows(self) -> int:
        return int(self._data.shape[0])

    def values(self) -> Any:
        place(self._data.data, self._size)
        values = self._data[:].reshape(-1)
        return Strings.of(values.tolist()) if self.kind == "text" else values

    def field(self, first: int) -> Field:
        data, n = self._data, self.rows()
        place(data.data, self._size)
        if n > self._size * 1032:  # as of a data set
            raise BadContainer(f"{data.name} has {n} rows, more than its file can hold")
        number = ~np.arange(first, first + n, dtype=np.int64)
        if data.dtype.kind == "O" and self._text and data.ndim == 1:
            blocks = (data[at : at + 4096] for at in range(0, n, 4096))
            return Field("", number, np.fromiter((len(t) for b in blocks for t in b), np.int64, n))
        if data.dtype.kind not in "iufcbS":
            raise UserError(
                f"the member {data.name} is {data.dtype}, which is no number and no text; leave "
                "it out by naming the others with --fields"
            )
        length = math.prod(data.shape[1:]) * data.dtype.itemsize
        shape = tuple(map(int, data.shape[1:]))
        lengths = np.full(n, length, np.int64)
        return Field("", number, lengths, None, None, data.dtype.str, shape)


def _dtype(data: h5py.Dataset) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = data.dtype
    except TypeError as error:
        raise UserError(
            f"the data set {data.name} is of a type that numpy does not have ({error}); leave it "
            "out by naming the others with --fields"
        ) from None
    return found


def _as_in_memory(raw: h5py.h5t.TypeID, dtype: np.dtype[np.generic]) -> bool:
    """Return True where the bytes in the file are those that numpy has in memory."""
    if dtype.kind in "Sb":
        return True
    return dtype.kind in "iuf" and raw == h5py.h5t.py_create(dtype)


def _check_variable(data: h5py.Dataset) -> None:
    if h5py.check_ref_dtype(data.dtype) is not None:
        raise BadContainer(f"{data.name} has references to other objects, which are not followed")
    inner = h5py.check_vlen_dtype(data.dtype)
    text = h5py.check_string_dtype(data.dtype) is not None
    if data.ndim != 1 or not (text or (inner is not None and inner.itemsize == 1)):
        raise UserError(
            f"the data set {data.name} has rows of different lengths that are no bytes and no "
            f"text ({inner or data.dtype}); leave it out by naming the others with --fields"
        )


def _lengths(data: h5py.Dataset, at: int | None, size: int) -> Int64s:
    n = int(data.shape[0])
    if at is None or not hdf5_layout.is_heap(data):
        return np.fromiter((len(one) for one in _each(data)), np.int64, n)
    length = hdf5_layout.lengths(data, at)
    if int(length.sum()) > size:
        raise BadContainer(f"the rows of {data.name} are longer together than the file")
    return length


def _each(data: h5py.Dataset) -> Iterator[bytes]:
    for start in range(0, int(data.shape[0]), 64):
        yield from data[start : start + 64]


def _is_text(data: h5py.Dataset) -> bool:
    """Return True where each element is a string, of fixed or variable length."""
    return data.dtype.kind == "S" or h5py.check_string_dtype(data.dtype) is not None


def _is_classes(name: str, data: h5py.Dataset) -> bool:
    """Return True where a data set has names of classes, and no samples."""
    return name.lower() in CLASSES and data.ndim == 1 and _is_text(data)


def _class_names(file: h5py.File, size: int) -> tuple[str, ...]:
    """From the root; empty where it has none."""
    for name, one in members(file):
        if isinstance(one, h5py.Dataset) and _is_classes(name, one):
            words = column(one, size).tolist()
            return tuple(word.decode("utf-8", "surrogateescape") for word in words)
    return ()


def fallback(index: Index, root: Path) -> Rows:
    """Reads what is compressed or of variable length."""
    about = index.facts.get(_FACT) or {"tables": [], "base": 0, "data": ""}
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
        heaps: name of a data set -> where its rows of variable length lie.
    """

    path: str
    rows: int
    heaps: dict[str, int]


class Rows:
    """Rows of data sets as bytes. Opens the file when it first reads.

    Rows of variable length are read by position, the others by h5py.

    Args:
        path: the file.
        groups: in the order of their rows' numbers.
        base: what addresses in the file count from.
        lone: what the one field of bytes is called in the file.
    """

    def __init__(self, path: Path, groups: list[Group], base: int, lone: str) -> None:
        self._path, self._groups, self._lone = path, groups, lone
        self._heaps = hdf5_layout.Rows(path, base)
        self._ends = list(itertools.accumulate(group.rows for group in groups))
        self._file: h5py.File | None = None
        self._known: dict[str, Any] = {}
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
            yield from self._heaps.row(heap + row * hdf5_layout.WIDTH)
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

    def _data(self, path: str) -> Any:
        if self._file is None:
            self._file = opened(self._path)
        if path not in self._known:  # an index from elsewhere may name what `scan` would refuse
            group, _, name = path.rpartition("/")
            held = self._file.get(group or "/")
            if isinstance(held, h5py.Group) and name not in held:
                member = _Member.of(held, name)
                if member is not None:
                    place(member.data, self._path.stat().st_size)
                    self._known[path] = member
                    return member
            self._known[path] = hdf5_layout.at(self._file, path)
        return self._known[path]
