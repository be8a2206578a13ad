"""Numbers, bars and curves in a few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean


def figure(value: float) -> str:
    """A loss in four digits: "3.214", "0.0312", "nan"."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3f}" if 0.1 <= abs(value) < 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Signs:
    """The characters that figures are drawn with; a terminal may lack the better ones."""

    full: str
    empty: str
    levels: str
    dot: str
    more: str
    up_down: str
    degree: str

    def bar(self, share: float, width: int) -> str:
        """A bar of `width` cells, filled up to `share` (0 to 1)."""
        filled = round(min(1.0, max(0.0, share)) * width)
        if share > 0.005:
            filled = max(1, filled)
        return self.full * filled + self.empty * (width - filled)

    def level(self, share: float | None) -> str:
        """One cell, as high as `share` (0 to 1); "?" where it is not known."""
        if share is None:
            return "?"
        last = len(self.levels) - 1
        return self.levels[min(last, max(0, math.ceil(share * last - 0.02)))]

    def curve(self, values: Sequence[float], width: int) -> str:
        """The course of finite values, each cell the mean of those that fall into it."""
        finite = [value for value in values if math.isfinite(value)]
        if len(finite) < 2 or width < 1:
            return ""
        width = min(width, len(finite))
        edges = [round(k * len(finite) / width) for k in range(width + 1)]
        means = [fmean(finite[a:b]) for a, b in pairwise(edges)]
        low, high = min(means), max(means)
        steps = self.levels[1:]
        if not high > low:
            return steps[len(steps) // 2] * width
        scale = (len(steps) - 1) / (high - low)
        return "".join(steps[round((value - low) * scale)] for value in means)


NICE = Signs("█", "░", " ▁▂▃▄▅▆▇█", "·", "…", "↑↓", "°C")
PLAIN = Signs("#", ".", " .:-=+*#@", "-", "...", "up/down", "C")
