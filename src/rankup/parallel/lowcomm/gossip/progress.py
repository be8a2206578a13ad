"""Whether the thread that trains gets on: a read that never returns stops no other thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TIMES = 10.0


class Progress:
    """Stamps of the thread that trains, and whether the last one is too long ago.

    Args:
        patience: seconds after which a silent worker is left out. What holds up all workers for a
            while, as a file system does, must not look like the end of them all, so ten times
            that are let pass, and ten of the slowest step so far.
        first: seconds for the first step, and for what may take as long.
    """

    def __init__(
        self, patience: float, first: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least, self._first, self._clock = _TIMES * patience, first, clock
        self._slowest: float | None = None
        self._slow = 0
        self._last = clock()

    @property
    def stuck(self) -> bool:
        """Whether it has stood still for too long. Any thread."""
        limit = self._first
        if self._slowest is not None:
            limit = max(self._least, _TIMES * self._slowest)
        if self._slow:
            limit = max(limit, self._first)
        return self._clock() - self._last > limit

    def moved(self) -> None:
        """It got on."""
        self._last = self._clock()

    def step(self, seconds: float) -> None:
        """It has done a step, which took so long."""
        self._slowest = max(self._slowest or 0.0, seconds)
        self.moved()

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Something that may take as long as a first step: a checkpoint is written."""
        self.moved()
        self._slow += 1
        try:
            yield
        finally:
            self.moved()
            self._slow -= 1
