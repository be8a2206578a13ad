"""What a rank prints, line by line, into its journal."""

from __future__ import annotations

import io
import sys
from typing import Any

from ....login.fetch.inside.journal import Journal
from .progress import Progress

_MOST = 2000  # lines
_LONGEST = 400  # characters


class Lines(io.RawIOBase):
    """Takes the bytes of stdout; the rest of an endless output is dropped."""

    def __init__(self, progress: Progress, journal: Journal) -> None:
        self._progress, self._journal = progress, journal
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
        """Yes."""
        return True

    def fileno(self) -> int:
        """That of stdout: for those that ask how wide it is."""
        return 1

    def write(self, data: Any) -> int:
        """Tell the lines that are whole."""
        given = bytes(data)
        *lines, rest = (self._rest + given).split(b"\n")
        self._rest = rest[-_LONGEST:]
        for line in lines:
            self._tell(line)
        return len(given)

    def finish(self) -> None:
        """Tell what has no line end."""
        if self._rest:
            self._tell(self._rest)
            self._rest = b""

    def _tell(self, line: bytes) -> None:
        self._count += 1
        if self._count == _MOST:
            self._journal.tell("note", text=f"printed lines: only {_MOST} are compared")
        if self._count < _MOST:
            # Of a bar drawn over and over the last state counts.
            text = line.rpartition(b"\r")[2] if not line.endswith(b"\r") else line
            shown = text.decode("utf-8", "replace")[:_LONGEST]
            self._journal.tell("line", text=shown, phase=self._progress.phase)
