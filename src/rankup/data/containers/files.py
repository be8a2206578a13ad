"""Folders of plain files: every file is a sample, in one piece.

On a parallel file system each `stat` costs up to milliseconds, so that many are asked at a time; on
a local disk the threads cost a tenth of the time.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import keys, roles
from ..index import Field, Index, Int64s, Split, ordered
from ..strings import Strings
from . import Choice
from .detect import SEVERAL
from .grouping import group

_CONTAINERS = tuple(map(str.encode, SEVERAL))
_THREADS = 16
# Seconds per entry from which on threads pay: below, they only wait for each other. And how many
# entries tell.
_SLOW = 50e-6
_FIRST = 64
_AT_ONCE = 512  # files of one folder that one task asks for
_NAMED = 5  # problems that a message names
_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


@dataclass(frozen=True)
class Tree:
    """The files below a folder, sorted by the bytes of their names.

    Attributes:
        names: relative to the folder, with `/`.
        sizes: int64, bytes.
        times: int64, modification times in ns.
        skipped: hidden files and leftovers that are not among them; such a folder counts as one.
    """

    names: Strings
    sizes: Int64s
    times: Int64s
    skipped: int

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of an index of them."""
        return {"skipped": self.skipped} if self.skipped else {}


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
    names = list(tree.names)
    if names and all(name.lower().endswith(_CONTAINERS) for name in names):
        raise UserError(
            f"the files below it are containers, as {shown(names[0])}, and no samples: name the "
            f"folder that they lie in, or the one above"
        )
    found = group(names, choice=choice)
    index = Index(
        "files",
        tree.names,
        (),
        Strings.of(found.keys),
        (lone(np.arange(len(tree.names)), tree.sizes),),
        found.labels,
        found.classes,
        tree.sizes,
        facts=tree.facts,
        times=tree.times,
    )
    index = ordered(index, found.split_of, found.splits)
    for split in index.splits:
        _refuse_strays(index, split)
    return index


def lone(file: npt.NDArray[np.integer], sizes: Int64s) -> Field:
    """The field of samples that are whole files.

    Args:
        file: (n,) their rows among the files.
        sizes: int64 (files,), bytes of the files.
    """
    zeros = np.zeros(len(file), np.int64)
    return Field("data", zeros, sizes[file], file.astype(np.uint32))


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


def walk(root: Path, only: Sequence[str] = ()) -> Tree:
    """All files below a folder, or below some of the folders in it.

    Raises:
        UserError: as `scan` says; all of them are counted, the first ones named.
    """
    all_: list[_Found] = []
    below = [os.fsencode(name) + b"/" for name in only] or [b""]
    paths = [os.path.join(os.fsencode(root), name.rstrip(b"/")) for name in below]
    tasks: deque[Callable[[], _Found]] = deque(
        partial(_list, _Folder(path, name, (), os.path.realpath(path)))
        for name, path in zip(below, paths, strict=True)
    )
    looked, began = 0, time.monotonic()
    while tasks and (looked < _FIRST or time.monotonic() - began < looked * _SLOW):
        found = tasks.popleft()()
        tasks.extend(found.tasks)
        all_.append(found)
        looked += len(found.files) + 1
    with ThreadPoolExecutor(_THREADS, "rankup-walk") as pool:
        waiting = deque(pool.submit(task) for task in tasks)
        while waiting:
            found = waiting.popleft().result()
            waiting.extend(pool.submit(task) for task in found.tasks)
            all_.append(found)
    files = [file for found in all_ for file in found.files]
    problems = [problem for found in all_ for problem in found.problems]
    skipped = sum(found.skipped for found in all_)
    refuse(problems, f"in {root}", "cannot be packed")
    files.sort()
    names = Strings.of([one.name for one in files])
    sizes = np.fromiter((one.size for one in files), np.int64, len(files))
    times = np.fromiter((one.time for one in files), np.int64, len(files))
    return Tree(names, sizes, times, skipped)


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


class _File(NamedTuple):
    name: bytes
    size: int
    time: int


class _Folder(NamedTuple):
    path: bytes
    prefix: bytes  # of the names of what is in it
    above: tuple[tuple[int, int], ...]  # devices and inodes of the folders it lies in
    root: bytes  # the real path of all


class _Found(NamedTuple):
    files: list[_File]
    problems: list[str]
    skipped: int
    tasks: list[Callable[[], _Found]]  # what is still to be looked at


def _list(folder: _Folder) -> _Found:
    try:
        about = os.stat(folder.path)
        here = (about.st_dev, about.st_ino)
        if here in folder.above:
            return _problem(f"{shown(folder.path)} is a link to a folder that it lies in")
        with os.scandir(folder.path) as listing:
            entries = list(listing)
    except OSError as error:
        return _problem(f"{shown(folder.path)}: {error.strerror or error}")
    above = (*folder.above, here)
    files, tasks, skipped = [], list[Callable[[], _Found]](), 0
    for entry in entries:
        if roles.hidden(entry.name):
            skipped += 1
        elif _is_folder(entry) and not _leads_out(entry, folder):
            prefix = folder.prefix + entry.name + b"/"
            tasks.append(partial(_list, _Folder(entry.path, prefix, above, folder.root)))
        else:
            files.append(entry)
    for start in range(_AT_ONCE, len(files), _AT_ONCE):
        tasks.append(partial(_ask, files[start : start + _AT_ONCE], folder))
    found = _ask(files[:_AT_ONCE], folder)
    return found._replace(skipped=skipped, tasks=tasks)


def _ask(entries: Iterable[os.DirEntry[bytes]], folder: _Folder) -> _Found:
    files, problems = [], []
    for entry in entries:
        name = folder.prefix + entry.name
        if _leads_out(entry, folder):
            target = shown(os.path.realpath(entry.path))
            problems.append(
                f"{shown(entry.path)} is a link out of it, to {target}: copy that, or give a list "
                f"(CSV or JSON) of the files"
            )
            continue
        try:
            about = entry.stat()
        except OSError as error:
            dead = entry.is_symlink() and isinstance(error, FileNotFoundError)
            reason = "is a link to nothing" if dead else f"cannot be read: {error.strerror}"
            problems.append(f"{shown(entry.path)} {reason}")
            continue
        mode = about.st_mode
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "no file")
            problems.append(f"{shown(entry.path)} is {kind}")
        # Who may read is asked only where not everybody may: it is one more call per file.
        elif not mode & stat.S_IROTH and not os.access(entry.path, os.R_OK):
            problems.append(f"{shown(entry.path)} cannot be read: no permission")
        elif b"\\" in name and not keys.safe(name):
            problems.append(f"{shown(entry.path)} has a name that is a path elsewhere on Windows")
        else:
            files.append(_File(name, about.st_size, about.st_mtime_ns))
    return _Found(files, problems, 0, [])


def _leads_out(entry: os.DirEntry[bytes], folder: _Folder) -> bool:
    """Return True for a link to something outside of the source."""
    if not entry.is_symlink():
        return False
    real = os.path.realpath(entry.path)
    return not (real + b"/").startswith(folder.root.rstrip(b"/") + b"/")


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; `_ask` names it
        return False


def _problem(text: str) -> _Found:
    return _Found([], [text], 0, [])


def shown(path: bytes) -> str:
    """A path in a message; bytes that are no UTF-8 are written out."""
    return path.decode("utf-8", "backslashreplace")
