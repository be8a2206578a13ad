"""Appends lines to a file that must never hold half of one but at its end, and never harm a job."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

_RETRY = 30.0  # seconds between attempts while the file system takes nothing


class RefusedError(OSError):
    """What stands in the file's place is nothing to be written to, now or later."""


def open_own(path: Path) -> int:
    """A descriptor to append to a file, which is made where it is missing, and to read it.

    Run directories lie where others may write, and what they put in the file's place must neither
    be waited for nor lead out of the directory.

    Raises:
        RefusedError: it is a link, no regular file, or another user's.
        OSError: it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _refused(path) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise _refused(path)
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        raise
    return descriptor


def _refused(path: Path) -> RefusedError:
    try:
        status = os.lstat(path)
    except OSError:  # gone meanwhile
        return RefusedError(f"{path} was no regular file; start the run again")
    if stat.S_ISLNK(status.st_mode):
        found = "a symbolic link"
    elif not stat.S_ISREG(status.st_mode):
        found = "no regular file"
    else:
        found = f"a file of another user (number {status.st_uid})"
    return RefusedError(
        f"{path} is {found}, and samples go into a file of yours alone; move it away"
    )


class Writer:
    """The one process that writes this file.

    What cannot be written is dropped and counted.

    Args:
        path: is made where it is missing; a torn last line of a writer that was killed is ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._failed = -_RETRY
        self.dropped = 0  # lines, until somebody has told of them and sets it to 0
        self.why = ""

    def write(self, line: dict[str, Any], now: float) -> bool:
        """Append a line, whole or not at all; whether it is there.

        Args:
            now: monotonic seconds, by which a full disk is asked again every half minute only.

        Raises:
            RefusedError: see `open_own`; waiting does not help.
        """
        if self.dropped and now - self._failed < _RETRY:
            self.dropped += 1
            return False
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        try:
            self._append(data)
        except RefusedError:
            raise
        except OSError as error:
            self._failed = now
            self.dropped += 1
            self.why = error.strerror or str(error)
            self.close()  # opened anew: it may have been moved, or its server restarted
            return False
        return True

    def close(self) -> None:
        """Once no more is to be written."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # What NFS could not store it may say only here; the descriptor is closed all the same.
            with suppress(OSError):
                os.close(descriptor)

    def _append(self, data: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = open_own(self._path)
        # Asked each time, since a truncation below may itself have failed.
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            done = os.write(self._descriptor, data)
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise
