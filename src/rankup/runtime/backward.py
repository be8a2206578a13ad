"""`backward(loss)`: behind it the value of a loss is that of the whole batch."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .agreement import agreement
from .context import CONTEXT
from .hang.leaving import TRAINING
from .log import print_once
from .world import several


def backward(
    loss: torch.Tensor,
    scaler: torch.amp.GradScaler | None = None,
    scale: float = 1.0,
    summed: bool = False,
    **options: Any,
) -> None:
    """Do what `loss.backward()` does, and make the value of `loss` that of the whole batch.

        loss = criterion(model(x), y)
        rankup.backward(loss)
        total += loss.item()  # of all ranks' samples

    Call it on every rank. Gradients are what they are with `loss.backward()`; the ranks' losses go
    through one small all-reduce beside it, weighed by what `shard` or `deal` gave each rank of the
    batch, or by the units given to `count`. The value is put into the tensor itself, on a GPU
    without waiting for it, so that it is right wherever that tensor is read from here on. With the
    all-reduce the ranks compare how many steps their optimizers have taken, and the learning rates.

    The value stays this rank's, and a line says so once, under `retain_graph` and `create_graph`,
    whose graph may still need it, and of a loss that is a view of another tensor, has a dimension,
    or was made by no operation.

    Args:
        loss: a mean over this rank's part of the batch.
        scaler: whose `scale(loss)` is differentiated, for training in float16.
        scale: the gradient's factor, `1 / steps` where those of several batches are accumulated.
            The value of `loss` is without it.
        summed: the loss is a sum over samples: the ranks' are added up, as are their gradients.
        options: for `torch.Tensor.backward`.

    Raises:
        ValueError: `count` was called for a sum, which needs none.
        RuntimeError: since the backward before this one the ranks differ in their steps or learning
            rates, or a rank has left the training.
    """
    if not several() or not loss.requires_grad:  # torch says what is wrong with the latter
        _differentiate(loss, scaler, scale, options)
        return
    CONTEXT.trains()
    if summed and CONTEXT.units is not None:
        raise ValueError(
            "backward(summed=True) adds the ranks' losses up, and count() says what a mean was "
            "taken over: leave one of them out"
        )
    mine, size = CONTEXT.samples or (1, CONTEXT.place().size)
    if summed and mine not in (0, size):
        scale *= size / mine  # the gradient is weighed as that of a mean
    ranks = agreement()
    TRAINING.begin_backward()
    try:
        sums = _Sums(loss, summed, ranks.begin())
        CONTEXT.sums = sums
        try:
            _differentiate(loss, scaler, scale, options)
        finally:
            CONTEXT.sums = None
        ranks.end(sums.finish(options))
    except RuntimeError as error:
        if text := _missing():
            raise RuntimeError(f"backward: {text}") from error
        raise
    finally:
        TRAINING.waiting = False


def _missing() -> str:
    """Say which ranks this one waits for in vain; "" where none is known of."""
    with contextlib.suppress(RuntimeError, OSError):  # the store has ended with its host
        store = dist.distributed_c10d._get_default_store()
        return TRAINING.missing(store, dist.get_rank(), dist.get_world_size())
    return ""


def _differentiate(
    loss: torch.Tensor, scaler: torch.amp.GradScaler | None, scale: float, options: dict[str, Any]
) -> None:
    scaled = loss if scale == 1.0 else loss * scale
    if scaler is not None:
        scaled = scaler.scale(scaled)
    scaled.backward(**options)


class _Sums:
    """The all-reduce of one backward, begun before it: of the loss, of its weights, of what the
    ranks compare."""

    def __init__(self, loss: torch.Tensor, summed: bool, marks: tuple[float, float]) -> None:
        self._loss, self._summed = loss, summed
        # As in the gradient's weight: what a rank computes on a stand-in sample counts for nothing.
        idle = CONTEXT.samples is not None and CONTEXT.samples[0] == 0
        samples = float(CONTEXT.samples[0]) if CONTEXT.samples is not None else 1.0
        self._counts = CONTEXT.units is not None
        units = CONTEXT.units if CONTEXT.units is not None else samples
        weight = 0.0 if idle else 1.0 if summed else units
        numbers = torch.tensor([0.0, weight, *marks], dtype=torch.float64)
        if loss.is_cuda:
            numbers = numbers.pin_memory().to(loss.device, non_blocking=True)
        self._whole = not isinstance(loss, DTensor) and not loss.dim()
        if self._whole and weight:  # zero times an idle rank's NaN would be NaN
            numbers[0].copy_(loss.detach()).mul_(weight)
        self._numbers = numbers
        self._work = dist.all_reduce(numbers, async_op=True)

    def units(self) -> torch.Tensor | None:
        """Return the units of all ranks, which their gradients are weighed by; None without."""
        if not self._counts:
            return None
        self._work.wait()
        return self._numbers[1]

    def finish(self, options: dict[str, Any]) -> torch.Tensor:
        """Put the value of the whole batch into the loss, on the stream; return the marks' sums."""
        self._work.wait()
        self._put_value(options)
        return self._numbers[2:]

    def _put_value(self, options: dict[str, Any]) -> None:
        loss = self._loss
        if options.get("retain_graph") or options.get("create_graph"):
            reason = "under retain_graph or create_graph"
        elif not self._whole or loss.is_leaf:
            reason = "as it is no number that was computed"
        elif loss._is_view():
            reason = "as it is a view of another tensor"
        else:
            total, weights = self._numbers[0], self._numbers[1]
            if self._summed:
                # Ranks that compute one part together have each put it in.
                value = total * (CONTEXT.place().size / dist.get_world_size())
            else:
                value = total / weights
            with torch.no_grad():
                loss.copy_(value)
            return
        print_once(
            f"backward: the value of the loss stays that of this rank's part, {reason}; "
            "rankup.batch_mean(loss) is that of the whole batch"
        )
