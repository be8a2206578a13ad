"""DDP's buckets by PowerSGD (Vogels et al., 2019), as torch computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)

from .codecs import Whole
from .coded import future
from .residuals import Residuals
from .sums import Spent, bytes_sent

# DDP lays out its buckets anew after the first backward; torch asks for two that are sent whole.
_WHOLE = 2


class PowerExchange:
    """See `CompressedExchange`: each matrix as a product of two with `rank` columns.

    Torch's hook goes on to its second and third sum in callbacks, which gloo runs in threads: with
    several buckets under way, ranks would meet in different sums. So each bucket is finished before
    the next is begun, and all wait for the last: nothing goes on beside the backward. Waiting and
    computing are not told apart, both are in `spent.waited`.

    Its matrices are drawn anew after `load`; the first two exchanges are always whole.
    """

    def __init__(self, model: nn.Module, rank: int) -> None:
        self.spent = Spent()
        self._residuals = Residuals(model)
        self._ranks = dist.get_world_size()
        # Without an epsilon, a gradient of zeros would become NaN.
        self._power = PowerSGDState(
            None, rank, start_powerSGD_iter=_WHOLE, orthogonalization_epsilon=1e-8
        )
        self._under_way: list[tuple[dist.GradBucket, torch.futures.Future[Any]]] = []

    @property
    def extra_bytes(self) -> int:
        matrices = [*self._power.p_memory_dict.values(), *self._power.q_memory_dict.values()]
        return self._residuals.bytes + sum(matrix.nbytes for matrix in matrices)

    def share(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """See `CompressedExchange`."""
        if bucket.index() == 0:
            self._under_way.clear()  # of a backward that failed
        done = future(bucket.buffer().device)
        self._under_way.append((bucket, done))
        if bucket.is_last():
            for one, its in self._under_way:
                with self.spent.at("waited"):
                    self._approximate(one)
                its.set_result([one.buffer()])
            self._under_way.clear()
        return done

    def _approximate(self, bucket: dist.GradBucket) -> None:
        power, index, buffer = self._power, bucket.index(), bucket.buffer()
        whole, counted = power.iter < _WHOLE, power.total_numel_after_compression
        buffer.mul_(self._ranks)  # torch takes the mean
        feedback = self._residuals.of(bucket)
        if not whole and feedback.residual is not None:
            power.error_dict[index] = feedback.residual.to(buffer.dtype)
        powerSGD_hook(power, bucket).wait()
        numbers = buffer.numel() if whole else power.total_numel_after_compression - counted
        self.spent.bytes_sent += bytes_sent(Whole(), numbers, self._ranks)
        if whole:
            return
        feedback.keep(power.error_dict.pop(index).float())
        if not torch.isfinite(buffer).all():  # on all ranks alike: draw what is left of it anew
            del power.p_memory_dict[index], power.q_memory_dict[index]

    def state(self) -> dict[str, torch.Tensor]:
        return self._residuals.state()

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._residuals.load(state)
        self._power.iter = 0
        self._power.p_memory_dict.clear()
        self._power.q_memory_dict.clear()
