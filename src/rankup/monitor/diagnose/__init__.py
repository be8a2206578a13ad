"""What went wrong in a run: rules, each a pure function of its recording.

A rule looks at one cause and yields diagnoses; `diagnose` runs them all, drops what a more definite
one explains, and tells what each wasted. Thresholds are in `monitor.thresholds`.

Findings overlap: a GPU that starves for data has a low use as well. So the loss, what is left of
each GPU's time after its work (`work`), is handed out in the order of `CODES`, the most
definite cause first; a finding takes at most `share` of the time that it names, and what others
took is gone. What nobody claims (start-up, small waits) stays the run's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .. import words
from ..billing import Bill, bill
from ..recording import Recording
from ..thresholds import LIMITS
from ..work import Work, work
from . import gpu, host, ranks, record, training
from .codes import CODES, Diagnosis

__all__ = ["RULES", "Diagnosis", "diagnose"]

Rule = Callable[[Recording], Iterable[Diagnosis]]

RULES: tuple[Rule, ...] = (
    gpu.unused,
    gpu.idle,
    gpu.low,
    gpu.waiting,
    training.starved,
    training.slow_files,
    ranks.imbalance,
    ranks.spinning,
    ranks.stalled,
    host.gpu_memory,
    host.swap,
    host.host_memory,
    host.cores,
    gpu.power_limited,
    gpu.heat_limited,
    training.checkpoint_stalls,
    record.limit_long,
    record.limit_hit,
    record.short,
    training.not_a_number,
    training.flat_or_rising,
    record.gaps,
    record.gpu_lost,
    record.failed,
)


def diagnose(recording: Recording) -> tuple[Diagnosis, ...]:
    """All that is to be said of a run, what wasted the most first; nothing for a healthy one."""
    found = [one for rule in RULES for one in rule(recording)]
    return _settled(recording, _unexplained(found), work(recording), bill(recording))


def _unexplained(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The diagnoses without GPUs that another one explains; those left without any go."""
    kept = []
    for one in found:
        over = [other for other in found if one.code in CODES[other.code].explains]
        everywhere = any(not other.gpus for other in over)
        if over and (everywhere or not one.gpus):
            continue
        explained = {column for other in over for column in other.gpus}
        left = tuple(column for column in one.gpus if column not in explained)
        if left or not one.gpus:
            # A message names its GPUs, so what is explained in part stays as it is.
            kept.append(one)
    return kept


def _settled(
    recording: Recording, found: Sequence[Diagnosis], done: Work, bill: Bill
) -> tuple[Diagnosis, ...]:
    """The diagnoses with their costs, also said in their messages; the dearest first."""
    left = np.nan_to_num(1 - done.share) * done.seconds
    price = bill.units / done.known if done.known else 0.0
    rank = {code: place for place, code in enumerate(CODES)}
    costs: dict[int, float] = {}
    for at in sorted(range(len(found)), key=lambda at: rank[found[at].code]):
        if found[at].share > 0 and price:
            costs[at] = _take(left, recording, found[at], done) * price
    settled = [
        _priced(one, costs[at], bill) if at in costs else replace(one, unit=bill.unit)
        for at, one in enumerate(found)
    ]
    levels = {"error": 0, "warning": 1, "ok": 2}
    return tuple(sorted(settled, key=lambda one: (-(one.cost or 0), levels[one.level], one.code)))


def _window_share(
    recording: Recording, windows: Sequence[tuple[float, float]]
) -> NDArray[np.float64]:
    """(bins,) share of each bin, 0 to 1, that windows cover together; 1 for no windows."""
    if not windows:
        return np.ones(recording.bins)
    begins = recording.begin + np.arange(recording.bins) * recording.width
    covered = np.zeros(recording.bins)
    for begin, end in windows:
        covered += np.clip(
            np.minimum(begins + recording.width, end) - np.maximum(begins, begin), 0, None
        )
    return np.clip(covered / recording.width, 0, 1)


def _take(left: NDArray[np.floating], recording: Recording, one: Diagnosis, done: Work) -> float:
    """Seconds of `left` that a finding explains; they are taken out of it."""
    if one.gpus and done.per_gpu:
        chosen = np.isin(done.things, one.gpus)
    elif one.nodes:
        chosen = np.isin(done.node, one.nodes)
    else:
        chosen = np.ones(len(done.things), bool)
    # A sample tells of a moment and stands for the time before it, so what happened in a window may
    # be found a bin beside it; no more than the window's own time is taken.
    width = recording.width
    near = tuple((begin - width, end + width) for begin, end in one.windows)
    part = left[:, chosen] * _window_share(recording, near)[:, None]
    total = float(part.sum(dtype=np.float64))
    within = _window_share(recording, one.windows)[:, None]
    most = one.share * float((done.seconds[:, chosen] * within).sum(dtype=np.float64))
    if not total or not most:
        return 0.0
    factor = min(1.0, most / total)
    left[:, chosen] -= part * factor
    return total * factor


def _priced(one: Diagnosis, cost: float, bill: Bill) -> Diagnosis:
    if cost < LIMITS.named_waste * bill.units:
        return replace(one, cost=cost, unit=bill.unit)
    said = f"{one.message}. Wasted: {words.amount(cost)} of {words.amount(bill.units)} {bill.unit}"
    return replace(one, message=said, cost=cost, unit=bill.unit)
