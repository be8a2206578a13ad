"""Folders of plain files: every file is a sample, in one piece."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import UserError
from .. import keys
from ..index import Field, Index, Int64s, Split, Strings, ordered
from ..spans import network
from . import Choice
from .detect import SEVERAL, refuse_others
from .grouping import group

_CONTAINERS = tuple(map(str.encode, SEVERAL))
_THREADS = 16  # a `stat` costs milliseconds on a parallel file system
_AT_ONCE = 512  # files that one task asks for
_NAMED = 5  # problems that a message names
_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def scan(path: Path, choice: Choice) -> Index:
    """A tree of files: splits and classes by its folders, see `grouping`.

    Links are followed within the folder; hidden files (`.DS_Store`, `._x`, `.git`, `Thumbs.db`) are
    left out and counted in `facts["skipped"]`.

    Raises:
        UserError: `path` is no folder; or what in it cannot be a sample, by name: unreadable files
            and folders, dead links, links out of it or round in circles, sockets, pipes, devices; a
            few files beside class folders; `choice` names a column.
    """
    if choice.label or choice.key or choice.fields:
        raise UserError(
            "folders of files have no columns to choose from: leave out what was asked for, or "
            "give a list (CSV or JSON) with such columns"
        )
    tree = walk(path)
    names = list(tree.files)
    refuse_others(str(path), names)
    if names and all(name.lower().endswith(_CONTAINERS) for name in names):
        raise UserError(
            f"the files below it are containers, as {shown(names[0])}, and no samples: name the "
            f"folder that they lie in, or the one above"
        )
    found = group(names, choice=choice)
    index = replace(tree, keys=Strings.of(found.keys), labels=found.labels, classes=found.classes)
    index = ordered(index, found.split_of, found.splits)
    for split in index.splits:
        _refuse_strays(index, split)
    return index


def _refuse_strays(index: Index, split: Split) -> None:
    """A README beside a thousand class folders would be a sample, and take away the labels."""
    names = index.keys.take(np.arange(split.start, split.stop))
    tops = [name[: name.find(b"/") + 1] for name in names]
    folders = len(set(tops) - {b""})
    strays = [shown(name) for name, top in zip(names, tops, strict=True) if not top]
    if 0 < len(strays) < folders:
        some = ", ".join(strays[:_NAMED])
        where = f"{split.folder}/" if split.folder else "the folder"
        raise UserError(
            f"{where} has {folders} folders, and beside them {some}, which is in none of these "
            f"classes: move it away, or give a list (CSV or JSON) of the samples"
        )


def walk(root: Path, only: Sequence[str] = ()) -> Index:
    """Return all files below a folder, or below some of the folders in it, as an index.

    Sorted by the bytes of their names, which are the keys; they belong to no split.

    Raises:
        UserError: as `scan` says; all of them are counted, the first ones named.
    """
    base = os.path.join(os.fsencode(root), b"")
    level = [
        _Folder(name, os.path.realpath(base + name), ())
        for name in [os.fsencode(one) + b"/" for one in only] or [b""]
    ]
    names: list[bytes] = []
    problems: list[str] = []
    skipped = 0
    with _spread(root) as spread:
        while level:
            found = list(spread(lambda folder: _list(base, folder), level))
            level = [folder for one in found for folder in one.folders]
            names += [name for one in found for name in one.names]
            problems += [problem for one in found for problem in one.problems]
            skipped += sum(one.skipped for one in found)
    names.sort()
    sizes, times, more = stats(base, names)
    problems += more
    refuse(problems, f"in {root}", "cannot be packed")
    rows, strings = np.arange(len(names)), Strings.of(names)
    return Index(
        "files",
        strings,
        (),
        strings,
        (Field("data", np.zeros_like(rows), sizes, rows.astype(np.uint32)),),
        sizes=sizes,
        facts={"skipped": skipped} if skipped else {},
        times=times,
    )


def stats(base: bytes, names: Sequence[bytes]) -> tuple[Int64s, Int64s, list[str]]:
    """Return sizes and modification times of files, and what is wrong with some of them."""

    def ask(start: int) -> list[str]:
        problems = []
        for row in range(start, min(start + _AT_ONCE, len(names))):
            path = base + names[row]
            try:
                about = os.stat(path)
            except OSError as error:
                dead = isinstance(error, FileNotFoundError) and os.path.islink(path)
                reason = "is a link to nothing" if dead else f"cannot be read: {error.strerror}"
                problems.append(f"{shown(path)} {reason}")
                continue
            sizes[row], times[row], mode = about.st_size, about.st_mtime_ns, about.st_mode
            if not stat.S_ISREG(mode):
                kind = _KINDS.get(stat.S_IFMT(mode), "no file")
                problems.append(f"{shown(path)} is {kind}")
            # Who may read is asked only where not everybody may: it is one more call per file.
            elif not mode & stat.S_IROTH and not os.access(path, os.R_OK):
                problems.append(f"{shown(path)} cannot be read: no permission")
        return problems

    sizes, times = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    first = Path(os.fsdecode(base + names[0])) if names else Path()
    with _spread(first) as spread:
        found = spread(ask, range(0, len(names), _AT_ONCE))
        return sizes, times, [problem for problems in found for problem in problems]


@contextmanager
def _spread(path: Path) -> Iterator[Any]:
    """Give a `map`: by threads on a file system of a network, elsewhere they would only cost."""
    if not network(path):
        yield map
        return
    with ThreadPoolExecutor(_THREADS, "rankup-walk") as pool:
        yield pool.map


def refuse(problems: list[str], where: str, what: str) -> None:
    """End with all problems counted and the first ones named, where there are any.

    Raises:
        UserError: there are.
    """
    if problems:
        count = f"{len(problems)} files or folders" if len(problems) > 1 else "one"
        more = f"\n  and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        lines = "".join(f"\n  {line}" for line in sorted(problems)[:_NAMED])
        raise UserError(f"{where}, {count} {what}:{lines}{more}")


class _Folder(NamedTuple):
    name: bytes  # below the root, with a / at its end
    root: bytes  # the real path that all has to lie below
    above: tuple[tuple[int, int], ...]  # devices and inodes of the folders it lies in


class _Listed(NamedTuple):
    names: list[bytes]
    folders: list[_Folder]
    problems: list[str]
    skipped: int


def _list(base: bytes, folder: _Folder) -> _Listed:
    path = (base + folder.name).rstrip(b"/") or b"/"
    found = _Listed([], [], [], 0)
    try:
        about = os.stat(path)
        here = (about.st_dev, about.st_ino)
        if here in folder.above:
            text = f"{shown(path)} is a link to a folder that it lies in"
            return _Listed([], [], [text], 0)
        with os.scandir(path) as listing:
            entries = list(listing)
    except OSError as error:
        return _Listed([], [], [f"{shown(path)}: {error.strerror or error}"], 0)
    skipped = 0
    for entry in entries:
        name, link = folder.name + entry.name, entry.is_symlink()
        if keys.hidden(entry.name):
            skipped += 1
        elif link and (target := _outside(entry.path, folder.root)):
            found.problems.append(
                f"{shown(entry.path)} is a link out of it, to {shown(target)}: copy that, or give "
                f"a list (CSV or JSON) of the files"
            )
        elif os.path.isdir(entry.path) if link else entry.is_dir():
            found.folders.append(_Folder(name + b"/", folder.root, (*folder.above, here)))
        elif b"\\" in name and not keys.safe(name):
            found.problems.append(
                f"{shown(entry.path)} has a name that is a path elsewhere on Windows"
            )
        else:
            found.names.append(name)
    return found._replace(skipped=skipped)


def _outside(path: bytes, root: bytes) -> bytes:
    """Return where a link leads to that leaves the source; else nothing."""
    real = os.path.realpath(path)
    return b"" if (real + b"/").startswith(root.rstrip(b"/") + b"/") else real


def shown(path: bytes) -> str:
    """A path in a message; bytes that are no UTF-8 are written out."""
    return path.decode("utf-8", "backslashreplace")
