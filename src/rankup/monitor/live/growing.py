"""Files of JSON lines and of CSV that grow: what is new in them, without reading the old again."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.files import open_regular
from .. import jsonl

LAST = 64 * 1024  # of a file of gigabytes its newest lines
_MOST = 4 * 1024 * 1024  # bytes of news in one look; after that the newest only


@dataclass
class Growing:
    """The lines appended to a file since the last look; it need not be there yet.

    A torn last line waits for its end. A file that was replaced or cut (a resume cuts
    `metrics.jsonl` back) is begun anew, from its end as at first.

    Attributes:
        last: bytes read of its end at the first look.
        begun: how often it was begun; a change says that what was read before is void.
    """

    path: Path
    last: int = LAST
    begun: int = 0
    _offset: int = -1  # behind the last whole line
    _identity: tuple[int, int] = field(default=(0, 0))

    def read(self) -> list[dict[str, Any]]:
        """The objects that came since; at the first look the newest ones."""
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
                return self._parsed(file.read(size - self._offset), self._offset)
        except OSError:
            return []

    def _begin(self, file: Any, size: int, identity: tuple[int, int]) -> list[dict[str, Any]]:
        self._identity = identity
        self.begun += 1
        if size > self.last:
            return self._skip(file, size)
        return self._parsed(file.read(size), 0)

    def _skip(self, file: Any, size: int) -> list[dict[str, Any]]:
        """The newest lines only; of the first of them the beginning is missing."""
        file.seek(size - self.last)
        data = file.read(self.last)
        first = data.find(b"\n") + 1
        return self._parsed(data[first:], size - self.last + first)

    def _parsed(self, data: bytes, begin: int) -> list[dict[str, Any]]:
        whole = data[: data.rfind(b"\n") + 1]
        self._offset = begin + len(whole)
        return self._records(whole)

    def _records(self, whole: bytes) -> list[dict[str, Any]]:
        found = map(jsonl.one, whole.split(b"\n"))
        return [record for record in found if isinstance(record, dict)]


@dataclass
class Table(Growing):
    """The rows appended to a CSV file since the last look, by the names in its header."""

    _names: list[str] = field(default_factory=list)

    def _begin(self, file: Any, size: int, identity: tuple[int, int]) -> list[dict[str, Any]]:
        header = file.readline(self.last)
        if not header.endswith(b"\n"):  # of a sampler that has just begun
            return []
        self._names = header.decode("utf-8", "replace").strip().split(",")
        file.seek(0)
        return super()._begin(file, size, identity)

    def _records(self, whole: bytes) -> list[dict[str, Any]]:
        rows = csv.reader(whole.decode("utf-8", "replace").splitlines())
        return [dict(zip(self._names, row, strict=False)) for row in rows if row != self._names]
