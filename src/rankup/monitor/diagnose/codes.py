"""The findings of the report: a row each, and a finding about a run.

The codes are stable; `docs/findings/CODE.md` explains them. The order is that in which findings
claim wasted time (`diagnose`): the most definite cause first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...base.findings import Finding

UNUSED = "RK701"
IDLE = "RK702"
LOW = "RK703"
STARVED = "RK704"
IMBALANCE = "RK705"
SPINNING = "RK706"
MEMORY_FAR = "RK707"
MEMORY_NEAR = "RK708"
OVERSUBSCRIBED = "RK709"
FEW_CORES = "RK710"
POWER = "RK711"
HEAT = "RK712"
SWAP = "RK713"
HOST_MEMORY = "RK714"
CHECKPOINTS = "RK715"
LIMIT_LONG = "RK716"
LIMIT_HIT = "RK717"
SHORT = "RK718"
FILE_SYSTEM = "RK719"
LOSS_NAN = "RK720"
LOSS_FLAT = "RK721"
GAPS = "RK722"
GPU_LOST = "RK723"
FAILED = "RK724"
WAITING = "RK725"
STALLED = "RK726"


@dataclass(frozen=True)
class Code:
    """A row of the table: the words for a finding, wherever it is shown.

    Attributes:
        headline: of a run whose worst finding it is; empty where the finding's own words say more.
        section: of the page, where it is to be seen.
        explains: findings that are not said again on the same GPUs.
        remark: about a run that is sound: it comes last, whatever it costs.
        failure: as an error it comes first.
    """

    code: str
    title: str
    headline: str = ""
    section: str = "gpu"
    explains: tuple[str, ...] = ()
    remark: bool = False
    failure: bool = False


_TABLE = (
    Code(UNUSED, "unused GPU", explains=(IMBALANCE,)),
    Code(GPU_LOST, "GPU lost or unreadable", "A GPU could not be read", explains=(IMBALANCE,)),
    Code(
        SPINNING,
        "spinning in a collective",
        "The run hung in a collective",
        explains=(IDLE, WAITING, STALLED, IMBALANCE),
        failure=True,
    ),
    Code(
        STALLED,
        "no step for a long time",
        "The run stood still for a while",
        section="progress",
        explains=(IDLE,),
    ),
    Code(
        CHECKPOINTS,
        "training waits for checkpoints",
        "The training waited for its checkpoints",
        section="progress",
        explains=(LOW,),
    ),
    Code(
        FILE_SYSTEM,
        "slow file system",
        "The run waited for its files",
        section="io",
        explains=(LOW, STARVED),
    ),
    Code(
        STARVED, "starved by data", "The run waited for data", section="progress", explains=(LOW,)
    ),
    Code(IDLE, "idle GPU", "GPUs idled", explains=(IMBALANCE, MEMORY_FAR)),
    Code(
        IMBALANCE,
        "imbalance between ranks or nodes",
        "The work was divided unevenly, and all waited for the slowest",
    ),
    Code(
        FEW_CORES,
        "ranks share few cores",
        "The ranks could use only a few of the cores",
        section="cpu",
        explains=(OVERSUBSCRIBED, LOW, STARVED),
    ),
    Code(
        OVERSUBSCRIBED, "CPU oversubscribed", "More processes than cores took turns", section="cpu"
    ),
    Code(WAITING, "busy without computing", "The GPUs were busy without computing"),
    Code(LOW, "low utilisation", "The GPUs worked little"),
    Code(SWAP, "swap is used", "The node's memory was too small: it swapped", section="memory"),
    Code(POWER, "slowed down by the power limit", "The power limit slowed GPUs down"),
    Code(HEAT, "slowed down by heat or hardware", "Heat slowed GPUs down"),
    Code(LIMIT_HIT, "time limit hit", "The run was ended by its time limit", section="progress"),
    Code(
        LOSS_NAN,
        "loss is not a number",
        "The loss is not a number",
        section="progress",
        failure=True,
    ),
    Code(LOSS_FLAT, "loss does not fall", "The loss does not fall", section="progress"),
    Code(FAILED, "the run failed", section="progress", failure=True),
    Code(
        MEMORY_FAR,
        "GPU memory far from full",
        "Sound, but most of the GPU memory lay bare",
        remark=True,
    ),
    Code(
        MEMORY_NEAR,
        "GPU memory nearly full",
        "Sound, but the GPU memory was nearly full",
        remark=True,
    ),
    Code(
        HOST_MEMORY,
        "memory of the node nearly full",
        "Sound, but the node's memory was nearly full",
        section="memory",
        remark=True,
    ),
    Code(
        LIMIT_LONG,
        "time limit far too long",
        "Sound, but it asked for far more time than it took",
        section="progress",
        remark=True,
    ),
    Code(
        GAPS,
        "the record has gaps",
        "What was recorded is sound, but a part is missing",
        section="progress",
        remark=True,
    ),
    Code(SHORT, "short run", section="progress", remark=True),
)
CODES = {one.code: one for one in _TABLE}


Window = tuple[float, float]


@dataclass(frozen=True)
class Diagnosis(Finding):
    """A finding about a run, with its cost and its place in the plots.

    Attributes:
        cost: in `unit`; what the finding wasted and no other finding of the run has counted
            already; None where it has no cost that can be told.
        unit: the site's, see `billing.Bill`.
        windows: (begin, end) in unix seconds; none: the whole run.
        gpus: columns of `recording.gpu`; nodes: places in `recording.heads`; none of both: all.
        share: the most of the time of those GPUs (or nodes) in those windows, 0 to 1, that the
            finding explains; 0 for one that wastes nothing by itself.
    """

    cost: float | None = None
    unit: str = ""
    windows: tuple[Window, ...] = ()
    gpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    share: float = 0.0


def merged(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Windows in order, those that overlap or touch as one."""
    found: list[Window] = []
    for begin, end in sorted(windows):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)
