"""A file of JSON lines that grows: what is new in it, without reading the old again."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.files import open_regular
from .. import jsonl

# Of a file of gigabytes: its first lines (the head, early notes) and its newest ones.
FIRST = 64 * 1024
LAST = 64 * 1024
_MOST = 4 * 1024 * 1024  # bytes of news in one look; after that the newest only


@dataclass
class Growing:
    """The lines appended to a file since the last look; it need not be there yet.

    A torn last line waits for its end. A file that was replaced or cut (a resume cuts
    `metrics.jsonl` back) is begun anew, from its end as at first.

    Attributes:
        first, last: bytes read of the beginning and of the end at the first look.
        begun: how often it was begun; a change says that what was read before is void.
        torn: whole lines that were no JSON object.
    """

    path: Path
    first: int = FIRST
    last: int = LAST
    begun: int = 0
    torn: int = 0
    _offset: int = -1
    _partial: bytes = b""
    _identity: tuple[int, int] = field(default=(0, 0))

    def read(self) -> list[dict[str, Any]]:
        """The objects that came since.

        At the first look they are the newest ones and, of the file's beginning, those that have a
        `kind`: heads and notes.
        """
        try:
            status = self.path.stat()
        except OSError:
            return []
        identity = (status.st_dev, status.st_ino)
        if self._offset >= 0 and identity == self._identity and status.st_size == self._offset:
            return []
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                size, identity = status.st_size, (status.st_dev, status.st_ino)
                if self._offset < 0 or identity != self._identity or size < self._offset:
                    return self._begin(file, size, identity)
                if size - self._offset > _MOST:
                    return self._skip(file, size)
                file.seek(self._offset)
                return self._parsed(file.read(size - self._offset))
        except OSError:
            return []

    def _begin(self, file: Any, size: int, identity: tuple[int, int]) -> list[dict[str, Any]]:
        self._identity, self._partial = identity, b""
        self.begun += 1
        if size <= self.first + self.last:
            return self._parsed(file.read(size), at=size)
        head = file.read(self.first).split(b"\n")[:-1]
        marked = b"\n".join(line for line in head if b'"kind"' in line)
        return _objects(marked)[0] + self._skip(file, size)

    def _skip(self, file: Any, size: int) -> list[dict[str, Any]]:
        """The newest lines only; of the first of them the beginning is missing."""
        file.seek(size - self.last)
        data = file.read(self.last)
        self._partial = b""
        return self._parsed(data[data.find(b"\n") + 1 :], at=size)

    def _parsed(self, data: bytes, at: int | None = None) -> list[dict[str, Any]]:
        self._offset = self._offset + len(data) if at is None else at
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest[-_MOST:]
        if not newline:
            return []
        found, torn = _objects(whole)
        self.torn += torn
        return found


def _objects(data: bytes) -> tuple[list[dict[str, Any]], int]:
    found, torn = [], 0
    for line in data.split(b"\n"):
        if not line.strip(b"\0 \r\t"):
            continue
        value = jsonl.one(line)
        if value is None and (at := line.rfind(b'{"kind"')) > 0:
            # A writer that was killed leaves part of a line; the next attempt's head is behind it.
            torn += 1
            value = jsonl.one(line[at:])
        if isinstance(value, dict):
            found.append(value)
        else:
            torn += 1
    return found, torn
