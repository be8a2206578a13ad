"""HDF5 files of others: groups, or the root, with data sets whose rows are samples.

Numbers that lie in one piece are read where they lie, like our own. Rows of variable length, as
the `images` of many a course, are read by `hdf5_heap`; compressed ones by h5py, chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import h5py
import numpy as np

from ...base.errors import UserError, nearest
from .. import images
from .. import keys as key_rules
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split
from ..roles import CLASSES, KEYS, LABELS, kind_of, split_order
from ..strings import Strings
from . import Choice, hdf5_heap
from .hdf5_parts import column, members, place

FACT = "hdf5"
_DEPTH = 16


@dataclass(frozen=True)
class Table:
    """A group whose data sets have a row per sample."""

    path: str
    split: str
    folder: str
    data: dict[str, h5py.Dataset]

    @property
    def rows(self) -> int:
        """How many samples."""
        return int(next(iter(self.data.values())).shape[0])


def scan(file: h5py.File, size: int, choice: Choice) -> Index:
    """Where everything lies, and by which number `Rows` knows the rest.

    Splits are groups; labels and keys are the data sets named so (`roles`).

    Raises:
        BadContainer: as `hdf5_parts.place`; references to objects.
        UserError: what `choice` names is not there, or what is there cannot be samples.
    """
    tables = _tables(file, choice)
    label, labels, classes = _labels_of(tables, size, choice)
    keys, fields, splits = [], [], []
    first, lone = 0, ""
    for table in tables:
        names, key = _keys_of(table, size, choice)
        data = {
            name: one
            for name, one in table.data.items()
            if name not in (label, key) and (not choice.fields or name in choice.fields)
        }
        here = [_field(name, one, first, size) for name, one in data.items()]
        suffix = ""
        if len(here) == 1 and not here[0].dtype:
            if lone not in ("", here[0].name):
                raise UserError(
                    f"its samples are called {lone!r} in one split and {here[0].name!r} in "
                    "another: rename one of the data sets"
                )
            lone = here[0].name
            here = [replace(here[0], name="data")]
            suffix = _suffix(data[lone], size)
        keys.append(names or Strings.numbered([table.rows], 1, suffix))
        fields.append(here)
        splits.append(Split(table.split, first, first + table.rows, table.folder))
        first += table.rows
    if not any(fields):
        raise UserError("there is nothing but labels in it: no data set with samples")
    return Index(
        "hdf5",
        Strings.of([b""]),
        tuple(splits),
        Strings.joined(keys),
        _together(splits, fields),
        np.concatenate(labels) if labels else None,
        classes or _class_names(file, size),
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
            name: one for name, one in everything.items() if one.ndim and not _is_classes(name, one)
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
    if tables == 1 and not kind_of(last):
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
    return images.suffix_of(head)


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
    shape = tuple(map(int, data.shape[1:]))
    one = math.prod(shape) * dtype.itemsize
    raw = data.id.get_type()
    lies = at is not None and raw.get_size() == dtype.itemsize and _as_in_memory(raw, dtype)
    offset = (at or 0) + np.arange(n, dtype=np.int64) * one if lies else number
    return Field(name, offset, np.full(n, one, np.int64), None, None, dtype.str, shape)


def _as_in_memory(raw: h5py.h5t.TypeID, dtype: np.dtype[np.generic]) -> bool:
    """Return True where the bytes in the file are those that numpy has in memory."""
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
            return _names(column(one, size).tolist())
    return ()


def _names(texts: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(text.decode("utf-8", "surrogateescape") for text in texts)


def _labels_of(
    tables: Sequence[Table], size: int, choice: Choice
) -> tuple[str | None, list[Int64s], tuple[str, ...]]:
    """The name of the data set with the labels, its values for each table, and class names."""
    everywhere = {name for table in tables for name in table.data} - {*choice.fields}
    by_name = [name for name in everywhere if name.lower() in LABELS]
    # Where there are several, `label` before `y`.
    by_name.sort(key=lambda name: (LABELS.index(name.lower()), name))
    label = choice.label or next((name for name in by_name if _may_label(name, tables)), None)
    if label is None:
        return None, [], ()
    if not _may_label(label, tables):
        raise UserError(
            f"{label!r} has no labels: they are one integer or one text per sample; leave --label "
            "out, and it becomes a field"
        )
    found = [column(table.data[label], size).reshape(-1) for table in tables if label in table.data]
    classes: list[bytes] = []
    if all(one.dtype.kind in "OS" for one in found):
        classes = sorted({text for one in found for text in one.tolist()})
        number = {text: row for row, text in enumerate(classes)}
        found = [np.array([number[text] for text in one.tolist()], np.int64) for one in found]
    for one in found:
        if one.dtype.kind not in "iub" or (one.dtype == np.uint64 and np.any(one >> np.uint64(63))):
            raise UserError(f"{label!r} has other labels in one split than in another")
    there = iter(found)
    labels = [
        next(there).astype(np.int64) if label in table.data else np.full(table.rows, -1, np.int64)
        for table in tables
    ]
    return label, labels, _names(classes)


def _may_label(name: str, tables: Sequence[Table]) -> bool:
    for table in tables:
        one = table.data.get(name)
        if one is None:
            continue
        if math.prod(one.shape[1:]) != 1 or not (_is_text(one) or one.dtype.kind in "iub"):
            return False
    return True


def _keys_of(table: Table, size: int, choice: Choice) -> tuple[Strings | None, str | None]:
    """The keys, and the name of the data set that they are from."""
    by_name = [name for name in table.data if name.lower() in KEYS]
    for name in [choice.key] if choice.key else by_name:
        one = table.data.get(name)
        if one is None:
            raise UserError(f"{table.path} has no data set {name!r} for --key")
        found = column(one, size).tolist() if one.ndim == 1 and _is_text(one) else None
        if found is not None and len(set(found)) == table.rows and all(map(key_rules.safe, found)):
            return Strings.of(found), name
        if choice.key:
            raise UserError(
                f"{name!r} in {table.path} has no keys: they are text, different from each other, "
                "and relative paths without '..'"
            )
    return None, None


def _together(splits: Sequence[Split], fields: Sequence[list[Field]]) -> tuple[Field, ...]:
    """The fields of all splits, one split after another.

    Raises:
        BadContainer: the splits do not have the same fields.
    """
    about = [
        ", ".join(f"{one.name} ({one.dtype} {one.shape})" for one in here) or "none"
        for here in fields
    ]
    for split, other in zip(splits, about, strict=True):
        if other != about[0]:
            raise BadContainer(
                f"its splits have different data sets: {about[0]} in {splits[0].name}, {other} in "
                f"{split.name}; --fields chooses those that are in all"
            )
    return tuple(
        replace(
            same[0],
            offset=np.concatenate([one.offset for one in same]),
            length=np.concatenate([one.length for one in same]),
        )
        for same in zip(*fields, strict=True)
    )
