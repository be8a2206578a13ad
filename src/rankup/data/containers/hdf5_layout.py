"""HDF5 written at final offsets: one process makes the file, any number fill it in with `pwrite`.

All data sets are contiguous, allocated early and never filled, so that each has its place in the
file before it has content. libhdf5 then has no part in the writing, nor has MPI.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from h5py import h5d, h5p, h5s, h5t

from ...base.errors import UserError
from ...base.files import pwrite_all
from ..index import Field, Index, Int64s, Split, UInt64s
from ..pack.layout import UNIT, Piece, Shape
from ..strings import Strings
from .hdf5_ours import CLASSES, MARK, VERSION, is_lone, link, paths
from .hdf5_parts import opened, spread

# Samples that a unit has at most: what a process holds of them is bounded.
_ROWS = 8192
# Rows of a column that are made at once.
_STEP = 1 << 16


@dataclass(frozen=True)
class Column:
    """A data set to be."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Hdf5Layout:
    """A `Layout`; until `begin` made the file, places in it are estimates.

    Attributes:
        places: offset in the file of each data set, by its path.
    """

    index: Index
    sizes: Int64s
    units: Int64s
    places: Mapping[str, int]

    def begin(self, root: Path) -> Hdf5Layout:
        """Make the file with all its columns but those of hashes."""
        columns = _columns(self.index)
        with h5py.File(root, "w", libver="earliest", locking=False) as file:
            file.attrs[MARK] = np.int64(0)
            _make_groups(file, self.index)
            for path, column in columns.items():
                _make(file, path, column)
            _mark_order(file, self.index)
        layout = self.attach(root)
        with root.open("r+b", buffering=0) as raw:
            for path, content in _contents(self.index):
                at = layout.places[path]
                for part in content:
                    at += _write(raw.fileno(), part, at)
        return layout

    def attach(self, root: Path) -> Hdf5Layout:
        """The layout with the places that the file has."""
        with opened(root) as file:
            # What is empty has no place; the samples in it, of no bytes, are at the beginning.
            places = {path: file[path].id.get_offset() or 0 for path in _columns(self.index)}
        return _placed(self.index, self.units, places, root.stat().st_size)

    def before(self, start: int, stop: int) -> Iterator[Piece]:
        """Nothing: samples stand one after another."""
        return iter(())

    def after(self, start: int, stop: int, hashes: UInt64s) -> Iterator[Piece]:
        """The rows of the columns of hashes; a unit lies in one split."""
        if start == stop:
            return
        split = self.index.split_of(start)
        lone = is_lone(self.index.fields)
        for field, values in zip(self.index.fields, hashes, strict=True):
            at = self.places[paths(split.name, field, lone).hashes]
            data = values.astype("<u8").tobytes()
            yield Piece(0, at + (start - split.start) * 8, data)

    def finish(self, root: Path, hashes: UInt64s) -> None:
        """Say in the file that it is whole."""
        with h5py.File(root, "r+", libver="earliest", locking=False) as file:
            file.attrs.modify(MARK, np.int64(VERSION))


def plan(source: Index, shape: Shape) -> Hdf5Layout:
    """The file for the samples of `source`, in their order. Pure.

    Raises:
        UserError: a name or an array type that HDF5 cannot have, or an array of another size.
    """
    _check_names(source)
    for field in source.fields:
        _check_field(field)
    fields = tuple(replace(one, file=None, hash=None) for one in source.fields)
    index = Index(
        "hdf5",
        Strings.of([b""]),
        source.splits,
        source.keys,
        fields,
        source.labels,
        source.classes,
    )
    columns = _columns(index)
    ends = spread(np.array([column.size for column in columns.values()], np.int64)) + 4096
    places = dict(zip(columns, ends.tolist(), strict=False))
    return _placed(index, _units(index), places, int(ends[-1]))


def _check_names(source: Index) -> None:
    for what, names in (
        ("split", [one.name for one in source.splits]),
        ("field", [one.name for one in source.fields]),
    ):
        for name in names:
            if not name or not _encodable(name):
                raise UserError(f"{name!r} is no name for a {what} in HDF5: rename it")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"there are two {what}s named {twice!r}: rename one of them")
    for name in source.classes:
        if "\0" in name or not _encodable(name):
            raise UserError(f"{name!r} is no name for a class in HDF5: rename it")
    if not np.all(source.keys.data):
        row = next(row for row, key in enumerate(source.keys) if b"\0" in key)
        raise UserError(
            f"the sample {source.path(row)!r} has a zero byte in its name, which strings in HDF5 "
            "end with: rename it"
        )


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _check_field(field: Field) -> None:
    if np.any(field.length < 0):
        raise UserError(f"how long the samples of {field.name!r} are is not known yet")
    if not field.dtype:
        return
    dtype = np.dtype(field.dtype)
    if dtype.hasobject or dtype.kind == "V":
        raise UserError(
            f"the field {field.name!r} is {dtype}, which rankup does not write to HDF5: leave it "
            "out (--fields), or turn it into numbers"
        )
    one = math.prod(field.shape) * dtype.itemsize
    wrong = np.flatnonzero(field.length != one)
    if len(wrong):
        raise UserError(
            f"sample {wrong[0]} of the field {field.name!r} has {field.length[wrong[0]]} bytes, "
            f"not the {one} of {dtype} of shape {field.shape}"
        )


