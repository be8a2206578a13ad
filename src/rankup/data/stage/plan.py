"""The plan of a copy: files of the source, its index, and what lies beside them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import finding, indexes, stamp
from ..containers import Choice, detect
from ..index import Index, Int64s, data_path
from ..stamp import Look
from . import find

_PAGE = 4096
_MORE = 1 << 20  # bytes for the marker and folders


@dataclass(frozen=True)
class Plan:
    """The files and the index to be copied.

    Attributes:
        source: real path of a file or folder.
        index: of all its samples, with `sizes`; of a single file that is no pack, of none.
        packed: rankup has packed it.
        seen: of the source, before anything was copied.
    """

    source: Path
    index: Index
    packed: bool
    seen: tuple[Look, ...]

    @property
    def size(self) -> int:
        """Return the bytes of data."""
        return int(self.index.sizes.sum())

    @property
    def needed(self) -> int:
        """Return the bytes that all of the copy takes."""
        pages = -(-self.index.sizes // _PAGE) * _PAGE
        keys = self.index.keys
        columns: list[npt.NDArray[Any]] = [keys.data, keys.ends, self.index.files.data]
        for one in self.index.fields:
            columns += [one.offset, one.length, *(c for c in (one.file, one.hash) if c is not None)]
        columns += [] if self.index.labels is None else [self.index.labels]
        return int(pages.sum()) + sum(one.nbytes for one in columns) + _MORE

    @property
    def checked(self) -> bool:
        """Return True where every sample has a hash to be compared with."""
        return bool(self.index.fields) and all(one.hash is not None for one in self.index.fields)

    def files(self, root: Path) -> list[Path]:
        """Return the files of the source, or of a copy at `root`."""
        return [data_path(root, self.index.files, row) for row in range(len(self.index.files))]


def planned(source: Path) -> Plan:
    """Look at a source.

    Raises:
        UserError: there is none, or staging it would not help.
        BadContainer: it is damaged.
        OSError: it cannot be read.
    """
    beside = indexes.place(source)
    # Before the index is read, so that one that is replaced meanwhile is noticed.
    first = stamp.looks([beside]) if beside.is_file() else ()
    own = finding.fitting(source)
    if own is not None:
        index = own
    elif source.is_file() and not source.name.endswith("index.npz"):
        # One file is copied whatever is in it: of tokens each would be a sample of an index.
        index = find.bare(np.array([source.stat().st_size], np.int64))
    else:
        if detect.detect(source) == "files":
            raise UserError(
                f"{source} is a folder of single files, and what is staged are few large ones: "
                f"`rankup pack {source} NAME.h5` makes one of them, and `rankup stage NAME.h5` "
                f"then copies that"
            )
        index = finding.found(source, Choice()).index
    plan = Plan(source, replace(index, sizes=_sizes(index, source)), own is not None, first)
    paths = plan.files(source)
    if own is None and source.is_dir():  # it consists of what is in it
        paths = [source, *dict.fromkeys(path.parent for path in paths), *paths]
    return replace(plan, seen=(*first, *stamp.looks(paths)) if plan.packed else stamp.looks(paths))


def beside(index: Index) -> list[str]:
    """Return the names of the small files beside the data of a pack."""
    written = index.facts.get("beside")
    return list(map(str, written)) if isinstance(written, dict) else []


def _sizes(index: Index, source: Path) -> Int64s:
    """Return the bytes of each file, as the index says or as they are, int64 (files,)."""
    if len(index.sizes):
        return np.asarray(index.sizes, np.int64)
    found = []
    for row in range(len(index.files)):
        path = data_path(source, index.files, row)
        try:
            found.append(os.stat(path).st_size)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return np.array(found, np.int64)
