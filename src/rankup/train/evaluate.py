"""Exact evaluation: every sample once, at any number of samples and ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from ..runtime.world import World
from .plan import micro_batches
from .stop import Stop
from .task import Batch, Split


class Stopped(Exception):  # noqa: N818 - no error: somebody wished it
    """An evaluation was left because a rank was asked to stop; holds the sum of the wishes."""

    def __init__(self, wishes: float) -> None:
        super().__init__(wishes)
        self.wishes = wishes


Loss = Callable[[nn.Module, Batch], torch.Tensor]


@torch.no_grad()
def evaluate(
    loss: Loss,
    split: Split,
    model: nn.Module,
    world: World,
    micro_batch: int,
    stop: Stop | None = None,
) -> float | None:
    """Mean `loss` per valid target of `split`; None for an empty one.

    The samples are cut by position into micro-batches, rank r takes every world_size-th of them
    through the unwrapped `model`, and sums and counts are reduced together once at the end. No
    collective runs inside the loop, so ranks may have unequal numbers of micro-batches.

    Raises:
        Stopped: on all ranks, when any was asked to stop before it was through.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total = torch.zeros(3, dtype=torch.float64, device=world.device)
    for positions in micro_batches(len(split), micro_batch)[world.rank :: world.world_size]:
        if stop is not None and stop.wish:
            total[2] = stop.wish
            break
        samples = torch.arange(positions.start, positions.stop)
        batch = to_device(split.batch(samples), world.device)
        total[0] += loss(model, batch).double()
        total[1] += split.count(samples)
    for module, training in modes:  # a frozen part stays in its mode
        module.training = training
    if world.world_size > 1:
        dist.all_reduce(total)
    loss_sum, count, stopped = total.tolist()
    if stopped:
        raise Stopped(stopped)
    return loss_sum / count if count else None


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; to a GPU through pinned memory, without waiting for the copy."""
    if device.type == "cpu":
        return batch
    return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in batch)
