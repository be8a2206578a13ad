"""The learning rate, and where it goes with it the momentum, as functions of the step."""

from __future__ import annotations

import math
from typing import NamedTuple

FLOOR = 0.1  # the cosine ends at this part of the peak

# Of fastai's `fit_one_cycle` and `fine_tune` (fastai/callback/schedule.py): the part of a cycle in
# which the rate rises, and what the peak is divided by at its beginning and at its end.
_CYCLE = (0.25, 25.0, 1e5)
_FROZEN_CYCLE = (0.99, 25.0, 1e5)
_THAWED_CYCLE = (0.3, 5.0, 1e5)
_MOMENTUM = (0.95, 0.85)  # at its ends, at its peak


class Rates(NamedTuple):
    """What a step is taken with.

    Attributes:
        lr: learning rate.
        momentum: of sgd, or adamw's beta1; None: the optimizer's own.
    """

    lr: float
    momentum: float | None = None


def rates(
    step: int,
    last: int,
    peak: float,
    warmup: int,
    schedule: str,
    frozen: int = 0,
    decayed: float = 1.0,
) -> Rates:
    """The rates of step `step` (from 1) of a run of `last` steps.

    Args:
        frozen: steps at the beginning in which most of the model stays as it is; `one-cycle` gives
            them a cycle of their own, and the rest one of half the peak, as fastai's `fine_tune`.
        decayed: what the epochs before this step have left of the peak, of the schedule `step`.
    """
    if schedule == "step":
        return Rates(learning_rate(step, last, peak, warmup, "constant") * decayed)
    if schedule != "one-cycle":
        return Rates(learning_rate(step, last, peak, warmup, schedule))
    if step <= frozen:
        return one_cycle(step, min(frozen, last), peak, *_FROZEN_CYCLE)
    if frozen:
        return one_cycle(step - frozen, last - frozen, peak / 2, *_THAWED_CYCLE)
    return one_cycle(step, last, peak, *_CYCLE)


def one_cycle(step: int, last: int, peak: float, rising: float, begin: float, end: float) -> Rates:
    """Half a cosine up and half a cosine down, momentum the other way (Smith and Topin, 2018).

    Args:
        rising: part of the cycle in which the rate rises to `peak`.
        begin, end: the rate begins at peak / begin, and ends at peak / end.
    """
    at = (step - 1) / last
    far, near = _MOMENTUM
    if at < rising:
        part = at / rising
        return Rates(_between(peak / begin, peak, part), _between(far, near, part))
    part = (at - rising) / (1 - rising)
    return Rates(_between(peak, peak / end, part), _between(near, far, part))


def _between(first: float, last: float, part: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * part))


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
