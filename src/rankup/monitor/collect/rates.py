"""Counters that only grow, as what they grew by per second."""

from __future__ import annotations

from collections.abc import Hashable


class Rates:
    """The last value of each counter, by any key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}

    def of(self, key: Hashable, value: float | None, seconds: float | None) -> float | None:
        """Growth per second since the last call with this key.

        None for the first one, for a counter that cannot be read, and for one that went back: it
        was reset or overflowed, and what it counted meanwhile is not known.
        """
        if value is None:
            self._last.pop(key, None)
            return None
        before = self._last.get(key)
        self._last[key] = value
        if before is None or not seconds or value < before:
            return None
        return (value - before) / seconds
