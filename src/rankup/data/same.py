"""Whether the files under a running job are still the ones that it has opened."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import indexes
from .errors import BadContainer
from .opened import Samples

# Each costs a look at the file system, at every start of an epoch in every worker.
_MOST = 64


class Gone(BadContainer):
    """A file is not there any more, or another one is."""


class File(NamedTuple):
    """A file as it was.

    The device is left out: the same file may be mounted anew, and another one on another device
    has not this inode, size and time to the nanosecond.
    """

    path: str
    inode: int
    size: int
    time: int


class Noted(NamedTuple):
    """Files under a job.

    Attributes:
        files: what is read.
        source: what that was staged of; empty where nothing is.
    """

    files: tuple[File, ...]
    source: tuple[File, ...] = ()

    def here(self, here: Noted) -> Noted:
        """The same in another process, which may read a copy that has come or gone meanwhile."""
        if {one.path for one in here.files} == {one.path for one in self.files}:
            return self
        source = self.source or (self.files if here.source else ())
        return Noted(self.files + here.files, source)


def noted(samples: Samples) -> Noted:
    """The files that samples are read from, some where they are many, and their index.

    Raises:
        BadContainer: one is not there.
    """
    source: tuple[File, ...] = ()
    if samples.staged is not None:
        with suppress(BadContainer):
            source = _files(samples.from_source())
    return Noted(_files(samples), source)


def check(before: Noted) -> tuple[Noted, bool]:
    """Compare files with what was noted of them.

    A staged copy may be taken away, by whoever needs the memory: its source is as good.

    Returns:
        What is compared next time, and whether the source has to be read from now on.

    Raises:
        BadContainer: one was changed or replaced, or is gone.
    """
    try:
        _check(before.files)
    except Gone:
        if not before.source:
            raise
        _check(before.source)
        return Noted(before.source), True
    return before, False


def _check(before: tuple[File, ...]) -> None:
    for file in before:
        now = _noted(Path(file.path))
        if now != file:
            replaced = now.inode != file.inode
            what = "replaced by another file" if replaced else "written to"
            raise (Gone if replaced else BadContainer)(
                f"{file.path} was {what} while this job reads it ({file.size} bytes then, "
                f"{now.size} now): what is trained on would change in the middle of a run. Let "
                f"new data have a name of its own, and start the job again"
            )


def _files(samples: Samples) -> tuple[File, ...]:
    count = len(samples.index.files)
    rows = sorted({*range(0, count, max(1, -(-count // _MOST))), count - 1}) if count else []
    paths = [samples.file(row) for row in rows]
    index = indexes.place(samples.root)
    if index.is_file():
        paths.append(index)
    return tuple(_noted(path) for path in paths)


def _noted(path: Path) -> File:
    try:
        about = os.stat(path)
    except OSError as error:
        raise Gone(
            f"{path} cannot be found any more, and the job still reads it: {error.strerror}"
        ) from None
    # A pipe or a device in its place has sizes of its own.
    size = about.st_size if stat.S_ISREG(about.st_mode) else -1
    return File(str(path), about.st_ino, size, about.st_mtime_ns)
