"""How often to sample: often at first, seldom in long runs, and never at a price that is felt."""

from __future__ import annotations

EVERY = 2.0  # seconds, at first
# From so many seconds on, so many times as far apart.
_STRETCHED = ((2 * 3600.0, 5.0), (600.0, 2.5))
BUDGET = 0.004  # CPU seconds per second
_LONGEST = 60.0
_WEIGHT = 0.2  # of the newest sample in the mean


class Pace:
    """Seconds between samples.

    Args:
        every: at first; 2.5 times that after ten minutes, 5 times after two hours.
    """

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
        self._mean: float | None = None

    def spent(self, cpu: float) -> None:
        """Tell the CPU seconds that a sample took, everything included."""
        self._mean = cpu if self._mean is None else self._mean + _WEIGHT * (cpu - self._mean)

    def interval(self, elapsed: float) -> float:
        """Seconds to the next sample, so many after the first one."""
        times = next((factor for start, factor in _STRETCHED if elapsed >= start), 1.0)
        return max(times * self._every, min(_LONGEST, (self._mean or 0.0) / BUDGET))
