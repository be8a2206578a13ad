"""The journal of a watched script, read by the parent while it grows.

Each line is a JSON object with `event`, `time` (unix seconds) and `pid`, mostly also with `where`,
the place in the user's code ("train.py:12 in main"). See `inside` for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A script that writes this much into its own journal is not read to the end at once; and a line
# of this length is none of ours.
_AT_ONCE = 16 << 20


@dataclass(frozen=True)
class Event:
    """One line.

    Attributes:
        kind: such as "url", "open", "batch", "stop".
        values: all other fields, of any type: a script could write into the file, too.
    """

    kind: str
    time: float
    pid: int
    where: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a field that is a string; empty where it is missing or none."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """Return a field that is a whole number; 0 where it is missing or none."""
        value = self.values.get(name)
        return value if isinstance(value, int) else 0

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of strings; what is none in it is left out."""
        value = self.values.get(name)
        return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


class Journal:
    """The file of events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """Return the events that came since the last call; a line that is not whole yet is left."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_AT_ONCE)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == _AT_ONCE:
            self._offset += len(
                data
            )  # the rest of that line is no event either, and is passed over
        self._offset += len(whole)
        found = [event for line in whole.splitlines() if (event := _parse(line)) is not None]
        self.events += found
        return found

    def read_all(self) -> tuple[Event, ...]:
        """Return all events; for when nobody writes any more."""
        before = -1
        while self._offset > before:
            before = self._offset
            self.read()
        return tuple(self.events)


def _parse(line: bytes) -> Event | None:
    with suppress(ValueError, RecursionError):
        values = json.loads(line)
        if isinstance(values, dict):
            kind, time, pid = (values.pop(name, None) for name in ("event", "time", "pid"))
            where = values.pop("where", "")
            if isinstance(kind, str) and isinstance(time, int | float) and isinstance(pid, int):
                return Event(kind, time, pid, where if isinstance(where, str) else "", values)
    return None


def of(events: Iterable[Event], *kinds: str) -> list[Event]:
    """Return the events of these kinds, in order."""
    return [event for event in events if event.kind in kinds]


def inside(path: str, folders: Iterable[str | Path]) -> bool:
    """Return True for an absolute path, without `..`, that is one of these folders or in one."""
    return any(path == name or path.startswith(name + "/") for name in map(str, folders))
