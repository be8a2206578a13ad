"""Bytes of which the first part is staged, and the rest is read from the source."""

from __future__ import annotations

from pathlib import Path

from ..index import Int64s
from ..spans import How, Spans


class Partly:
    """As `Spans`; each read goes to the copy where it lies there wholly, else to the source.

    Args:
        here: of the copy, whose files have the sizes `cuts`.
        source: of the source.
        cuts: int64, bytes of each file that are here, from its beginning.
    """

    def __init__(self, here: Spans, source: Spans, cuts: Int64s) -> None:
        self._here, self._source = here, source
        self._cuts: list[int] = cuts.tolist()

    @property
    def how(self) -> How:
        """How the copy is read."""
        return self._here.how

    def path(self, file: int) -> Path:
        """Where all of a file lies."""
        return self._source.path(file)

    def read(self, file: int, offset: int, length: int) -> memoryview | bytes:
        """See `Spans.read`."""
        # A file that does not exist has no samples to look for, not even empty ones.
        if file < len(self._cuts) and offset + length <= self._cuts[file] and self._cuts[file]:
            return self._here.read(file, offset, length)
        return self._source.read(file, offset, length)

    def close(self) -> None:
        """See `Spans.close`."""
        self._here.close()
        self._source.close()
