"""Work that a run did and did not keep."""

from __future__ import annotations

from .. import billing
from ..recording import Recording


def lost_work(recording: Recording) -> float | None:
    """Seconds from the last checkpoint to the end of the last life.

    None where no checkpoint is on record: a script may write its own without a word.
    """
    end = billing.end_of(billing.lives(recording)[-1], recording)
    saved = [event.time for event in recording.events if event.kind == "checkpoint"]
    return max(0.0, end - max(saved)) if saved else None
