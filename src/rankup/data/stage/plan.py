"""What is copied of a source: its files, how much of each, and what lies beside them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import blocks, finding, indexes, keys, npz
from ..containers import Choice, detect
from ..errors import BadContainer
from ..index import Index, Int64s, data_path
from ..stamp import Look
from . import find, pieces
from .part import Part

_PAGE = 4096
_MORE = 1 << 20  # bytes for the marker, the users, and folders


@dataclass(frozen=True)
class Plan:
    """What is to be copied.

    Attributes:
        source: real path of a file or folder.
        index: of all its samples; of a single file that is no pack, of none.
        packed: whether rankup has packed it.
        sizes: int64, bytes of each file.
        cuts: int64, bytes of each that are copied, from its beginning.
        beside: small files beside the data, with their xxh3.
        seen: of the source, before anything was copied.
    """

    source: Path
    index: Index
    packed: bool
    sizes: Int64s
    cuts: Int64s
    beside: dict[str, str]
    seen: tuple[Look, ...]

    @property
    def size(self) -> int:
        """Bytes of data that are copied."""
        return int(self.cuts.sum())

    @property
    def total(self) -> int:
        """Bytes of data that there are."""
        return int(self.sizes.sum())

    @property
    def needed(self) -> int:
        """Bytes that all of the copy takes."""
        pages = -(-self.cuts // _PAGE) * _PAGE
        keys = self.index.keys
        columns: list[npt.NDArray[Any]] = [keys.data, keys.ends, self.index.files.data]
        for one in self.index.fields:
            columns += [one.offset, one.length, *(c for c in (one.file, one.hash) if c is not None)]
        columns += [] if self.index.labels is None else [self.index.labels]
        return int(pages.sum()) + sum(one.nbytes for one in columns) + _MORE


def part_of(total: int, fraction: float) -> int:
    """How many bytes a fraction is."""
    return min(total, round(total * fraction))


def planned(source: Path, fraction: float) -> Plan:
    """Look at a source.

    Raises:
        UserError: there is none, or staging it would not help.
        BadContainer: it is damaged.
        OSError: it cannot be read.
    """
    beside = indexes.place(source)
    # Before the index is read, so that one that is replaced meanwhile is noticed.
    first = find.look([beside]) if beside.is_file() else ()
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
    sizes = pieces.sizes(index, source)
    index = replace(index, sizes=sizes)  # by which it is found how much of each file is staged
    paths = [data_path(source, index.files, row) for row in range(len(index.files))]
    if own is None and source.is_dir():  # it consists of what is in it
        paths = [source, *dict.fromkeys(path.parent for path in paths), *paths]
    seen = (*first, *find.look(paths)) if own is not None else find.look(paths)
    cuts = find.cuts(sizes, part_of(int(sizes.sum()), fraction))
    beside_it = {} if own is None else _beside(source, index)
    return Plan(source, index, own is not None, sizes, cuts, beside_it, seen)


def complete(plan: Plan, part: Part, folder: Path, threads: int) -> None:
    """Add the index and what lies beside the data, and compare what is left to compare.

    Raises:
        BadContainer: something is not what was packed.
        UserError: the source is not what it was.
        OSError: it could not be written.
    """
    at = folder / find.INDEX
    if plan.packed:
        shutil.copyfile(indexes.place(plan.source), at)
        try:
            npz.load(at)
        except BadContainer as error:
            raise BadContainer(f"{indexes.place(plan.source)}, copied: {error}") from None
    else:
        indexes.save(plan.index, at)
    if plan.packed and np.array_equal(plan.cuts, plan.sizes):
        os.link(at, indexes.place(part.root))  # so that it is a pack by itself
        for name in plan.beside:
            (part.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(plan.source / name, part.root / name)
        if plan.beside and blocks.beside(part.root, plan.index) != plan.beside:
            raise BadContainer(
                f"{plan.source}: its small files beside the data are not those that were packed: "
                f"`rankup inspect --verify` names them; restore them"
            )
    part.finish(threads)
    why = find.unlike(plan.source, plan.seen)
    if why:
        raise UserError(f"{why} while it was copied: nothing was staged; run it again")


def _beside(source: Path, index: Index) -> dict[str, str]:
    written = index.facts.get("beside") if source.is_dir() else None
    if not isinstance(written, dict):
        return {}
    names = {str(name): str(digest) for name, digest in written.items()}
    stray = [name for name in names if not keys.safe(os.fsencode(name))]
    if stray:
        raise BadContainer(f"the index names {stray[0]!r}, which is no file of a pack: restore it")
    return names
