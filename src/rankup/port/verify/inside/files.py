"""Keeps a rank's writing inside of its copy of the project, and records what it writes and prints.

Writing anywhere else and other programs are refused.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable
from typing import Any

from ....sandbox.inside import files
from ....sandbox.inside.journal import Journal
from .draws import Progress

_MOST = 2000  # printed lines
_LONGEST = 400  # characters of a line


class Writing(files.Files):
    """The handlers of one rank.

    Args:
        folder: the copy, without links.
        temporary, state: folders in which anything goes and nothing is recorded.
    """

    new_elsewhere = False
    why = "verify lets a script write only below its own folder"

    def __init__(self, folder: str, temporary: str, state: str, journal: Journal) -> None:
        super().__init__(journal, folder, (temporary, state), (), temporary)
        self._folder = folder

    def note(self, event: str, **fields: Any) -> None:
        """Record paths as they are in the copy."""
        for name in {"path", "from", "to"} & fields.keys():
            fields[name] = os.path.relpath(fields[name], self._folder)
        super().note(event, **fields)

    def start(self, program: str, words: Iterable[str]) -> None:
        """Refuse to start a program.

        Raises:
            FileNotFoundError: always.
        """
        name = os.path.basename(program)
        self._journal.tell("refused", what=f"starting {name}", where=self._journal.where())
        raise FileNotFoundError(errno.ENOENT, "rankup verify starts no other program", name)


class Lines(io.RawIOBase):
    """Records what is printed; the rest of an endless output is dropped."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._journal = progress, progress.journal
        self._rest = b""
        self._count = 0

    def install(self) -> None:
        """Be `sys.stdout`."""
        stream = io.TextIOWrapper(
            io.BufferedWriter(self), encoding="utf-8", errors="replace", write_through=True
        )
        stream.reconfigure(line_buffering=True)
        sys.stdout = sys.__stdout__ = stream  # type: ignore[misc]

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """That of stdout: for those that ask how wide it is."""
        return 1

    def write(self, data: Any) -> int:
        """Record the lines that are whole."""
        given = bytes(data)
        *lines, rest = (self._rest + given).split(b"\n")
        self._rest = rest[-_LONGEST:]
        for line in lines:
            self._record(line)
        return len(given)

    def finish(self) -> None:
        """Record what has no line end."""
        if self._rest:
            self._record(self._rest)
            self._rest = b""

    def _record(self, line: bytes) -> None:
        self._count += 1
        if self._count == _MOST:
            self._progress.note(f"printed lines: only {_MOST} are compared")
        if self._count < _MOST:
            # Of a bar drawn over and over the last state counts.
            text = line.rpartition(b"\r")[2] if not line.endswith(b"\r") else line
            shown = text.decode("utf-8", "replace")[:_LONGEST]
            fields = {"phase": self._progress.phase, "bar": text is not line}
            self._journal.tell("line", text=shown, **fields)
