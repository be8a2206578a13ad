"""The marker of a copy, and the copy of a source that is found by it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...base import files, holder
from ...base import text as texts
from .. import indexes, stamp
from ..errors import BadContainer
from ..index import Index
from ..stamp import Look
from ..strings import Strings
from . import place

MARKER = "ready.json"
INDEX = "index.npz"
DATA, PART = "data", "part"
_VERSION = 2


@dataclass(frozen=True)
class Copy:
    """A copy, as its marker describes it.

    Attributes:
        folder: that all of it lies in.
        source: real path of what it is a copy of.
        size: bytes of data.
        seen: of the source and its files path, bytes, mtime and inode.
        checked: each sample was compared with the hash that was packed with it.
        seconds: that this process has copied; 0 where the copy was there.
    """

    folder: Path
    source: Path
    size: int
    seen: tuple[Look, ...]
    checked: bool
    seconds: float = 0.0

    @property
    def shared(self) -> bool:
        """True where it was there, or another process has made it."""
        return self.seconds == 0

    @property
    def root(self) -> Path:
        """The file or folder that is the container."""
        return self.folder / DATA / self.source.name

    def of_files(self, index: Index) -> bool:
        """Return True where these are the files that an index is of."""
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
        """Return the index of all samples; `bare` of a single file that is no pack.

        Raises:
            BadContainer, OSError: it is damaged, or gone.
        """
        index = indexes.load(self.folder / INDEX)
        if indexes.stray(index, self.root) is not None:
            raise BadContainer(f"{self.folder / INDEX} is damaged: `rankup stage --release`")
        return index


def bare(size: int) -> Index:
    """Return an index of one file, and of no samples: who reads it knows what is in it."""
    return Index("", Strings.of([b""]), (), Strings.of([]), (), sizes=np.array([size], np.int64))


def write(copy: Copy) -> None:
    """Write the marker: from now on the copy is used.

    Raises:
        OSError: it could not be written.
    """
    text = {
        "rankup_stage": _VERSION,
        "source": str(copy.source),
        "size": copy.size,
        "seen": copy.seen,
        "checked": copy.checked,
        "boot": holder.boot(),
    }
    # In ASCII, so that names that are no UTF-8 come through.
    files.write_atomic(copy.folder / MARKER, json.dumps(text, indent=2), private=True)


def read(folder: Path) -> Copy | None:
    """Return what the marker of a copy says; None without one, or one that makes no sense."""
    try:
        text = json.loads((folder / MARKER).read_bytes())
        # What a disk has kept over a crash of the machine may lack its last writes.
        if (text["rankup_stage"], text["boot"]) != (_VERSION, holder.boot()):
            return None
        seen = tuple(Look(str(a), int(b), int(c), int(d)) for a, b, c, d in text["seen"])
        return Copy(folder, Path(text["source"]), int(text["size"]), seen, bool(text["checked"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def copy_of(path: str | os.PathLike[str], environment: Mapping[str, str]) -> Copy | None:
    """Return the copy to be read in the place of a source: ready, ours, and still the same.

    Where the source has changed since, that is said once, on stderr, by one process of a node. A
    copy is used also where the source cannot be seen any more.
    """
    key = place.keyed(path)
    for root in place.roots(environment):
        for job in place.readable(root, environment):
            copy = read(root / job / key)
            if copy is None or str(copy.source) != os.path.realpath(path):
                continue
            why = changed(copy)
            if not why:
                return copy
            if environment.get("LOCAL_RANK", "0") == "0":
                _say(
                    f"{copy.source}: {why}, so that its copy in {copy.folder} is out of date and "
                    f"not used"
                )
    return None


_say = functools.cache(texts.say)  # once


def changed(copy: Copy) -> str:
    """Return in which way the source is not what was copied; empty where it is, or is not seen."""
    try:
        return stamp.changed(copy.seen, copy.source)
    except OSError:
        return ""
