"""How far a script is that is being fetched: a line now and then, from what its processes write."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...base.amounts import size
from ...base.text import say
from ...sandbox.events import Event, Journal

_RECENT = 50  # files that may still grow; with more, the older ones are taken to be whole


class Follow:
    """Called often; reads the journal, and tells the user.

    On a terminal a line comes each second at most, elsewhere every ten, and only with news.

    Args:
        place: where a path of an event lies while the script runs.
    """

    def __init__(self, journal: Journal, place: Callable[[str], Path], *, quiet: bool) -> None:
        self._journal = journal
        self._place = place
        self._every = float("inf") if quiet else (1.0 if sys.stderr.isatty() else 10.0)
        self._said = time.monotonic()
        self._line = self._url = ""
        self._whole = 0
        self._growing: list[str] = []

    def __call__(self) -> bool:
        """Return True once a process has written that all is done."""
        found = self._journal.read()
        for event in found:
            self._take(event)
        now = time.monotonic()
        if now - self._said > self._every:
            self._said = now
            self._tell()
        return any(event.kind == "stop" for event in found)

    def _take(self, event: Event) -> None:
        if event.kind == "problem" and self._every != float("inf"):
            self._say(f"not watched: {event.text('what')}: {event.text('error')}")
        elif event.kind == "url":
            self._url = event.text("url")
        elif event.kind == "open" and event.values.get("existed") is False:
            self._growing.append(event.text("path"))
        elif event.kind == "rename" and event.text("from") in self._growing:
            self._growing[self._growing.index(event.text("from"))] = event.text("to")
        while len(self._growing) > _RECENT:
            self._whole += self._size(self._growing.pop(0))

    def _tell(self) -> None:
        came = self._whole + sum(map(self._size, self._growing))
        url = f", {self._url}" if self._url else ""
        line = f"{size(came)} so far{url}" if came or url else ""
        if line != self._line:
            self._line = line
            self._say(line)

    def _size(self, path: str) -> int:
        for place in (self._place(path), Path(path)):
            with suppress(OSError):
                return os.stat(place).st_size
        return 0

    def _say(self, line: str) -> None:
        fresh_line()
        say(line)


def fresh_line() -> None:
    """Begin a new line where the script has left one unfinished, as a progress bar does.

    As many blanks as a terminal has columns, less one, reach the next line from anywhere but the
    first column. What reads a pipe cannot be looked at.
    """
    with suppress(OSError, ValueError):
        if os.isatty(2):
            columns = os.get_terminal_size(2).columns
            os.write(2, b" " * (columns - 1) + b"\r" if columns > 1 else b"\n")
        elif stat.S_ISREG(os.fstat(2).st_mode):
            with open("/proc/self/fd/2", "rb") as file:
                if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0:
                    os.write(2, b"" if file.read(1) == b"\n" else b"\n")
