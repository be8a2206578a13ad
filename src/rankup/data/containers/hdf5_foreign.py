"""HDF5 files of others: groups, or the root, with data sets whose rows are samples.

Numbers that lie in one piece are read where they lie, like our own. Rows of variable length, as
the `images` of many a course, are read by `hdf5_heap`; compressed ones by h5py, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import h5py
import numpy as np

from ...base.errors import UserError, nearest
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, split_order
from ..strings import Strings
from . import Choice, hdf5_heap
from .hdf5_columns import KEYS, LABELS, Table, class_names, is_classes, keys_of, labels_of, numbered
from .hdf5_parts import Part, joined, members, place, rows, together

FACT = "hdf5"
# What the first bytes of a sample say about the names of all.
_SUFFIXES = ((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"))
_DEPTH = 16


def scan(file: h5py.File, size: int, choice: Choice) -> Index:
    """Where everything lies, and by which number `Rows` knows the rest.

    Splits are groups; labels and keys are the data sets named so (`LABELS`, `KEYS`).

    Raises:
        BadContainer: as `hdf5_parts.place`; references to objects.
        UserError: what `choice` names is not there, or what is there cannot be samples.
    """
    tables = _tables(file, choice)
    classes = class_names(file, size)
    label, labels, found = labels_of(tables, size, choice)
    classes = found or classes
    parts, first, start = [], 0, 0
    lone = ""
    for number, table in enumerate(tables):
        keys, key = keys_of(table, size, choice)
        data = {
            name: one
            for name, one in table.data.items()
            if name not in (label, key) and (not choice.fields or name in choice.fields)
        }
        fields = tuple(_field(name, one, first, size) for name, one in data.items())
        if len(fields) == 1 and not fields[0].dtype:
            if lone not in ("", fields[0].name):
                raise UserError(
                    f"its samples are called {lone!r} in one split and {fields[0].name!r} in "
                    "another: rename one of the data sets"
                )
            lone = fields[0].name
            fields = (replace(fields[0], name="data"),)
            keys = keys or numbered(table.rows, _suffix(data[lone], size))
        split = Split(table.split, start, start + table.rows, table.folder)
        keys = keys or numbered(table.rows, "")
        parts.append(Part(split, keys, fields, labels[number] if labels else None))
        first += table.rows
        start = split.stop
    fields = together([part.split.name for part in parts], [part.fields for part in parts])
    if not fields:
        raise UserError("there is nothing but labels in it: no data set with samples")
    every = [part.labels for part in parts if part.labels is not None]
    return Index(
        "hdf5",
        Strings.of([b""]),
        tuple(part.split for part in parts),
        joined([part.keys for part in parts]),
        fields,
        np.concatenate(every) if every else None,
        classes,
        np.array([size], np.int64),
        facts={
            FACT: {
                "tables": [[table.path, table.rows, _heaps(table, size)] for table in tables],
                "base": hdf5_heap.base(file),
                "data": lone,
            }
        },
    )


def _tables(file: h5py.File, choice: Choice) -> list[Table]:
    found = []
    known: set[str] = set()
    for group, everything in _groups(file):
        data = {
            name: one for name, one in everything.items() if one.ndim and not is_classes(name, one)
        }
        known.update(data)
        if choice.fields:
            wanted = {*choice.fields, choice.label, choice.key, *LABELS, *KEYS}
            if not set(choice.fields) & set(data):
                continue
            data = {name: one for name, one in data.items() if name in wanted}
        if data:
            found.append((str(group.name).strip("/"), group.name, data))
    for name in (*choice.fields, choice.label, choice.key):
        if name is not None and name not in known:
            raise UserError(f"there is no data set {name!r} in it; {nearest(name, known)}")
    if not found:
        raise UserError("there is no data set in it whose rows could be samples")
    named = [_named(path, len(found), choice) for path, _, _ in found]
    tables = [
        Table(str(path), split, folder, _same_rows(str(path), data))
        for (_, path, data), (split, folder) in zip(found, named, strict=True)
    ]
    splits = [table.split for table in tables]
    if len(set(splits)) != len(splits):
        raise UserError(f"two of its groups would be the same split: {', '.join(sorted(splits))}")
    return sorted(tables, key=lambda table: split_order(table.split))


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


def _named(path: str, tables: int, choice: Choice) -> tuple[str, str]:
    """Split and folder of a group; a group alone is one split, whatever its name is."""
    last = path.rpartition("/")[2]
    if tables == 1 and split_order(last.lower())[0] > 2:
        return choice.split, ""
    if tables == 1:
        return last, last
    name = path.replace("/", ".") or choice.split
    return name, name


def _same_rows(path: str, data: dict[str, h5py.Dataset]) -> dict[str, h5py.Dataset]:
    counts = {name: int(one.shape[0]) for name, one in data.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UserError(
            f"the data sets of {path} have different numbers of rows, so that a row is no sample: "
            f"{listed}; name those that belong together with --fields, or put each split into a "
            "group of its own"
        )
    return data


def _heaps(table: Table, size: int) -> dict[str, int]:
    """Where the tables of rows of variable length lie that can be read without h5py."""
    places = {
        name: place(one, size)
        for name, one in table.data.items()
        if one.dtype.kind == "O" and hdf5_heap.is_heap(one)
    }
    return {name: at for name, at in places.items() if at is not None}


def _suffix(data: h5py.Dataset, size: int) -> str:
    at = place(data, size)
    if not len(data) or at is None or not hdf5_heap.is_heap(data):
        return ""
    try:
        with open(data.file.filename, "rb") as file:
            head = next(hdf5_heap.row(file.fileno(), at, hdf5_heap.base(data.file)), b"")
    except BadContainer:  # a damaged sample is named by who reads it
        return ""
    return next((suffix for magic, suffix in _SUFFIXES if head.startswith(magic)), "")


def _field(name: str, data: h5py.Dataset, first: int, size: int) -> Field:
    """A data set as a field; `first` is the number of its first row."""
    at = place(data, size)
    n = int(data.shape[0])
    if n > size * 1032:  # more than deflate can make of so many bytes
        raise BadContainer(f"{data.name} has {n} rows, more than {size} bytes can hold")
    number = ~np.arange(first, first + n, dtype=np.int64)
    try:
        dtype = data.dtype
    except TypeError as error:
        raise UserError(
            f"the data set {data.name} is of a type that numpy does not have ({error}); leave it "
            "out by naming the others with --fields"
        ) from None
    if dtype.kind == "O":
        _check_variable(name, data)
        return Field(name, number, _lengths(data, at, size))
    if dtype.kind == "V":
        raise UserError(
            f"the data set {data.name} is {dtype}, a structure; leave it out by naming the others "
            "with --fields"
        )
    found = rows(name, at or 0, dtype, data.shape)
    raw = data.id.get_type()
    if at is None or raw.get_size() != dtype.itemsize or not _as_in_memory(raw, dtype):
        return replace(found, offset=number)
    return found


def _as_in_memory(raw: h5py.h5t.TypeID, dtype: np.dtype[np.generic]) -> bool:
    """Whether the bytes in the file are what numpy has in memory."""
    if dtype.kind in "Sb":
        return True
    return dtype.kind in "iuf" and raw == h5py.h5t.py_create(dtype)


def _check_variable(name: str, data: h5py.Dataset) -> None:
    if h5py.check_ref_dtype(data.dtype) is not None:
        raise BadContainer(f"{data.name} has references to other objects, which are not followed")
    inner = h5py.check_vlen_dtype(data.dtype)
    text = h5py.check_string_dtype(data.dtype) is not None
    if data.ndim != 1 or not (text or (inner is not None and inner.itemsize == 1)):
        raise UserError(
            f"the data set {data.name} has rows of different lengths that are no bytes and no "
            f"text ({inner or data.dtype}); leave {name!r} out by naming the others with --fields"
        )


def _lengths(data: h5py.Dataset, at: int | None, size: int) -> Int64s:
    n = int(data.shape[0])
    if at is None or not hdf5_heap.is_heap(data):
        return np.fromiter((len(one) for one in _each(data)), np.int64, n)
    length = hdf5_heap.lengths(data, at)
    if int(length.sum()) > size:
        raise BadContainer(f"the rows of {data.name} are longer together than the file")
    return length


def _each(data: h5py.Dataset) -> Iterator[bytes]:
    for start in range(0, int(data.shape[0]), 64):
        yield from data[start : start + 64]
