"""Whether data on a disk is still what an index was made of, without reading it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import xxhash

from ..base.errors import UserError
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

# (path, bytes, mtime in ns, inode)
Look = tuple[str, int, int, int]
Seen = list[Look]  # by names below a folder


def look(path: str) -> Look:
    """What tells whether a file is another one or was written to, without reading it.

    The device is left out: the same file may be mounted anew, and another one on another device
    has not this inode, size and time to the nanosecond. A folder's size is no property of what is
    in it, and counts as 0.

    Raises:
        OSError: it is not there.
    """
    about = os.stat(path)
    size = 0 if stat.S_ISDIR(about.st_mode) else about.st_size
    return path, size, about.st_mtime_ns, about.st_ino


def some(count: int) -> list[int]:
    """Of many files those that are looked at, in order: their numbers, with the first and last."""
    step = max(1, -(-count // LOOKED_AT))
    return sorted({*range(0, count, step), count - 1}) if count else []


def ends(path: Path) -> str:
    """xxh3 of the first and the last 4 KiB of a file, 16 hexadecimal digits.

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
    """`ends` of each file of a container: `facts["ends"]` of its index.

    Raises:
        OSError: one cannot be read.
    """
    return [ends(_path(index, root, row)) for row in range(len(index.files))]


def unfit(index: Index, root: Path) -> str:
    """In which way a container is not what its index says; empty where it is.

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
        path = _path(index, root, row)
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
            # It may be as it should: whose right to read is missing must not be told to mend it.
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return ""


def _missing(path: Path, root: Path) -> str:
    if root.exists():
        return f"{path} is not there, and {root} is not whole without it: put it back"
    return (
        f"{root} is not there, only its index, {place(root)}: put it back beside it; where it was "
        f"moved, move the index too"
    )


def seen(path: Path, container: str) -> Seen:
    """What tells whether a file or a tree changes: of it and all folders below size, time, inode.

    Files too; of a folder of single files only where they are few: its time tells that a file came
    or went, not that one was written anew. Nothing for a tree too large to look at.

    Args:
        container: what it is, a name of `containers.KNOWN`.

    Raises:
        OSError: it cannot be read.
    """
    single = container == "files"
    most = _FEW if single else _MOST
    found = [_look(path, "")]
    files: Seen = []
    if not path.is_dir():
        return found
    known = {(os.stat(path).st_dev, os.stat(path).st_ino)}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(path / folder) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.is_dir():
                    about = entry.stat()
                    if (about.st_dev, about.st_ino) in known:
                        continue
                    known.add((about.st_dev, about.st_ino))
                    found.append(_look(path, name))
                    waiting.append(name)
                    if len(found) > _FOLDERS:
                        return []
                elif len(files) <= most and entry.is_file():
                    files.append(_look(path, name))
    if len(files) <= most:
        return found + files
    return found if single else []


def unchanged(path: Path, before: Seen) -> bool:
    """Whether all that `seen` saw is as it was."""
    try:
        return bool(before) and all(_look(path, one[0]) == tuple(one) for one in before)
    except (OSError, ValueError, TypeError, IndexError):
        return False


def newest(before: Seen) -> float:
    """When the last of it was changed, in seconds since 1970."""
    return max((one[2] for one in before), default=0) / 1e9


def _look(path: Path, name: str) -> Look:
    return name, *look(str(path / name))[1:]


def _path(index: Index, root: Path, row: int) -> Path:
    return data_path(root, index.files, row)
