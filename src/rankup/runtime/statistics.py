"""Running statistics of normalisation layers, kept equal on all ranks.

A layer's forward moves its running mean and variance by what its own micro-batch holds. Which rank
saw which micro-batch must not matter, so every micro-batch of a step starts from the same values,
and the step ends with the mean over the results of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


class RunningStatistics:
    """The floating-point running statistics of a model, seen as one flat float64 vector.

    Attributes:
        size: how many numbers it holds; 0 for a model without such layers, where all is a no-op.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [
            module
            for module in model.modules()
            if isinstance(module, _NormBase) and module.track_running_stats
        ]
        self.size = sum(buffer.numel() for buffer in self._values())
        self._start: list[torch.Tensor] = []
        self._sum: torch.Tensor | None = None

    def flat(self) -> torch.Tensor:
        """Return the present values, float64 of shape `(size,)`."""
        if not self.size:
            return torch.zeros(0, dtype=torch.float64)
        return torch.cat([buffer.reshape(-1) for buffer in self._values()]).double()

    def assign(self, flat: torch.Tensor) -> None:
        """Set the layers from a vector of shape `(size,)`."""
        buffers = list(self._values())
        if len(kinds := {buffer.dtype for buffer in buffers}) == 1:
            flat = flat.to(kinds.pop())  # at once, where it can be
        parts = flat.split([buffer.numel() for buffer in buffers])
        pairs = zip(parts, buffers, strict=True)
        _copy([part.view_as(buffer) for part, buffer in pairs], buffers)

    def start_mean(self, works: bool) -> Callable[[], None]:
        """Start the mean over the ranks that had samples; what this returns sets the layers to it.

        Args:
            works: this rank had samples.
        """
        mine = self.flat()
        count = mine.new_full((1,), float(works))
        total = torch.cat([mine if works else torch.zeros_like(mine), count])
        work = dist.all_reduce(total, async_op=True)

        def finish() -> None:
            work.wait()
            mean = total[:-1] / total[-1].clamp(min=1.0)
            self.assign(torch.where(total[-1] > 0, mean, mine))

        return finish

    def begin_step(self) -> None:
        """Remember where every micro-batch of this step starts."""
        self._sum = None
        if self.size:
            now = list(self._all())
            self._start = self._start or [torch.empty_like(buffer) for buffer in now]
            _copy(now, self._start)

    def collect(self) -> None:
        """Take what a forward has left in the layers into the sum."""
        if self.size:
            flat = self.flat()
            self._sum = flat if self._sum is None else self._sum.add_(flat)

    def rewind(self) -> None:
        """Go back to where the step started."""
        if self.size:
            _copy(self._start, list(self._all()))

    def total(self, device: torch.device) -> torch.Tensor:
        """Sum over this rank's micro-batches, float64 of shape `(size,)`; zeros for an idle one."""
        if self._sum is None:
            return torch.zeros(self.size, dtype=torch.float64, device=device)
        return self._sum

    def end_step(self, total: torch.Tensor, micro_batches: int) -> None:
        """Set the layers to the mean over all `micro_batches`, whose sum over ranks is `total`."""
        if self.size:
            self.assign(total / micro_batches)
            numbers = [layer.num_batches_tracked for layer in self._layers if layer.training]
            counted = [number.data for number in numbers if number is not None]
            if counted:
                torch._foreach_add_(counted, 1)

    def _all(self) -> Iterator[torch.Tensor]:
        """All buffers, looked up anew since `.to()` and loading may replace them.

        Writing to `.data` leaves autograd's version counter alone: a backward that is still to come
        has saved these tensors, though in training mode it does not read them.
        """
        for layer in self._layers:
            for buffer in layer._buffers.values():
                if buffer is not None:
                    yield buffer.data

    def _values(self) -> Iterator[torch.Tensor]:
        return (buffer for buffer in self._all() if buffer.is_floating_point())


def _copy(values: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
    """Copy tensors at once, which torch does for those of one type."""
    by_kind: dict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for target, value in zip(into, values, strict=True):
        by_kind.setdefault(target.dtype, []).append((target, value))
    for pairs in by_kind.values():
        torch._foreach_copy_([target for target, _ in pairs], [value for _, value in pairs])
