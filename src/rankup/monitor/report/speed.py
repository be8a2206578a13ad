"""How fast a run was: units per second where its steps say it, else steps, else its whole time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import billing
from ..recording import Recording

FEWEST_STEPS = 10


def speeds(recordings: Sequence[Recording]) -> tuple[list[float | None], str, str]:
    """Speed of each run, its unit, and how it was measured: the best way that two runs allow."""
    units = {one.steps.unit or "units" for one in recordings if len(one.steps.step)}
    ways: list[tuple[Callable[[Recording], float | None], str, str]] = []
    if len(units) == 1:
        unit = f"{units.pop()}/s"
        ways.append((_rate, unit, "median over the steps of the units per second of all ranks"))
    ways.append((_steps_rate, "steps/s", "median over the steps; a step is taken to be as much"))
    ways.append((_run_rate, "runs/h", "time of the whole run; start-up counts too"))
    for measure, unit, how in ways:
        found = [measure(one) for one in recordings]
        if sum(speed is not None for speed in found) >= 2:
            return found, unit, how
    return [None] * len(recordings), "", "no two runs tell how fast they were"


def _rate(recording: Recording) -> float | None:
    return median(recording.steps.rate)


def _steps_rate(recording: Recording) -> float | None:
    seconds = median(recording.steps.seconds)
    return 1 / seconds if seconds else None


def _run_rate(recording: Recording) -> float | None:
    lives = billing.lives(recording)
    seconds = sum(billing.length(life, recording) for life in lives)
    return 3600 / seconds if seconds and lives[-1].state == "COMPLETED" else None


def median(values: NDArray[np.float64]) -> float | None:
    """Of the steps after warm-up; None where there are too few."""
    there = values[np.isfinite(values)]
    if len(there) < FEWEST_STEPS:
        return None
    # The first tenth is warm-up: compilation, caches, the first batches.
    return float(np.median(there[len(there) // 10 :])) or None
