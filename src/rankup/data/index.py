"""The one byte index that every container is reduced to: where each sample's bytes lie.

A sample has one or more fields (an image; an image and its caption). Of each field the index knows
`(file, offset, length)`, of each sample its key, label and split. All of it is numpy arrays which
can be mapped into memory, so that a worker of a data set of ten million samples shares them with
all others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from . import keys, npz
from .errors import BadContainer
from .strings import Strings

VERSION = 1
_MOST = 1 << 62  # bytes of a sample; more does not fit into a column of lengths

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


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
    """Where one field of each sample lies.

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


@dataclass(frozen=True)
class Index:
    """What there is in a container, and where.

    Attributes:
        container: a name of `containers.NAMES`.
        files: paths of the data files, relative to the container where that is a folder, empty
            where it is the one data file itself; absolute where a list names files elsewhere.
        splits: cover [0, n) without gaps, in order.
        keys: of the samples; unique and in order within a split where rankup has written them.
        labels: int64 (n,), rows of `classes` where there are any; -1: none. None: no labels at all.
        sizes: int64, bytes of each file when the index was made; empty where that is not known.
        times: int64, modification time of each file then, ns since 1970; None: not noted.
        frames: uint64, xxh3 of the bytes around the samples, see `frames`; None where nobody has
            computed them.
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
    frames: UInt64s | None = None
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


def split_order(name: str) -> tuple[int, str]:
    """Sorts splits as people expect them: train, validation, test, then the others by name."""
    known = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2}
    return known.get(name, 3), name


def place(container: Path) -> Path:
    """Where the index of a container lies: in its folder, or beside the one file that it is."""
    if container.is_dir():
        return container / "index.npz"
    return container.with_name(f"{container.name}.index.npz")


def save(index: Index, path: Path) -> None:
    """Write an index, old or new; `numpy.load` reads it too.

    Raises:
        OSError: it could not be written.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "files_data": index.files.data,
        "files_ends": index.files.ends,
        "keys_data": index.keys.data,
        "keys_ends": index.keys.ends,
        "sizes": index.sizes,
    }
    if index.labels is not None:
        arrays["labels"] = index.labels
    if index.frames is not None:
        arrays["frames"] = index.frames
    if index.times is not None:
        arrays["times"] = index.times
    fields = []
    for number, one in enumerate(index.fields):
        for column in ("offset", "length", "file", "hash"):
            values = getattr(one, column)
            if values is not None:
                arrays[f"{column}_{number}"] = values
        fields.append({"name": one.name, "dtype": one.dtype, "shape": list(one.shape)})
    about = {
        "rankup_index": VERSION,
        "container": index.container,
        "splits": [asdict(one) for one in index.splits],
        "classes": list(index.classes),
        "fields": fields,
        "facts": dict(index.facts),
    }
    text = json.dumps(about).encode()  # ASCII, so that names that are no UTF-8 come through
    arrays["about"] = np.frombuffer(text, np.uint8)
    npz.save(path, arrays)


def load(path: Path) -> Index:
    """Map an index into memory.

    Raises:
        BadContainer: the file is no index, is damaged, or does not hold together.
        OSError: it cannot be read.
    """
    arrays = npz.load(path)
    try:
        about = json.loads(arrays["about"].tobytes())
        if about["rankup_index"] != VERSION:
            raise BadContainer(
                f"{path} is an index of version {about['rankup_index']!r}; this rankup reads "
                f"{VERSION}: pack again, or use the rankup that wrote it"
            )
        fields = tuple(
            Field(
                _name(one["name"]),
                arrays[f"offset_{number}"],
                arrays[f"length_{number}"],
                arrays.get(f"file_{number}"),
                arrays.get(f"hash_{number}"),
                str(one["dtype"]),
                tuple(map(int, one["shape"])),
            )
            for number, one in enumerate(about["fields"])
        )
        index = Index(
            str(about["container"]),
            Strings(arrays["files_data"], arrays["files_ends"]),
            tuple(
                Split(_name(s["name"]), int(s["start"]), int(s["stop"]), _name(s["folder"]))
                for s in about["splits"]
            ),
            Strings(arrays["keys_data"], arrays["keys_ends"]),
            fields,
            arrays.get("labels"),
            tuple(map(_name, about["classes"])),
            arrays["sizes"],
            arrays.get("frames"),
            {str(name): value for name, value in about["facts"].items()},
            arrays.get("times"),
        )
        problem = inconsistency(index)
    except (
        *(LookupError, TypeError, ValueError, ArithmeticError),
        *(AttributeError, SyntaxError, RecursionError),
    ) as error:
        raise BadContainer(f"{path} is no index of rankup, or damaged: {error!r}") from None
    if problem:
        raise BadContainer(f"{path} is a damaged index: {problem}; pack again, or restore it")
    return index


