"""The training's own record as the page draws it: loss, rate, step time, data wait over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..recording import Array, Recording
from .reduce import buckets, highest, lowest, mean

POINTS = 800
EXTRAS = 12  # plots of what a script logged itself


@dataclass(frozen=True)
class Curve:
    """A value over the steps of a run, in buckets; NaN between lives.

    Attributes:
        id: in the page.
        time: (points,) unix seconds of the last step of each bucket; step: its number.
        low, mean, high: (points,) of the bucket.
        marks: (n, 2) unix seconds and value, drawn as points (validations).
        first, last: mean of the first and the last bucket.
    """

    id: str
    title: str
    unit: str
    time: NDArray[np.float64]
    step: NDArray[np.float64]
    low: Array
    mean: Array
    high: Array
    first: float
    last: float
    lowest: float
    highest: float
    marks: NDArray[np.float64]
    marks_name: str = ""
    note: str = ""
    more: bool = False


def curves(recording: Recording) -> tuple[Curve, ...]:
    """All that the training said of its steps; empty where it said nothing."""
    steps = recording.steps
    if not len(steps.step):
        return ()
    unit = f"{steps.unit or 'units'}/s"
    wait_note = "Share of each step, mean over the ranks."
    shown = [
        ("loss", "Loss", "", steps.loss, "", False),
        ("rate", "Throughput", unit, steps.rate, "All ranks together.", False),
        ("step-time", "Time of a step", "s", steps.seconds, "", False),
        ("data-wait", "Waiting for data", "%", steps.data_wait * 100, wait_note, False),
        ("mfu", "Model FLOPs utilisation", "%", steps.mfu * 100, "", False),
    ]
    extras = list(steps.extra.items())[:EXTRAS]
    logged = "Logged by the script."
    shown += [(f"extra-{n}", name, "", v, logged, True) for n, (name, v) in enumerate(extras)]
    found = []
    for name, title, unit, values, note, more in shown:
        if not np.isfinite(values).any():
            continue
        marks = _validations(recording) if name == "loss" else np.zeros((0, 2))
        found.append(_curve(recording, name, title, unit, values, note, more, marks))
    return tuple(found)


def left_out(recording: Recording) -> list[str]:
    """Names of logged values for which there is no plot."""
    return list(recording.steps.extra)[EXTRAS:]


def _curve(
    recording: Recording,
    name: str,
    title: str,
    unit: str,
    values: NDArray[np.float64],
    note: str,
    more: bool,
    marks: NDArray[np.float64],
) -> Curve:
    steps = recording.steps
    begins = np.array([life.begin for life in recording.facts.lives])
    lives = np.searchsorted(begins, steps.time, side="right")
    order = np.argsort(lives, kind="stable")
    starts = buckets(lives[order], POINTS)
    ends = np.append(starts[1:], len(order)) - 1
    single = values.astype(np.float32)
    pieces = [single[order[a : b + 1]] for a, b in zip(starts, ends, strict=True)]
    low = np.array([lowest(piece) for piece in pieces], dtype=np.float32)
    middle = np.array([mean(piece) for piece in pieces], dtype=np.float32)
    high = np.array([highest(piece) for piece in pieces], dtype=np.float32)
    seen = middle[np.isfinite(middle)]
    last = order[ends]
    # A point without a value between two lives: the line must not bridge what was not trained.
    breaks = np.flatnonzero(np.diff(lives[last])) + 1

    def broken(array: NDArray[np.float64] | Array) -> Array:
        return np.insert(array.astype(np.float64), breaks, np.nan)  # type: ignore[return-value]

    return Curve(
        id=name,
        title=title,
        unit=unit,
        time=np.insert(steps.time[last], breaks, steps.time[last][breaks]),
        step=np.insert(steps.step[last].astype(np.float64), breaks, np.nan),
        low=broken(low),
        mean=broken(middle),
        high=broken(high),
        first=float(seen[0]),
        last=float(seen[-1]),
        lowest=float(lowest(low)),
        highest=float(highest(high)),
        marks=marks,
        marks_name="validation" if len(marks) else "",
        note=note,
        more=more,
    )


def _validations(recording: Recording) -> NDArray[np.float64]:
    """(n, 2) time and loss of each validation; the time is that of its step."""
    steps = recording.steps
    valid = steps.valid
    if not len(valid):
        return np.zeros((0, 2))
    # A step that was taken twice (a resume) counts where it was taken last.
    when = dict(zip(steps.step.tolist(), steps.time.tolist(), strict=True))
    known = [(when[int(step)], loss) for step, loss in valid if int(step) in when]
    return np.array(known, dtype=np.float64).reshape(-1, 2)