def _columns(index: Index) -> dict[str, Column]:
    """Every data set of the file by its path, in the order in which they are made."""
    columns: dict[str, Column] = {}
    if index.classes:
        names = _class_names(index)
        columns[f"/{CLASSES}"] = Column(_text(names, 0, len(names)), (len(names),))
    lone = is_lone(index.fields)
    for split in index.splits:
        n = split.stop - split.start
        group = f"/{link(split.name)}"
        if index.labels is not None:
            columns[f"{group}/labels"] = Column(np.dtype("<i8"), (n,))
        columns[f"{group}/keys"] = Column(_text(index.keys, split.start, split.stop), (n,))
        for field in index.fields:
            at = paths(split.name, field, lone)
            columns[at.hashes] = Column(np.dtype("<u8"), (n,))
            if field.dtype:
                columns[at.data] = Column(np.dtype(field.dtype), (n, *field.shape))
            else:
                total = int(field.length[split.start : split.stop].sum())
                columns[at.offsets] = Column(np.dtype("<i8"), (n + 1,))
                columns[at.data] = Column(np.dtype("u1"), (total,))
    return columns


def _class_names(index: Index) -> Strings:
    return Strings.of(name.encode("utf-8", "surrogateescape") for name in index.classes)


def _text(strings: Strings, start: int, stop: int) -> np.dtype[np.generic]:
    longest = int(np.diff(strings.ends[start : stop + 1]).max(initial=1))
    dtype: np.dtype[np.generic] = h5py.string_dtype("utf-8", longest)
    return dtype


def _make_groups(file: h5py.File, index: Index) -> None:
    for order, split in enumerate(index.splits):
        group = file.create_group(link(split.name))
        group.attrs["order"] = np.int64(order)
        # Coded like a name: a folder's may be no UTF-8. A `/` in it stays one to be read by people.
        group.attrs["folder"] = "/".join(link(part) for part in split.folder.split("/") if part)


def _mark_order(file: h5py.File, index: Index) -> None:
    if is_lone(index.fields):
        return
    for split in index.splits:
        for order, field in enumerate(index.fields):
            file[link(split.name)][link(field.name)].attrs["order"] = np.int64(order)


def _make(file: h5py.File, path: str, column: Column) -> None:
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_layout(h5d.CONTIGUOUS)
    how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    if column.dtype.kind in "UMm":  # HDF5 has no such types; h5py knows these by their tag
        kind = h5t.py_create(h5py.opaque_dtype(column.dtype), logical=True)
    else:
        kind = h5t.py_create(column.dtype, logical=True)
    folder, _, name = path.rpartition("/")
    group = file.require_group(folder or "/")
    h5d.create(group.id, name.encode(), kind, h5s.create_simple(column.shape), how)


def _contents(index: Index) -> Iterator[tuple[str, Iterator[npt.NDArray[np.generic]]]]:
    """What stands in the columns that do not wait for the samples, piece by piece."""
    if index.classes:
        names = _class_names(index)
        yield f"/{CLASSES}", _table(names, 0, len(names))
    lone = is_lone(index.fields)
    for split in index.splits:
        group = f"/{link(split.name)}"
        if index.labels is not None:
            yield f"{group}/labels", iter([index.labels[split.start : split.stop].astype("<i8")])
        yield f"{group}/keys", _table(index.keys, split.start, split.stop)
        for field in index.fields:
            if not field.dtype:
                ends = spread(field.length[split.start : split.stop])
                yield paths(split.name, field, lone).offsets, iter([ends.astype("<i8")])


def _table(strings: Strings, start: int, stop: int) -> Iterator[npt.NDArray[np.generic]]:
    """Strings as rows of one width, padded with zeros."""
    width = _text(strings, start, stop).itemsize
    step = max(1, _STEP * 64 // max(width, 64))
    for first in range(start, stop, step):
        ends = strings.ends[first : min(first + step, stop) + 1]
        cells = np.zeros((len(ends) - 1, width), np.uint8)
        cells[np.arange(width) < np.diff(ends)[:, None]] = strings.data[ends[0] : ends[-1]]
        yield cells


def _write(descriptor: int, part: npt.NDArray[np.generic], at: int) -> int:
    view = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    pwrite_all(descriptor, view, at)
    return len(view)


def _placed(index: Index, units: Int64s, places: Mapping[str, int], size: int) -> Hdf5Layout:
    lone = is_lone(index.fields)
    fields = []
    for field in index.fields:
        offset = np.empty(len(index), np.int64)
        for split in index.splits:
            lengths = field.length[split.start : split.stop]
            at = places[paths(split.name, field, lone).data]
            offset[split.start : split.stop] = spread(lengths)[:-1] + at
        fields.append(replace(field, offset=offset))
    sizes = np.array([size], np.int64)
    return Hdf5Layout(replace(index, fields=tuple(fields), sizes=sizes), sizes, units, places)


def _units(index: Index) -> Int64s:
    """Rows at which units begin, each in one split: 64 MiB or more, or 8192 samples."""
    total = np.zeros(len(index), np.int64)
    for field in index.fields:
        total += field.length
    ends = spread(total)
    large = np.flatnonzero(total > UNIT)
    rows = [0]
    for split in index.splits:
        rows += _cut(split, ends, large)
    return np.array(rows, np.int64)


def _cut(split: Split, ends: Int64s, large: Int64s) -> Iterator[int]:
    """Where the units of a split end; a sample larger than one is a unit of its own."""
    start = split.start
    while start < split.stop:
        stop = int(np.searchsorted(ends, ends[start] + UNIT))
        following = int(np.searchsorted(large, start))
        if following < len(large):
            row = int(large[following])
            stop = start + 1 if row == start else min(stop, row)
        start = max(start + 1, min(stop, start + _ROWS, split.stop))
        yield start
