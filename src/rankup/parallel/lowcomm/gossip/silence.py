"""Who has given no sign of life for too long. No torch here."""

from __future__ import annotations


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
