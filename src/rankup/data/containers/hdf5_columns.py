"""Which data sets of a foreign HDF5 file are labels, keys and names of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import h5py
import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import keys as names
from ..index import Int64s
from ..strings import Strings
from . import Choice
from .hdf5_parts import column, members

LABELS = ("label", "labels", "target", "targets", "y")
KEYS = ("key", "keys", "id", "ids", "path", "paths", "filename", "filenames", "file_name")
CLASSES = ("classes", "class_names", "label_names")


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


def is_text(data: h5py.Dataset) -> bool:
    """Whether each element is a string, of fixed or variable length."""
    return data.dtype.kind == "S" or h5py.check_string_dtype(data.dtype) is not None


def is_classes(name: str, data: h5py.Dataset) -> bool:
    """Whether a data set has names of classes, and no samples."""
    return name.lower() in CLASSES and data.ndim == 1 and is_text(data)


def class_names(file: h5py.File, size: int) -> tuple[str, ...]:
    """From the root; empty where it has none."""
    for name, one in members(file):
        if isinstance(one, h5py.Dataset) and is_classes(name, one):
            return tuple(text.decode("utf-8", "surrogateescape") for text in _text(one, size))
    return ()


def _text(data: h5py.Dataset, size: int) -> list[bytes]:
    return [bytes(one) for one in column(data, size).tolist()]


def labels_of(
    tables: Sequence[Table], size: int, choice: Choice
) -> tuple[str | None, list[Int64s], tuple[str, ...]]:
    """The name of the data set with the labels, its values for each table, and class names."""
    everywhere = {name for table in tables for name in table.data}
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
    values = [
        column(table.data[label], size).reshape(-1) if label in table.data else None
        for table in tables
    ]
    if all(one is None or one.dtype.kind in "OS" for one in values):
        return label, *_from_text(tables, values)
    numbers = []
    for table, one in zip(tables, values, strict=True):
        if one is None:
            numbers.append(np.full(table.rows, -1, np.int64))
            continue
        if one.dtype.kind not in "iub" or (one.dtype == np.uint64 and np.any(one >> np.uint64(63))):
            raise UserError(f"{label!r} in {table.path} has other labels than its neighbours")
        numbers.append(one.astype(np.int64))
    return label, numbers, ()


def _may_label(name: str, tables: Sequence[Table]) -> bool:
    for table in tables:
        one = table.data.get(name)
        if one is None:
            continue
        if math.prod(one.shape[1:]) != 1 or not (is_text(one) or one.dtype.kind in "iub"):
            return False
    return True


def _from_text(
    tables: Sequence[Table], values: Sequence[npt.NDArray[np.generic] | None]
) -> tuple[list[Int64s], tuple[str, ...]]:
    texts = [None if one is None else [bytes(text) for text in one.tolist()] for one in values]
    classes = sorted({text for one in texts if one is not None for text in one})
    number = {text: row for row, text in enumerate(classes)}
    labels = [
        np.full(table.rows, -1, np.int64)
        if one is None
        else np.fromiter((number[text] for text in one), np.int64, len(one))
        for table, one in zip(tables, texts, strict=True)
    ]
    return labels, tuple(text.decode("utf-8", "surrogateescape") for text in classes)


def keys_of(table: Table, size: int, choice: Choice) -> tuple[Strings | None, str | None]:
    """The keys, and the name of the data set that they are from."""
    by_name = [name for name in table.data if name.lower() in KEYS]
    for name in [choice.key] if choice.key else by_name:
        one = table.data.get(name)
        if one is None:
            raise UserError(f"{table.path} has no data set {name!r} for --key")
        found = _text(one, size) if one.ndim == 1 and is_text(one) else None
        if found is not None and len(set(found)) == table.rows and all(map(names.safe, found)):
            return Strings.of(found), name
        if choice.key:
            raise UserError(
                f"{name!r} in {table.path} has no keys: they are text, different from each other, "
                "and relative paths without '..'"
            )
    return None, None


def numbered(count: int, suffix: str) -> Strings:
    """`000`, `001`, … with a suffix: as many digits as the last one needs."""
    digits = len(str(max(count - 1, 0)))
    cells = np.empty((count, digits + len(suffix)), np.uint8)
    for place_of in range(digits):
        cells[:, place_of] = np.arange(count) // 10 ** (digits - 1 - place_of) % 10 + ord("0")
    cells[:, digits:] = np.frombuffer(suffix.encode(), np.uint8)
    return Strings(cells.reshape(-1), np.arange(count + 1, dtype=np.int64) * cells.shape[1])
