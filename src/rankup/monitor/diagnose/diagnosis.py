"""A diagnosis: a finding about a run, where and when it holds, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...base.findings import Finding, Level

Window = tuple[float, float]


@dataclass(frozen=True)
class Diagnosis:
    """A finding with its cost and its place in the plots.

    Attributes:
        finding: code RK7xx, level, place, message, what to do.
        cost: in `unit`; what the finding wasted and no other finding of the run has counted
            already; None where it has no cost that can be told.
        unit: the site's, see `billing.Bill`.
        windows: (begin, end) in unix seconds; none: the whole run.
        gpus: columns of `recording.gpu`; nodes: places in `recording.heads`; none of both: all.
        share: the most of the time of those GPUs (or nodes) in those windows, 0 to 1, that the
            finding explains; 0 for one that wastes nothing by itself.
    """

    finding: Finding
    cost: float | None = None
    unit: str = ""
    windows: tuple[Window, ...] = ()
    gpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    share: float = 0.0

    @property
    def code(self) -> str:
        return self.finding.code

    @property
    def level(self) -> Level:
        return self.finding.level

    @property
    def place(self) -> str:
        return self.finding.place

    @property
    def message(self) -> str:
        return self.finding.message

    @property
    def todo(self) -> str:
        return self.finding.todo


def merged(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Windows in order, those that overlap or touch as one."""
    found: list[Window] = []
    for begin, end in sorted(windows):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)
