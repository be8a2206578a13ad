"""Numbers read a step after they were computed, so that the host never waits for the device."""

from __future__ import annotations

import time

import torch


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
