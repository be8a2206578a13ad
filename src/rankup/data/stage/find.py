"""The copy of a source that is ready, found by a few looks at files; and its marker."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ...base import files, holder
from ...base import text as texts
from ...base.holder import Holder
from .. import indexes, stamp
from ..errors import BadContainer
from ..index import Index, Int64s
from ..stamp import Look
from ..strings import Strings
from . import place

MARKER = "ready.json"
INDEX = "index.npz"
DATA, PART, USERS = "data", "part", "users"
_VERSION = 1


@dataclass(frozen=True)
class Copy:
    """What the marker of a copy says.

    Attributes:
        folder: that all of it lies in.
        source: real path of what it is a copy of.
        size: bytes of data that are here; the rest is read from the source.
        total: bytes of data that the source has.
        seen: of the source and its files path, bytes, mtime and inode.
        checked: whether each sample was compared with its hash.
        by: who made it.
    """

    folder: Path
    source: Path
    size: int
    total: int
    seen: tuple[Look, ...]
    checked: bool
    by: Holder

    @property
    def root(self) -> Path:
        """The file or folder that is the container."""
        return self.folder / DATA / self.source.name

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return self.size == self.total

    def of_files(self, index: Index) -> bool:
        """Whether these are the files that an index is of."""
        try:
            own = self.load()
        except OSError:
            return False
        return (
            np.array_equal(own.files.data, index.files.data)
            and np.array_equal(own.files.ends, index.files.ends)
            and np.array_equal(own.sizes, index.sizes)
        )

    def load(self) -> Index:
        """The index of all samples; `bare` of a single file that is no pack.

        Raises:
            BadContainer, OSError: it is damaged, or gone.
        """
        index = indexes.load(self.folder / INDEX)
        if indexes.stray(index, self.root) is not None:
            raise BadContainer(f"{self.folder / INDEX} is damaged: `rankup stage --release`")
        return index


def bare(file: Int64s) -> Index:
    """An index of one file, and of no samples: who reads it knows what is in it.

    Args:
        file: its bytes, int64 (1,).
    """
    return Index("", Strings.of([b""]), (), Strings.of([]), (), sizes=file)


def write(copy: Copy) -> None:
    """Write the marker: from now on the copy is used.

    Raises:
        OSError: it could not be written.
    """
    text = {**asdict(copy), "rankup_stage": _VERSION, "folder": None, "source": str(copy.source)}
    # In ASCII, so that names that are no UTF-8 come through.
    files.write_atomic(copy.folder / MARKER, json.dumps(text, indent=2), private=True)


def read(folder: Path) -> Copy | None:
    """What the marker of a copy says; None without one, or one that makes no sense."""
    try:
        folder = folder.resolve()
        text = json.loads((folder / MARKER).read_bytes())
        by = holder.parse(json.dumps(text["by"]))
        if text["rankup_stage"] != _VERSION or by is None:
            return None
        seen = tuple(Look(str(a), int(b), int(c), int(d)) for a, b, c, d in text["seen"])
        copy = Copy(
            folder,
            Path(text["source"]),
            int(text["size"]),
            int(text["total"]),
            seen,
            bool(text["checked"]),
            by,
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError, RuntimeError):
        return None
    # What a disk has kept over a crash of the machine may lack its last writes.
    return copy if copy.by.host.partition("/")[0] in (holder.boot(), "unknown") else None


def copy_of(path: str | os.PathLike[str], environment: Mapping[str, str]) -> Copy | None:
    """The copy to be read in the place of a source: ready, ours, and still what the source is.

    Where the source has changed since, that is said once, on stderr, by one process of a node. A
    whole copy is used also where the source cannot be seen any more.
    """
    home = place.home(environment)
    if home is None:
        return None
    root = place.folder_of(home)
    try:
        if place.trusted(root):
            return None
    except OSError:
        return None
    copy = read(root / place.keyed(path))
    if copy is None or str(copy.source) != os.path.realpath(path):
        return None
    try:
        why = place.trusted(copy.folder) or changed(copy)
    except OSError:  # the source cannot be seen
        return copy if copy.whole else None
    if not why:
        return copy
    if environment.get("LOCAL_RANK", "0") == "0":
        _say(f"{copy.source}: {why}, so that its copy in {copy.folder} is out of date and not used")
    return None


_say = functools.cache(texts.say)  # once


def look(paths: Sequence[Path]) -> tuple[Look, ...]:
    """Size, time and inode of files, as `changed` compares them; of many, some are looked at.

    Raises:
        OSError: one is not there.
    """
    chosen = [str(paths[row]) for row in stamp.some(len(paths))]
    return tuple(stamp.look(path) for path in dict.fromkeys(chosen))


def changed(copy: Copy) -> str:
    """In which way the source is not what was copied; empty where it is.

    Raises:
        OSError: it cannot be seen at all.
    """
    return unlike(copy.source, copy.seen)


def unlike(source: Path, seen: Sequence[Look]) -> str:
    """In which way the files of a source are not what was `seen`; as `changed`."""
    for one in seen:
        try:
            now = stamp.look(one[0])
        except FileNotFoundError:
            os.stat(source)
            return f"{one[0]} is gone"
        if one.change(now):
            return f"{one[0]} was changed or replaced"
    return ""


def cuts(sizes: Int64s, size: int) -> Int64s:
    """How many bytes of each file are among the first `size` of all, int64 (files,)."""
    before = np.cumsum(sizes) - sizes
    return np.clip(size - before, 0, sizes)
