"""The codes of the report's findings, which are stable, and a finding about a run.

`docs/findings/CODE.md` explains each.
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
