"""Fingerprints of files: size, time and inode, and a container's ends, without reading it."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import xxhash

from ..base.errors import UserError
from ..site import mounts
from .errors import BadContainer
from .index import Index, data_path
from .indexes import place

_END = 4096
# Files of one container that are looked at: an open costs milliseconds on a parallel file system,
# and the size of each is looked at again when it is first read.
LOOKED_AT = 64
# Single files up to which each of them is looked at, beyond it only the folders are: then `Spans`
# looks at the size of each that is read. Of a container all are, since places would be wrong.
_FEW = 1000
_MOST = 100_000
_FOLDERS = 100_000


class Look(NamedTuple):
    """A file or folder as it was, by what `stat` says.

    The device is left out: the same file may be mounted anew, and another one on another device
    has not this inode, size and time to the nanosecond.

    Attributes:
        size: in bytes; 0 of what is no file.
        time: of its last change, ns since 1970.
    """

    path: str
    size: int
    time: int
    inode: int

    def change(self, now: Look) -> str:
        """Return what has happened to it since, in words; empty where nothing has."""
        if self.inode != now.inode and not _numbers_inodes_anew(now.path):
            return REPLACED
        return "written to" if (self.size, self.time) != (now.size, now.time) else ""


REPLACED = "replaced by another file"


def look(path: str) -> Look:
    """Look at a file or folder.

    Raises:
        OSError: it is not there.
    """
    about = os.stat(path)
    size = about.st_size if stat.S_ISREG(about.st_mode) else 0
    return Look(path, size, about.st_mtime_ns, about.st_ino)


def _numbers_inodes_anew(path: str) -> bool:
    """Return True on a file system where a file need not have the same inode when it is looked at
    again, as in FUSE where its program does not say them."""
    return mounts.kind_of(Path(path)).startswith("fuse")


def some(count: int) -> list[int]:
    """Return the numbers of those of many files that are looked at, with the first and last."""
    step = max(1, -(-count // LOOKED_AT))
    return sorted({*range(0, count, step), count - 1}) if count else []


def looks(paths: Sequence[Path]) -> tuple[Look, ...]:
    """Look at files; of many, at some.

    Raises:
        OSError: one is not there.
    """
    chosen = [str(paths[row]) for row in some(len(paths))]
    return tuple(look(path) for path in dict.fromkeys(chosen))


def changed(before: Iterable[Look], root: Path) -> str:
    """Return which of the files below `root` is not what it was; empty where all are.

    Args:
        before: their paths are absolute, or names below `root`.

    Raises:
        OSError: `root` cannot be seen at all.
    """
    for one in before:
        try:
            now = look(str(root / one.path))
        except FileNotFoundError:
            os.stat(root)
            return f"{one.path} is gone"
        if one.change(now):
            return f"{one.path} was changed or replaced"
    return ""


def ends(path: Path) -> str:
    """Return the xxh3 of the first and the last 4 KiB of a file, 16 hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        digest = xxhash.xxh3_64(file.read(_END))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        digest.update(file.read(_END))
    return digest.hexdigest()


def all_ends(index: Index, root: Path) -> list[str]:
    """Return `ends` of each file of a container: `facts["ends"]` of its index.

    Raises:
        OSError: one cannot be read.
    """
    return [ends(data_path(root, index.files, row)) for row in range(len(index.files))]


def unfit(index: Index, root: Path) -> str:
    """Return in which way a container is not what its index says; empty where it is.

    Looks at the sizes and the ends of its files; of many, at some.

    Raises:
        BadContainer: a file is not there.
        UserError: one may not be read, or cannot be.
    """
    count = len(index.files)
    written = index.facts.get("ends")
    # Without them a file of anybody's would do, which a link in the folder may lead to.
    if not isinstance(written, list) or len(written) != count or len(index.sizes) != count:
        return f"the index has not the sizes and ends of its {count} files"
    for row in some(count):
        path = data_path(root, index.files, row)
        try:
            about = path.stat()
            if not stat.S_ISREG(about.st_mode):
                return f"{path} is no file"
            size = about.st_size
            if size != index.sizes[row]:
                return f"{path} has {size} bytes, and had {index.sizes[row]}"
            if ends(path) != written[row]:
                return f"{path} begins or ends with other bytes"
        except FileNotFoundError:
            raise BadContainer(_missing(path, root)) from None
        except OSError as error:
            # It may be as it should: who lacks the right to read it has nothing to mend.
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return ""


def _missing(path: Path, root: Path) -> str:
    if root.exists():
        return f"{path} is not there, and {root} is not whole without it: put it back"
    return (
        f"{root} is not there, only its index, {place(root)}: put it back beside it; where it was "
        f"moved, move the index too"
    )


def tree(path: Path, container: str) -> list[Look]:
    """Look at a file, or at a folder and all folders below, their paths as names below it.

    At files too; in a folder of single files only where they are few: its time tells that a file
    came or went, not that one was written anew. Nothing for a tree too large to look at.

    Args:
        container: what it is, a name of `containers.FORMATS`.

    Raises:
        OSError: it cannot be read.
    """
    single = container == "files"
    most = _FEW if single else _MOST
    folders: dict[tuple[int, int], Look] = {}
    files: list[Look] = []
    if not path.is_dir():
        return [_below(path, "")]
    for folder, below, names in os.walk(path, followlinks=True):
        about = os.stat(folder)
        if (about.st_dev, about.st_ino) in folders:
            below.clear()
            continue
        name = os.path.relpath(folder, path)
        folders[about.st_dev, about.st_ino] = _below(path, name)
        if len(folders) > _FOLDERS:
            return []
        for one in itertools.islice(names, max(0, most + 1 - len(files))):
            with suppress(OSError):  # what no link leads to is said by the scan
                files.append(_below(path, os.path.join(name, one)))
    if len(files) <= most:
        return [*folders.values(), *files]
    return list(folders.values()) if single else []


def _below(path: Path, name: str) -> Look:
    return look(str(path / name))._replace(path=name)
