"""The learning rate as a function of the step."""

from __future__ import annotations

import math

FLOOR = 0.1  # the cosine ends at this part of the peak


def learning_rate(step: int, last: int, peak: float, warmup: int, schedule: str) -> float:
    """Learning rate of step `step` (from 1) of a run of `last` steps.

    Linear from `peak / warmup` to `peak`, then a half cosine down to `FLOOR * peak` (Loshchilov and
    Hutter, "SGDR", 2017, one cycle), or constant.
    """
    if step <= warmup:
        return peak * step / warmup
    if schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, last - warmup)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))
