"""Who is there in a run of gossip: a worker's place in the environment, and who gives no more sign.

No torch here.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ....base.errors import UserError

# A worker's number, how many there are, and host:port of the store.
WORKER, WORKERS, STORE = "RANKUP_WORKER", "RANKUP_WORKERS", "RANKUP_STORE"
_PATIENCE = "RANKUP_PATIENCE"
_SECONDS = 30.0


def patience() -> float:
    """Seconds without a sign of life after which the others go on without a worker.

    Raises:
        UserError: the environment has something else.
    """
    given = os.environ.get(_PATIENCE, str(_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise UserError(f"{_PATIENCE}={given!r} is no number of seconds above 0; set one, or none")
    return seconds


class Silence:
    """Tells from the counts of signs of life who has given none for too long.

    Args:
        seconds: that are too long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[int, tuple[int, float]] = {}

    def of(self, beats: tuple[int, ...], now: float) -> frozenset[int]:
        """The silent ones; a worker that has not begun is not among them.

        Args:
            now: seconds of any clock.
        """
        for worker, count in enumerate(beats):
            before, _ = self._seen.get(worker, (-1, 0.0))
            if count != before:
                self._seen[worker] = (count, now)
        return frozenset(
            worker
            for worker, (count, since) in self._seen.items()
            if count > 0 and now - since > self._seconds
        )

    def forgive(self, now: float) -> None:
        """Who asks was away for long itself: the others' clocks start anew."""
        self._seen = {worker: (count, now) for worker, (count, _) in self._seen.items()}


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
        """True if it has stood still for too long. Any thread."""
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
