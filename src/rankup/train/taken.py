"""A step that was taken, and its numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ..parallel.lowcomm.flat import Cost
from .late import Late
from .plan import Step


class Watch(Protocol):
    """What has measured a step."""

    def stop(self) -> None: ...

    @property
    def seconds(self) -> float: ...


@dataclass
class Taken:
    """A step that was taken, and its numbers, which are read one step late.

    Attributes:
        count: valid targets of the global batch.
        late: summed loss, ranks whose loss is not finite, wishes to stop, seconds that all
            ranks waited for data, gradient norm.
        losses: summed loss of each micro-batch this rank computed, those without weight last.
        dealt: the micro-batches this rank computed.
        clock: how long the step took.
        validation: what the one that followed found, by the names that the line has.
        cost: what the exchange took since the line before; None where nobody measures it.
        staleness: how many gradients were how many versions late, where they may be.
        ended: when it was taken, in seconds since 1970.
        loss_scale: its loss was multiplied by this, under float16. Where that is more than 1, a
            gradient that is not finite costs the update alone.
    """

    step: Step
    lr: float
    count: int
    late: Late
    losses: list[torch.Tensor]
    dealt: range
    clock: Watch
    validation: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    staleness: Mapping[int, int] | None = None
    ended: float = field(default_factory=time.time)
    loss_scale: float | None = None

    def fails(self, norm: float) -> bool:
        """Return True where a gradient of this norm is the end of the run."""
        return not math.isfinite(norm) and (self.loss_scale or 1.0) <= 1
