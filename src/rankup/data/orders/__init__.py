"""In which order an epoch takes its samples: position -> sample, as functions.

Nothing in an order knows of ranks, nodes or workers, so that all of them may change in the middle
of an epoch: a place in a run is `(seed, epoch, consumed)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ...runtime.order import Window
from ..index import Int64s


class Ordering(Protocol):
    """Which sample stands at which position of an epoch.

    Attributes:
        n: positions in an epoch; each sample of the data set at most once unless an order says
            otherwise.
        global_batch: the batch size that it is made for; None where any will do.
    """

    @property
    def n(self) -> int: ...

    @property
    def global_batch(self) -> int | None: ...

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        """Samples at positions [start, stop), int64; 0 <= start <= stop <= n.

        An order for a `global_batch` is asked for whole batches: `start` is a multiple of it, and
        `stop` the next one or `n`.
        """
        ...


@dataclass(frozen=True)
class Sequential:
    """As they are stored: for evaluation."""

    n: int
    global_batch: int | None = None

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True)
class Shuffled:
    """A random permutation per epoch, the run's `Order`."""

    n: int
    seed: int = 0
    global_batch: int | None = None
    _window: Window = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_window", Window(self.n, self.seed))

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        return self._window.slice(epoch, start, stop).numpy()
