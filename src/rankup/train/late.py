"""Numbers read a step after they were computed, so that the host never waits for the device."""

from __future__ import annotations

import torch


class Late:
    """A few numbers on their way to the host.

    Reading a tensor of the last step from the GPU's own stream would wait for all that the present
    step has queued behind it; the copy is queued at once instead, and waited for alone.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._ready: torch.cuda.Event | None = None
        self._host = values
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def read(self) -> list[float]:
        """The numbers, in order."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._host.tolist()
