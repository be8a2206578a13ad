"""In which order an epoch takes its samples: position -> sample, as functions.

Nothing in an order knows of ranks, nodes or workers, so that all of them may change in the middle
of an epoch: a place in a run is `(seed, epoch, consumed)`.
"""

from __future__ import annotations

from .plain import ByLength, Ordering, Sequential, Shuffled

__all__ = ["ByLength", "Ordering", "Sequential", "Shuffled"]
