"""The one byte index that every container is reduced to: where each sample's bytes lie.

A sample has one or more fields (an image; an image and its caption). Of each field the index knows
`(file, offset, length)`, of each sample its key, label and split. All of it is numpy arrays which
can be mapped into memory, so that a worker of a data set of ten million samples shares them with
all others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from .strings import Strings

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
    """The places of one field of each sample.

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

    @property
    def width(self) -> int:
        """Bytes of each sample of an array."""
        return math.prod(self.shape) * (np.dtype(self.dtype).itemsize if self.dtype else 1)


@dataclass(frozen=True)
class Index:
    """The samples of a container, and their places.

    Attributes:
        container: a name of `containers.FORMATS`.
        files: paths of the data files, relative to the container where that is a folder, empty
            where it is the one data file itself; absolute where a list names files elsewhere.
        splits: cover [0, n) without gaps, in order.
        keys: of the samples; unique and in order within a split where rankup has written them.
        labels: int64 (n,), rows of `classes` where there are any; -1: none. None: no labels at all.
        sizes: int64, bytes of each file when the index was made; empty where that is not known.
        times: int64, modification time of each file then, ns since 1970; None: not noted.
        blocks: uint64, xxh3 of the bytes around the samples, see `blocks`; None where nobody has
            computed them, and of packs of the first version.
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
    blocks: UInt64s | None = None
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


def data_path(root: Path, files: Strings, row: int) -> Path:
    """Return the path of a file of an index.

    Args:
        root: the container, to which `files` are relative; an empty name is the container itself.
    """
    name = files.text(row)
    return root / name if name else root


def folders(splits: Sequence[Split]) -> list[bytes]:
    """Return what stands before the keys of each split as files: a folder with a `/`, or nothing.

    It is the split's own folder, or its name where two of them have the same.
    """
    names = [one.folder for one in splits]
    if len(set(names)) < len(names):
        names = [one.name for one in splits]
    return [os.fsencode(name) + b"/" if name else b"" for name in names]


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
