"""The journal of a watched script, read by the parent while it grows.

Each line is a JSON object with `event`, its kind, `time` (unix seconds) and `pid`, mostly also with
`where`, the place in the user's code ("train.py:12 in main").
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


class Event(dict[str, Any]):
    """One line."""

    @property
    def kind(self) -> str:
        """Such as "url", "open", "batch", "stop"."""
        return str(self["event"])

    @property
    def pid(self) -> int:
        """The process that it is of."""
        return int(self["pid"])

    @property
    def where(self) -> str:
        """The place in the user's code; empty where there is none."""
        return self.text("where")

    def text(self, name: str) -> str:
        """Return a field that is a string; empty where it is missing or none."""
        return str(self.get(name) or "")

    def number(self, name: str) -> int:
        """Return a field that is a whole number; 0 where it is missing or none."""
        return int(self.get(name) or 0)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of strings."""
        return tuple(map(str, self.get(name) or ()))


class Journal:
    """The file of events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """Return the events that came since the last call; a line that is not whole yet is left."""
        found = []
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                with suppress(ValueError):  # a full disk, or a kill, takes a part of it
                    found.append(Event(json.loads(line)))
        self.events += found
        return found

    def read_all(self) -> tuple[Event, ...]:
        """Return all events."""
        self.read()
        return tuple(self.events)


def of(events: Iterable[Event], *kinds: str) -> list[Event]:
    """Return the events of these kinds, in order."""
    return [event for event in events if event.kind in kinds]


def inside(path: str, folders: Iterable[str | Path]) -> bool:
    """Return True for an absolute path, without `..`, that is one of these folders or in one."""
    return any(path == name or path.startswith(name + "/") for name in map(str, folders))
