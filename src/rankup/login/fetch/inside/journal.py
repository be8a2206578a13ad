"""The lines that tell the parent what the script does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Journal:
    """Appends events, from any thread and any process of the script's tree.

    The file is opened for each line: a script may close descriptors that it does not know, and a
    number kept here could then be a file of its own. One `write` with O_APPEND keeps lines whole.
    """

    def __init__(self, path: str, where: Callable[[], str]) -> None:
        self._path = path
        self._where = where
        self._told: set[object] = set()

    def must(self, event: str, **fields: Any) -> None:
        """Append an event that the parent cannot do without.

        Raises:
            OSError: it could not be written.
        """
        record = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
        line = json.dumps(record).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def tell(self, event: str, **fields: Any) -> None:
        """Append an event that only explains; the script goes on where that is not possible."""
        with suppress(OSError):
            self.must(event, **fields)

    def where(self) -> str:
        """The line of the user's code that is running."""
        return self._where()

    def once(self, *key: object) -> bool:
        """Whether this is the first call with this key in this process."""
        if key in self._told:
            return False
        self._told.add(key)
        return True

    def problem(self, what: str, error: BaseException) -> None:
        """Say that something here did not work; the script goes on without it."""
        if self.once("problem", what):
            self.tell("problem", what=what, error=f"{type(error).__name__}: {error}")
