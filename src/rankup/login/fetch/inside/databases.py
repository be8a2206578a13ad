"""SQLite databases, which are opened in C: kept like files that are updated in place."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from .outputs import Outputs

# What SQLite keeps beside a database belongs to it: with another state of it, that is damage.
_BESIDE = ("-wal", "-shm", "-journal")
_HARMLESS = ("mode=memory", "mode=ro", "immutable=1")


class Databases:
    """Handles the audit event `sqlite3.connect`, of the module that all others stand on."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs

    def connected(self, database: object) -> None:
        """A database is about to be opened.

        Raises:
            PermissionError: it is there, and cannot be kept.
        """
        path = _file(database)
        if path:
            self._outputs.written(path, "update")
            for ending in _BESIDE:
                self._outputs.written(path + ending, "update", beside=True)


def _file(database: object) -> str:
    """The file of a database; empty where it has none, or is only read."""
    if not isinstance(database, str | bytes | os.PathLike):
        return ""
    name = os.fsdecode(database)
    if name.startswith("file:"):
        parts = urlsplit(name)
        if any(word in parts.query for word in _HARMLESS):
            return ""
        name = unquote(parts.path)
    return "" if name == ":memory:" else name
