"""A step that was taken, and its numbers, which are read a step late."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..parallel.copies import Cost
from .plan import Step


class Late:
    """A few numbers on their way to the host.

    Reading a tensor of the last step from the GPU's own stream would wait for all that the present
    step has queued behind it; the copy is queued at once instead, and waited for alone.
    """

    def __init__(self, *values: torch.Tensor) -> None:
        self._values = values
        self._ready: torch.cuda.Event | None = None
        if values[0].device.type == "cuda":
            flat = torch.cat([value.double().reshape(-1) for value in values])
            host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
            host.copy_(flat, non_blocking=True)
            self._values = (host,)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def read(self) -> list[float]:
        """The numbers, in order."""
        if self._ready is not None:
            self._ready.synchronize()
        return [number for value in self._values for number in value.reshape(-1).tolist()]


class Clock:
    """Times a step on the device's own clock, since the host runs ahead of a GPU.

    Args:
        before: that of the step before, where nothing else lies between: a step begins when it
            ends, so that what the host does between two steps is counted.
    """

    def __init__(self, device: torch.device, before: Clock | None = None) -> None:
        self._on_gpu = device.type == "cuda"
        now = self._now()
        self._start: float | torch.cuda.Event = now if before is None else before._stop
        self._stop: float | torch.cuda.Event = now

    def stop(self) -> None:
        """Mark the end."""
        self._stop = self._now()

    @property
    def seconds(self) -> float:
        """Time between start and stop; ask only once what came after the stop has been read."""
        if isinstance(self._start, torch.cuda.Event):
            assert isinstance(self._stop, torch.cuda.Event)
            return self._start.elapsed_time(self._stop) / 1000
        assert not isinstance(self._stop, torch.cuda.Event)
        return self._stop - self._start

    def _now(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


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
    clock: Clock
    validation: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    ended: float = field(default_factory=time.time)
    loss_scale: float | None = None

    def fails(self, norm: float) -> bool:
        """Return True where a gradient of this norm is the end of the run."""
        return not math.isfinite(norm) and (self.loss_scale or 1.0) <= 1
