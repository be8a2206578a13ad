"""Checkpoints that the training waits for."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.findings import Finding
from .. import billing, words
from ..recording import Recording
from ..thresholds import LIMITS
from . import codes
from .diagnosis import Diagnosis, merged
from .pauses import pauses


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
