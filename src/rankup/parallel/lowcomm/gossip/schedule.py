"""Who talks to whom: the exponential graph, and whose turn it is."""

from __future__ import annotations

from collections.abc import Collection


def neighbours(worker: int, workers: int) -> list[int]:
    """The workers at distances ±1, ±2, ±4, … on a ring, in the order of their turns.

    The one-peer exponential graph (Assran et al., "Stochastic Gradient Push", 2019; Ying et al.,
    "Exponential Graph is Provably Efficient", 2021): a worker has about 2 log2(workers) of them,
    and what one knows has come to all within log2(workers) rounds.
    """
    found = list[int]()
    distance = 1
    while distance <= workers // 2:
        for other in ((worker + distance) % workers, (worker - distance) % workers):
            if other not in (worker, *found):
                found.append(other)
        distance *= 2
    return found


class Turns:
    """Picks one neighbour after the other; who cannot be talked to now is passed over."""

    def __init__(self, worker: int, workers: int) -> None:
        self._order = neighbours(worker, workers)
        self._next = 0

    def take(self, free: Collection[int], waiting: Collection[int] = ()) -> int | None:
        """The next of the `free` neighbours; those who wait for an answer come first.

        An answer does not move the turn on: else who is answered often would never begin.
        """
        count = len(self._order)
        turn = [self._order[(self._next + i) % count] for i in range(count)]
        for other in turn:
            if other in waiting:
                return other
        for place, other in enumerate(turn):
            if other in free:
                self._next = (self._next + place + 1) % count
                return other
        return None
