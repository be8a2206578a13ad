"""The exchange of a wrapped model's gradients: weighed, then summed over the ranks."""

# No postponed annotations here: DDP checks those of its communication hook as objects.
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .compress.ddp import CompressedExchange
from .deal import LEDGER
from .statistics import RunningStatistics
from .world import after_first_step


class Exchange:
    """One model's gradient exchange.

    Args:
        parameters: of the model, by name; all of them are the same on all ranks at the first
            exchange, or that is an error.

    Attributes:
        compressed: what sums gradients in fewer bytes; None where they are sent whole.
        expected: a forward has prepared DDP for the next backward.
        started: a backward has come, and its exchange is not complete.
        weight: how much this rank's gradient counts in the present backward.
        total: sum of the weights over the ranks, where only they together know it.
        held: units of backwards that were not exchanged yet; None when there were none.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        statistics: RunningStatistics,
        compressed: CompressedExchange | None,
    ) -> None:
        self._unchecked = dict(parameters)
        self.statistics, self.compressed = statistics, compressed
        self.expected = self.started = False
        self.weight = 1.0
        self.total: torch.futures.Future[Any] | None = None
        self.held: float | None = None
        self._last = -1
        self._backwards = 0
        self._passed: torch.cuda.Event | None = None

    def hold(self, backward: int) -> None:
        """Add the units of a backward, once, to those that the next exchange weighs with."""
        if backward == self._last != -1:
            return
        self._last = backward
        units = LEDGER.take_units(backward)
        if units is not None:
            self.held = units + (self.held or 0.0)

    def begin(self, device: torch.device) -> None:
        """At the first bucket of a backward: find the weights."""
        self._shorten_timeout(device)
        if self._unchecked:
            _require_same(self._unchecked, device)
            self._unchecked = {}
        self.total = None
        self.hold(torch._C._current_graph_task_id())
        units, samples = self.held, LEDGER.samples
        self.held = None
        if units is not None:
            # A rank that was dealt nothing computes on a stand-in sample that counts for nothing.
            self.weight = units if samples is None or samples[0] else 0.0
            self.total = _sum(torch.full((1,), self.weight, dtype=torch.float64, device=device))
        elif samples is not None:
            self.weight = samples[0] / samples[1]
        else:
            self.weight = 1.0 / dist.get_world_size()

    def share(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """Start the sum of a weighted bucket over the ranks, in place."""
        if self.compressed is None:
            return _sum(bucket.buffer())
        if self.total is not None:
            # What is left out is added to a later step, where units may be more, or fewer: it has
            # to be in the measure of the gradient. All ranks come here, so the wait is short.
            bucket.buffer().div_(_divisor(self.total.wait()[0], bucket.buffer().dtype))
        return self.compressed.share(bucket)

    def share_statistics(self, device: torch.device) -> torch.futures.Future[Any]:
        """Start the sum of running statistics over the ranks that had samples, and their number."""
        works = torch.full((1,), float(self.weight > 0), dtype=torch.float64, device=device)
        return _sum(torch.cat([torch.where(works > 0, self.statistics.flat(), 0.0), works]))

    def _shorten_timeout(self, device: torch.device) -> None:
        """Once the first exchange is over; on a GPU the host only learns of that later."""
        self._backwards += 1
        if self._backwards == 2 and device.type == "cuda":
            self._passed = torch.cuda.Event()
            self._passed.record()
        elif self._backwards == 2 or (self._passed is not None and self._passed.query()):
            self._passed = None
            after_first_step()


def weighted_sum(exchange: Exchange, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: sum over ranks of weight x gradient, weights summing to one."""
    buffer = bucket.buffer()
    if bucket.index() == 0:
        exchange.begin(buffer.device)
    # Where all ranks weigh nothing, what earlier backwards left stays as it is.
    before = None if exchange.weight or exchange.total is None else buffer.clone()
    # Multiplying by zero would keep an idle rank's NaN.
    buffer = buffer.mul_(exchange.weight) if exchange.weight else buffer.zero_()
    parts = {}
    if exchange.total is not None:
        parts["total"] = exchange.total
    if bucket.is_last():
        exchange.expected = exchange.started = False
        if exchange.statistics.size:
            parts["statistics"] = exchange.share_statistics(buffer.device)
    parts["gradient"] = exchange.share(bucket)

    def finish(done: torch.futures.Future[Any]) -> torch.Tensor:
        values = dict(zip(parts, (part.value()[0] for part in done.value()), strict=True))
        gradient: torch.Tensor = values["gradient"]
        if "total" in values:
            total = values["total"]
            if exchange.compressed is None:
                gradient.div_(_divisor(total, gradient.dtype))
            if before is not None:
                if before.is_cuda:  # made on another stream than this
                    before.record_stream(torch.cuda.current_stream(before.device))
                # Nothing was summed but what compression still owed.
                gradient.add_(torch.where(total > 0, 0.0, before))
        if "statistics" in values:
            total, ranks = values["statistics"].split([exchange.statistics.size, 1])
            mean = total / ranks.clamp(min=1.0)
            exchange.statistics.assign(torch.where(ranks > 0, mean, exchange.statistics.flat()))
        return gradient

    return torch.futures.collect_all(list(parts.values())).then(finish)


def _require_same(parameters: Mapping[str, nn.Parameter], device: torch.device) -> None:
    """Compare a sum over the bits of each parameter, which is exact in any order.

    Raises:
        RuntimeError: on all ranks: one of them has other values.
    """
    sums = torch.stack([_bits(one.detach()).to(device) for one in parameters.values()])
    ends = torch.stack([sums, -sums])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    differ = (ends[0] != -ends[1]).tolist()
    names = [name for name, other in zip(parameters, differ, strict=True) if other]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RuntimeError(
            f"before the first step the ranks have different values of {names[0]!r}{more}: the "
            "wrapped model was given values that are not the same on all ranks, such as random "
            "ones. Give the model its values before wrap, which makes them rank 0's on all"
        )


def _bits(values: torch.Tensor) -> torch.Tensor:
    if values.is_complex():
        values = torch.view_as_real(values)
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.element_size()]).sum(dtype=torch.int64)


def _divisor(total: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a sum weighed by units is divided by.

    No units on any rank: the gradient is a sum of nothing, not 0 / 0.
    """
    return torch.where(total > 0, total, 1.0).to(dtype)


def _sum(tensor: torch.Tensor) -> torch.futures.Future[Any]:
    """Start the sum of a tensor over the ranks, in place."""
    return dist.all_reduce(tensor, async_op=True).get_future()