def _name(text: object) -> str:
    found = str(text)
    found.encode("utf-8", "surrogateescape")  # what is no text cannot be written anywhere either
    return found


def inconsistency(index: Index) -> str:
    """What does not hold together in an index, without looking at its millions; empty: nothing."""
    return _columns(index) or _names(index) or _fields(index) or _splits(index)


def _columns(index: Index) -> str:
    n, files = len(index), len(index.files)
    # name, values, how many there should be, of which type
    columns: list[tuple[str, npt.NDArray[Any] | None, int | None, str]] = [
        ("keys", index.keys.ends, n + 1, "i8"),
        ("files", index.files.ends, files + 1, "i8"),
        ("labels", index.labels, n, "i8"),
        ("times", index.times, files, "i8"),
        ("sizes", index.sizes, files if len(index.sizes) else 0, "i8"),
        ("frames", index.frames, None, "u8"),
    ]
    for one in index.fields:
        columns += [
            ("offset", one.offset, n, "i8"),
            ("length", one.length, n, "i8"),
            ("file", one.file, n, "u4"),
            ("hash", one.hash, n, "u8"),
        ]
    for name, values, size, kind in columns:
        if values is None:
            continue
        if values.ndim != 1 or values.dtype != np.dtype(f"<{kind}"):
            return f"{name} is {values.dtype} of shape {values.shape}, not 1-d {kind}"
        if size is not None and len(values) != size:
            return f"{name} has {len(values)} rows for {n} samples in {files} files"
    return ""


def _names(index: Index) -> str:
    for strings in (index.keys, index.files):
        if strings.data.dtype != np.uint8 or strings.data.ndim != 1 or not len(strings.ends):
            return f"names are {strings.data.dtype}, and end at {strings.ends.shape} places"
        if strings.ends[0] != 0 or strings.ends[-1] > len(strings.data):
            return "names go past their end"
    if np.any(np.diff(index.files.ends) < 0):
        return "names of files end before they begin"
    return ""


def _fields(index: Index) -> str:
    if len(index) and not index.fields:
        return f"{len(index)} samples have no field"
    for one in index.fields:
        if one.dtype and np.dtype(one.dtype).hasobject:
            return f"field {one.name} would be Python objects"
        if min(one.shape, default=0) < 0 or _bytes(one) > _MOST:
            return f"a sample of field {one.name} would have the shape {one.shape}"
    return _twice("fields", [one.name for one in index.fields])


def _splits(index: Index) -> str:
    at = 0
    for split in index.splits:
        if split.start != at or split.stop < at:
            return f"split {split.name} does not begin where the one before ends"
        at = split.stop
    if at != len(index):
        return f"the splits have {at} of {len(index)} samples"
    return _twice("splits", [one.name for one in index.splits])


def _twice(what: str, names: list[str]) -> str:
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"two {what} are called {twice[0]!r}" if twice else ""


def _bytes(one: Field) -> int:
    return math.prod(one.shape) * (np.dtype(one.dtype).itemsize if one.dtype else 1)


def stray(index: Index, root: Path) -> bytes | None:
    """The first of a container's files that is not below its folder, nor the container itself.

    Who opens `root` trusts that nothing else is read, whatever an index from elsewhere says.
    """
    if not root.is_dir() and len(index.files) == 1 and index.files[0] == b"":
        return None  # the one file has no name
    starts, data = index.files.ends[:-1], index.files.data
    named = len(index.files) == 0 or int(np.diff(index.files.ends).min()) > 0
    # Of a million photos none is looked at, where these bytes are nowhere.
    if named and not np.any(data[starts] == ord("/")):
        every = data.tobytes()
        if not any(odd in every for odd in (b"..", b"\0", b"\\")):
            return None
    return next((name for name in index.files if not keys.safe(name)), None)
