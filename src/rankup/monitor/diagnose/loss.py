"""What the loss says: no number, flat from the first step on, or rising."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.findings import Finding
from .. import words
from ..recording import Recording
from ..thresholds import LIMITS
from . import codes
from .diagnosis import Diagnosis


def _try(recording: Recording) -> str:
    """Advice: the options of a recipe, or words that fit any script."""
    if recording.facts.kind == "recipe":
        return "a smaller `--lr`, a longer `--warmup`, a lower `--clip`"
    return "a smaller learning rate, a longer warm-up, clipped gradients"


def not_a_number(recording: Recording) -> Iterator[Diagnosis]:
    """RK720: steps whose loss is NaN or infinite."""
    steps = recording.steps
    strange = steps.not_finite
    if not len(strange):
        return
    first = int(strange.min())
    at = np.flatnonzero(steps.step == first)
    windows: tuple[tuple[float, float], ...] = ()
    when = ""
    if len(at):
        begin = float(steps.time[at[0]])
        when = f" ({words.clock(begin)})"
        if recording.end > begin:
            windows = ((begin, recording.end),)
    good = steps.loss[np.isfinite(steps.loss) & (steps.step > int(strange.max()))]
    scope = (
        f"in {words.plural(len(strange), 'step')} from step {first} on"
        if len(good)
        else f"from step {first} on{when}, to the end"
    )
    yield Diagnosis(
        Finding(
            codes.LOSS_NAN,
            "warning" if len(good) else "error",
            "loss",
            f"the loss is not a number {scope}",
            f"{_try(recording)}; with float16 a `GradScaler`, or bf16; the checkpoints before are "
            "sound",
        ),
        windows=windows,
    )


def flat_or_rising(recording: Recording) -> Iterator[Diagnosis]:
    """RK721: after hundreds of steps from scratch the loss is where it was, or well above its low.

    Means of tenths of the steps, so that one batch decides nothing.
    """
    steps = recording.steps
    known = np.isfinite(steps.loss)
    loss, number = steps.loss[known], steps.step[known]
    if len(loss) < LIMITS.loss_steps:
        return
    parts = np.array_split(loss, 10)
    means = np.array([part.mean() for part in parts])
    noise = float(np.median([part.std() / np.sqrt(len(part)) for part in parts]))
    lowest, last, first = float(means.min()), float(means[-1]), float(means[0])
    size = max(abs(first), abs(lowest), 1e-12)
    at = int(number[len(loss) // 10 * int(means.argmin())])
    recipe = recording.facts.kind == "recipe"
    best = "; `rankup export --best` takes the checkpoint that validated best" if recipe else ""
    if last - lowest > max(LIMITS.loss_rise * size, 5 * noise):
        yield Diagnosis(
            Finding(
                codes.LOSS_FLAT,
                "warning",
                "loss",
                f"the loss rises: {lowest:.4g} around step {at}, {last:.4g} at the end",
                f"{_try(recording)}{best}",
            )
        )
    # A fine-tuning that starts near its end may be flat; so may a run that goes on.
    elif number[0] <= 1 and first - last < LIMITS.loss_flat * size and _level(means, noise, size):
        yield Diagnosis(
            Finding(
                codes.LOSS_FLAT,
                "warning",
                "loss",
                f"the loss does not fall: {first:.4g} over the first tenth of "
                f"{words.plural(len(loss), 'step')}, {last:.4g} over the last",
                "see that the optimizer has the model's parameters and steps, that labels belong "
                f"to their samples, and try another {'`--lr`' if recipe else 'learning rate'}",
            )
        )


def _level(means: np.ndarray[tuple[int], np.dtype[np.float64]], noise: float, size: float) -> bool:
    """Whether no tenth is clearly lower than the first."""
    return bool(means[0] - means.min() < max(LIMITS.loss_flat * size, 3 * noise))
