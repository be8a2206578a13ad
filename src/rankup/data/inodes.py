"""What a quota counts: files and folders, before and after a pack."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import indexes
from .index import Index, Split

REPORT = "report.json"


@dataclass(frozen=True)
class Inodes:
    """How many of each; `str` is what people read: `500 files and 12 folders`."""

    files: int
    folders: int

    @property
    def total(self) -> int:
        return self.files + self.folders

    def __str__(self) -> str:
        folders = f" and {words(self.folders, 'folder', 'folders')}" if self.folders else ""
        return f"{words(self.files, 'file', 'files')}{folders}"


def of_source(index: Index, root: Path) -> Inodes:
    """The files that samples are taken from, with the folders that they lie in; or a container."""
    if index.container == "files":
        return Inodes(len(index.files), _count(_folders(index.files)))
    return lying(root)


def of_samples(index: Index, splits: Iterable[Split]) -> Inodes:
    """What the samples of some splits take as files of their own."""
    arrays = sum(bool(one.dtype) for one in index.fields)
    single = len(index.fields) - arrays
    below, files = {b""}, 0
    for split in splits:
        folder = os.fsencode(split.folder)
        below.add(folder)
        files += arrays + single * (split.stop - split.start)
        if single:
            keys = itertools.islice(index.keys, split.start, split.stop)
            below |= {os.path.join(folder, one).rstrip(b"/") for one in _folders(keys)}
    return Inodes(files, _count(below))


def of_pack(container: str, data: int, classes: bool) -> Inodes:
    """All that `rankup pack` writes, from the index to the report.

    Args:
        data: files with samples.
        classes: whether they have names.
    """
    if container == "tar":  # an index of DALI's for each; info.json, and names of classes
        return Inodes(2 * data + 1 + classes + 2, 1)
    return Inodes(data + 2, int(container == "arrow"))


def lying(root: Path) -> Inodes:
    """What there is of a container, with its index and its report.

    Raises:
        OSError: it cannot be read.
    """
    if not root.is_dir():
        report = root.with_name(f"{root.name}.{REPORT}")
        return Inodes(1 + indexes.place(root).is_file() + report.is_file(), 0)
    files = folders = 0
    for _, _, names in os.walk(root):
        folders, files = folders + 1, files + len(names)
    return Inodes(files, folders)


def words(count: int, one: str, many: str) -> str:
    """`1 file`, `1 000 files`."""
    return f"{spaced(count)} {one if count == 1 else many}"


def spaced(count: int) -> str:
    """`1 000`."""
    return f"{count:,}".replace(",", " ")


def _folders(names: Iterable[bytes]) -> set[bytes]:
    """The folders that names lie in; empty for none."""
    return {name[: max(name.rfind(b"/"), 0)] for name in names}


def _count(folders: set[bytes]) -> int:
    """These folders and those above, up to the source, or of a list to what all have in common."""
    listed = bool(folders) and all(one.startswith(b"/") for one in folders)
    if listed:
        folders = set(map(os.path.normpath, folders))
    common = os.path.commonpath(folders) if listed else b""
    found = {common}
    for folder in folders:
        while len(folder) > len(common) and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return len(found)
