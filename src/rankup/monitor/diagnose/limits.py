"""The run beside its time limit and its queue."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.findings import Finding
from .. import billing, words
from ..recording import Recording
from ..thresholds import LIMITS
from . import codes
from .diagnosis import Diagnosis
from .record import lost_work

TOO_SHORT = "too short to judge"


def limit_long(recording: Recording) -> Iterator[Diagnosis]:
    """RK716: a run that came to its end in a small part of the time that it asked for."""
    life = billing.lives(recording)[-1]
    took = billing.length(life, recording)
    if life.state != "COMPLETED" or not life.limit or took < LIMITS.short:
        return
    if took >= LIMITS.limit_share * life.limit or life.limit - took < LIMITS.limit_least:
        return
    enough = max(600.0, 1.5 * took)
    yield Diagnosis(
        Finding(
            codes.LIMIT_LONG,
            "warning",
            "time limit",
            f"the run took {words.duration(took)} of the {words.duration(life.limit)} that it "
            f"asked for ({words.percent(took / life.limit)}): short jobs start earlier, "
            "in gaps of others",
            f"`--time {_option(enough)}`",
        )
    )


def limit_hit(recording: Recording) -> Iterator[Diagnosis]:
    """RK717: the run's last life was ended by its time limit."""
    life = billing.lives(recording)[-1]
    if life.state != "TIMEOUT":
        return
    lost = lost_work(recording)
    limit = f" of {words.duration(life.limit)}" if life.limit else ""
    after = ""
    if lost is not None:
        after = f"; the last checkpoint is {words.duration(lost)} older, that work is lost"
    yield Diagnosis(
        Finding(
            codes.LIMIT_HIT,
            "warning",
            "time limit",
            f"the run was ended by its time limit{limit}{after}",
            f"`{words.resume(recording.facts)}` goes on from the last checkpoint; a script of "
            "your own saves in time with `rankup.Deadline()` (docs/time-limit.md)",
        )
    )


def short(recording: Recording) -> Iterator[Diagnosis]:
    """RK718: too short for a judgement, or hardly worth its time in the queue. No reproach."""
    life = billing.lives(recording)[-1]
    took = sum(billing.bill(recording).seconds)
    queued = recording.facts.queued or 0.0
    if recording.running or life.state == "RUNNING" or not took:
        return
    brief = took < LIMITS.short
    waited = queued >= max(LIMITS.queue_least, LIMITS.queue_times * took)
    if not brief and not waited:
        return
    after = f" after {words.duration(queued)} in the queue" if queued > took else ""
    judged = f"{TOO_SHORT}: " if brief else ""
    seen = f"{judged}the run took {words.duration(took)}{after}"
    yield Diagnosis(
        Finding(
            codes.SHORT,
            "ok",
            "run",
            seen,
            "try short runs on a partition for development, or several in one job"
            if waited
            else "",
        )
    )


def _option(seconds: float) -> str:
    """As `--time` takes it: 2h, 1h30m, 20m; whole five minutes."""
    minutes = -(-int(seconds) // 300) * 5
    hours, rest = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{rest}m" if rest or not hours else "")
