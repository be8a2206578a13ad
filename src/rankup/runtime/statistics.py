"""Running statistics of normalisation layers, kept equal on all ranks.

A layer's forward moves its running mean and variance by what its own micro-batch holds. Which rank
saw which micro-batch must not matter, so every micro-batch of a step starts from the same values,
and the step ends with the mean over the results of all of them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


class RunningStatistics:
    """The floating-point running statistics of a model, seen as one flat float64 vector.

    Attributes:
        size: how many numbers it holds; 0 for a model without such layers, where all is a no-op.
    """

    def __init__(self, model: nn.Module) -> None:
        self._values: list[torch.Tensor] = []
        self._counters: list[torch.Tensor] = []  # num_batches_tracked
        for module in model.modules():
            if isinstance(module, _NormBase) and module.track_running_stats:
                for buffer in module._buffers.values():
                    if buffer is not None:
                        kind = self._values if buffer.is_floating_point() else self._counters
                        kind.append(buffer)
        self.size = sum(buffer.numel() for buffer in self._values)
        self._start: list[torch.Tensor] = []
        self._sum: torch.Tensor | None = None

    @torch.no_grad()
    def flat(self) -> torch.Tensor:
        """The present values, float64 of shape `(size,)`."""
        if not self.size:
            return torch.zeros(0, dtype=torch.float64)
        return torch.cat([buffer.reshape(-1).double() for buffer in self._values])

    @torch.no_grad()
    def assign(self, flat: torch.Tensor) -> None:
        """Set the layers from a vector of shape `(size,)`."""
        offset = 0
        for buffer in self._values:
            buffer.copy_(flat[offset : offset + buffer.numel()].view_as(buffer))
            offset += buffer.numel()

    @torch.no_grad()
    def begin_step(self) -> None:
        """Remember where every micro-batch of this step starts."""
        self._sum = None
        if self.size:
            self._start = [buffer.clone() for buffer in (*self._values, *self._counters)]

    @torch.no_grad()
    def collect(self, counts: bool = True) -> None:
        """Take what a forward has left in the layers into the sum, and go back to the start.

        Args:
            counts: False for a forward whose samples belong to no one (a rank without work).
        """
        if not self.size:
            return
        if counts:
            flat = self.flat()
            self._sum = flat if self._sum is None else self._sum.add_(flat)
        torch._foreach_copy_([*self._values, *self._counters], self._start)

    def total(self, device: torch.device) -> torch.Tensor:
        """Sum over this rank's micro-batches, float64 of shape `(size,)`; zeros for an idle one."""
        if self._sum is None:
            return torch.zeros(self.size, dtype=torch.float64, device=device)
        return self._sum

    @torch.no_grad()
    def end_step(self, total: torch.Tensor, micro_batches: int) -> None:
        """Set the layers to the mean over all `micro_batches`, whose sum over ranks is `total`."""
        if self.size:
            self.assign(total / micro_batches)
            for counter in self._counters:
                counter.add_(1)
