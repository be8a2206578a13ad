"""Pauses of the training: times between steps, and whether somebody says what they were for.

Of those that checkpoints are for, a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...base.findings import Finding
from .. import billing, words
from ..recording import Recording
from ..thresholds import LIMITS
from . import codes
from .diagnosis import Diagnosis, merged

_EXPLAINED = ("checkpoint", "validation")


@dataclass(frozen=True)
class Pause:
    """Time without a step, unix seconds; `why`: checkpoint, validation, or stall for no reason."""

    begin: float
    end: float
    why: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def pauses(recording: Recording) -> tuple[Pause, ...]:
    """Steps that took many times the median, and events that say how long they took.

    A long step belongs to a checkpoint or a validation that ended in it or right before it.
    """
    steps = recording.steps
    known = np.isfinite(steps.seconds) & np.isfinite(steps.time)
    found: list[Pause] = []
    if known.any():
        usual = float(np.median(steps.seconds[known]))
        least = max(LIMITS.pause_least, LIMITS.pause_times * usual)
        for at in np.flatnonzero(known & (steps.seconds > least)).tolist():
            end = float(steps.time[at])
            found.append(_named(end - float(steps.seconds[at]), end, usual, recording))
    found += [
        Pause(event.time - event.seconds, event.time, event.kind)
        for event in recording.events
        if event.kind in _EXPLAINED and event.seconds > 0
    ]
    return tuple(sorted(found, key=lambda pause: (pause.begin, pause.end)))


def checkpoint_stalls(recording: Recording) -> Iterator[Diagnosis]:
    """RK715: a good part of the time, steps waited until a checkpoint was written."""
    windows = merged((p.begin, p.end) for p in pauses(recording) if p.why == "checkpoint")
    stalled = sum(end - begin for begin, end in windows)
    time = sum(billing.bill(recording).seconds)
    if not time or stalled < LIMITS.checkpoint_least or stalled / time < LIMITS.checkpoint_share:
        return
    yield Diagnosis(
        Finding(
            codes.CHECKPOINTS,
            "warning",
            "checkpoints",
            f"training waited {words.duration(stalled)} for "
            f"{words.plural(len(windows), 'checkpoint')} ({words.percent(stalled / time)} of "
            f"the time, {words.duration(stalled / len(windows))} each)",
            "fewer of them (`--checkpoint-every`), write them beside the training "
            "(`--async-checkpoints`), all ranks together (`rankup.save_sharded_model`)",
        ),
        windows=windows,
        share=1.0,
    )


def _named(begin: float, end: float, usual: float, recording: Recording) -> Pause:
    for event in recording.events:
        near = begin - usual - 1 <= event.time <= end + usual + 1
        if event.kind in _EXPLAINED and near:
            return Pause(begin, end, event.kind)
    for life in billing.lives(recording):
        # Compilation and the first batches are no pause of the training.
        if life.begin <= begin <= life.begin + LIMITS.warm_up:
            return Pause(begin, end, "start")
    return Pause(begin, end, "stall")
