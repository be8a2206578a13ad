"""What went wrong in a run: rules, each a pure function of its recording.

A rule looks at one cause and yields diagnoses; `diagnose` runs them all, drops what a more definite
one explains, and tells what each wasted. Thresholds are in `monitor.thresholds`.

Findings overlap: a GPU that starves for data has a low use as well. So the loss, what is left of
each GPU's time after its work (`billing.work`), is handed out in the order of `CODES`, the most
definite cause first; a finding takes at most `share` of the time that it names, and what others
took is gone. What nobody claims (start-up, small waits) stays the run's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .. import words
from ..billing import Bill, Work, bill, work
from ..recording import Recording
from ..thresholds import LIMITS
from . import common, gpu, host, ranks, record, training
from .common import Diagnosis

__all__ = ["CODES", "RULES", "Diagnosis", "diagnose"]

Rule = Callable[[Recording], Iterable[Diagnosis]]


@dataclass(frozen=True)
class Code:
    """A row of the table: the words for a finding, wherever it is shown.

    Attributes:
        rule: finds it.
        headline: of a run whose worst finding it is; empty where the finding's own words say more.
        section: of the page, where it is to be seen.
        explains: findings that are not said again on the same GPUs.
        remark: about a run that is sound: it comes last, whatever it costs.
        failure: as an error it comes first.
    """

    code: str
    rule: Rule
    title: str
    headline: str = ""
    section: str = "gpu"
    explains: tuple[str, ...] = ()
    remark: bool = False
    failure: bool = False


# In the order in which findings claim wasted time: the most definite cause first.
_TABLE = (
    Code(common.UNUSED, gpu.unused, "unused GPU", explains=(common.IMBALANCE,)),
    Code(
        common.GPU_LOST,
        record.gpu_lost,
        "GPU lost or unreadable",
        "A GPU could not be read",
        explains=(common.IMBALANCE,),
    ),
    Code(
        common.SPINNING,
        ranks.spinning,
        "spinning in a collective",
        "The run hung in a collective",
        explains=(common.IDLE, common.WAITING, common.STALLED, common.IMBALANCE),
        failure=True,
    ),
    Code(
        common.STALLED,
        ranks.stalled,
        "no step for a long time",
        "The run stood still for a while",
        section="progress",
        explains=(common.IDLE,),
    ),
    Code(
        common.CHECKPOINTS,
        training.checkpoint_stalls,
        "training waits for checkpoints",
        "The training waited for its checkpoints",
        section="progress",
        explains=(common.LOW,),
    ),
    Code(
        common.FILE_SYSTEM,
        training.slow_files,
        "slow file system",
        "The run waited for its files",
        section="io",
        explains=(common.LOW, common.STARVED),
    ),
    Code(
        common.STARVED,
        training.starved,
        "starved by data",
        "The run waited for data",
        section="progress",
        explains=(common.LOW,),
    ),
    Code(
        common.IDLE,
        gpu.idle,
        "idle GPU",
        "GPUs idled",
        explains=(common.IMBALANCE, common.MEMORY_FAR),
    ),
    Code(
        common.IMBALANCE,
        ranks.imbalance,
        "imbalance between ranks or nodes",
        "The work was divided unevenly, and all waited for the slowest",
    ),
    Code(
        common.FEW_CORES,
        host.cores,
        "ranks share few cores",
        "The ranks could use only a few of the cores",
        section="cpu",
        explains=(common.OVERSUBSCRIBED, common.LOW, common.STARVED),
    ),
    Code(
        common.OVERSUBSCRIBED,
        host.cores,
        "CPU oversubscribed",
        "More processes than cores took turns",
        section="cpu",
    ),
    Code(
        common.WAITING,
        gpu.waiting,
        "busy without computing",
        "The GPUs were busy without computing",
    ),
    Code(common.LOW, gpu.low, "low utilisation", "The GPUs worked little"),
    Code(
        common.SWAP,
        host.swap,
        "swap is used",
        "The node's memory was too small: it swapped",
        section="memory",
    ),
    Code(
        common.POWER,
        gpu.power_limited,
        "slowed down by the power limit",
        "The power limit slowed GPUs down",
    ),
    Code(common.HEAT, gpu.heat_limited, "slowed down by heat or hardware", "Heat slowed GPUs down"),
    Code(
        common.LIMIT_HIT,
        record.limit_hit,
        "time limit hit",
        "The run was ended by its time limit",
        section="progress",
    ),
    Code(
        common.LOSS_NAN,
        training.not_a_number,
        "loss is not a number",
        "The loss is not a number",
        section="progress",
        failure=True,
    ),
    Code(
        common.LOSS_FLAT,
        training.flat_or_rising,
        "loss does not fall",
        "The loss does not fall",
        section="progress",
    ),
    Code(common.FAILED, record.failed, "the run failed", section="progress", failure=True),
    Code(
        common.MEMORY_FAR,
        host.gpu_memory,
        "GPU memory far from full",
        "Sound, but most of the GPU memory lay bare",
        remark=True,
    ),
    Code(
        common.MEMORY_NEAR,
        host.gpu_memory,
        "GPU memory nearly full",
        "Sound, but the GPU memory was nearly full",
        remark=True,
    ),
    Code(
        common.HOST_MEMORY,
        host.host_memory,
        "memory of the node nearly full",
        "Sound, but the node's memory was nearly full",
        section="memory",
        remark=True,
    ),
    Code(
        common.LIMIT_LONG,
        record.limit_long,
        "time limit far too long",
        "Sound, but it asked for far more time than it took",
        section="progress",
        remark=True,
    ),
    Code(
        common.GAPS,
        record.gaps,
        "the record has gaps",
        "What was recorded is sound, but a part is missing",
        section="progress",
        remark=True,
    ),
    Code(common.SHORT, record.short, "short run", section="progress", remark=True),
)
CODES = {one.code: one for one in _TABLE}
RULES = (*dict.fromkeys(one.rule for one in _TABLE), record.unread)


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
