"""Appends to files that must never hold half a line but at their end, and never harms a job."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..lines import JOURNAL, KINDS, ending, header

_RETRY = 30.0  # seconds between attempts while the file system takes nothing
_TAIL = 1 << 20  # bytes in which the last line of a file begins


class RefusedError(OSError):
    """In the file's place stands what cannot be appended to, now or later."""


class Writer:
    """The one process that writes the files of this node.

    What cannot be written is dropped and counted.

    Args:
        folder, node: of the files, which are made where they are missing; a torn last line of a
            writer that was killed is cut off.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self._path = folder / node
        self._open: dict[str, int] = {}  # descriptors by ending of the name
        self._failed = -_RETRY
        self.dropped = 0  # samples and lines, until somebody has told of them and sets it to 0
        self.why = ""

    def journal(self, line: dict[str, Any], now: float) -> bool:
        """Append a line to the journal; see `sample`."""
        text = json.dumps(line, separators=(",", ":")) + "\n"
        return self._write({JOURNAL: text}, now)

    def sample(self, rows: Mapping[str, Iterable[Iterable[Any]]], now: float) -> bool:
        """Append the rows of a sample by kind, whole or not at all; whether they are there.

        Args:
            now: monotonic seconds, by which a full disk is asked again every half minute only.

        Raises:
            RefusedError: it is another user's, no regular file, or a table has other columns.
        """
        return self._write({ending(kind): _text(rows[kind]) for kind in KINDS}, now)

    def close(self) -> None:
        """Close the files, once no more is to be written."""
        while self._open:
            # What NFS could not store it may say only here; the descriptor is closed all the same.
            with suppress(OSError):
                os.close(self._open.popitem()[1])

    def _write(self, texts: dict[str, str], now: float) -> bool:
        if self.dropped and now - self._failed < _RETRY:
            self.dropped += 1
            return False
        sizes: dict[int, int] = {}
        try:
            for name, text in texts.items():
                if text:
                    descriptor = self._descriptor(name)
                    sizes[descriptor] = os.fstat(descriptor).st_size
                    _write_all(descriptor, text)
        except RefusedError:
            raise
        except OSError as error:
            self._failed = now
            self.dropped += 1
            self.why = error.strerror or str(error)
            for descriptor, size in sizes.items():
                with suppress(OSError):  # what is left of a line is cut off when it is opened anew
                    os.ftruncate(descriptor, size)
            self.close()  # opened anew: it may have been moved, or its server restarted
            return False
        return True

    def _descriptor(self, name: str) -> int:
        """Return that of a file, which ends with a whole line: a table's header at least."""
        found = self._open.get(name)
        if found is not None:
            return found
        path = self._path.with_name(self._path.name + name)
        self._open[name] = descriptor = _open_own(path)
        size = os.fstat(descriptor).st_size
        begin = max(0, size - _TAIL)
        whole = begin + os.pread(descriptor, _TAIL, begin).rfind(b"\n") + 1
        if whole < size:
            os.ftruncate(descriptor, whole)
        if name == JOURNAL:
            return descriptor
        first = _text([header(name.split(".")[1])])
        if not whole:
            _write_all(descriptor, first)
        elif os.pread(descriptor, len(first), 0) != first.encode():
            raise RefusedError(
                f"{path} has other columns than this version of rankup writes; move it away"
            )
        return descriptor


def _open_own(path: Path) -> int:
    # Run directories lie where others may write. What they put in a file's place must not lead out
    # of them: what is torn there is cut off.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    refused = RefusedError(f"{path} is no regular file of yours; move it away")
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise refused if error.errno in (errno.ELOOP, errno.EISDIR) else error from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise refused
    return descriptor


def _text(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _write_all(descriptor: int, text: str) -> None:
    data = text.encode()
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done:])
