"""The time that training takes, without the validations between its steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """Where a run stands.

    Attributes:
        step: steps taken.
        loss: per word of the validation text, in nats.
        cpu, wall: seconds of training so far.
        parameters: of the model.
    """

    step: int
    loss: float
    cpu: float
    wall: float
    parameters: int


class Clock:
    """Runs from when it is made, but for what happens in `standing`."""

    def __init__(self) -> None:
        self.parameters = 0
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """What is done here does not count."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self._cpu += time.process_time() - cpu
        self._wall += time.perf_counter() - wall

    def point(self, step: int, loss: float) -> Point:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return Point(step, loss, cpu, wall, self.parameters)
