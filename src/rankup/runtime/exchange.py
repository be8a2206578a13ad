"""The exchange of a wrapped model's gradients: weighed, then summed over the ranks.

A backward is an exchange, whatever it came from: a forward of the model, of a part of it, two
forwards, a penalty on the weights. It begins before the first parameter gets a gradient, and when
the backward is over, the parameters that it has not reached count as zeros.
"""

# No postponed annotations here: DDP checks those of its communication hook as objects.
import contextlib
import functools
import sys
import weakref
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction

from .compress.ddp import CompressedExchange
from .deal import LEDGER
from .statistics import RunningStatistics
from .world import after_first_step


class Exchange:
    """One model's gradient exchange.

    Args:
        ddp: the model, whose parameters are the same on all ranks at the first exchange, or that is
            an error.

    Attributes:
        compressed: what sums gradients in fewer bytes; None where they are sent whole.
        begun: a backward has begun, and not all of its gradients are sent.
        weight: how much this rank's gradient counts in the present backward.
        total: sum of the weights over the ranks, where only they together know it.
        held: units of backwards that were not exchanged yet; None when there were none.
        sparse: some rank's first backward has not reached a parameter; None before that.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        statistics: RunningStatistics,
        compressed: CompressedExchange | None,
    ) -> None:
        # The hooks below are out of sight of Python's garbage collector: they must not keep it.
        self._ddp = weakref.ref(ddp)
        self._unchecked = dict(ddp.module.named_parameters())
        self._trained = {n: p for n, p in self._unchecked.items() if p.requires_grad}
        self._frozen = {n: p for n, p in self._unchecked.items() if not p.requires_grad}
        self.statistics, self.compressed = statistics, compressed
        self.begun = False
        self.sparse: bool | None = None
        self.weight = 1.0
        self.total: torch.futures.Future[Any] | None = None
        self.held: float | None = None
        self._reached: set[str] = set()
        self._backward = self._completes = self._last = -1
        self._completing = False
        self._backwards = 0
        self._passed: torch.cuda.Event | None = None
        self._nodes = []
        self._hooks = []
        for name, parameter in self._trained.items():
            # The nodes that DDP has hooked, too: they run once in a backward, with and without a
            # gradient.
            node = torch.autograd.graph.get_gradient_edge(parameter).node
            hook = node.register_prehook(functools.partial(_reach, weakref.ref(self), name))
            self._hooks.append(hook)
            self._nodes.append(node)
        names = list(self._trained)
        for name in {names[0], names[-1]}:
            hook = self._trained[name].register_post_accumulate_grad_hook(
                functools.partial(_require_reached, weakref.ref(self), name)
            )
            self._hooks.append(hook)

    def remove(self) -> None:
        """Let go of the parameters, which another exchange takes over.

        A thread of gloo may keep this one for a moment, with the group's last collective.
        """
        for hook in self._hooks:
            hook.remove()

    def reach(self, name: str, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Before a parameter gets its gradient in a backward; what it gets instead, if anything."""
        ddp = self._ddp()
        backward = torch._C._current_graph_task_id()
        if ddp is not None and ddp.require_backward_grad_sync:
            if not self.begun:
                self._begin_backward(ddp, backward)
            elif name in self._reached:
                left = [other for other in self._trained if other not in self._reached]
                raise RuntimeError(
                    "wrap: an earlier backward has failed, or has ended within activation "
                    "checkpointing, before gradients were exchanged; without gradient: "
                    f"{', '.join(left)}. Call checkpoint with use_reentrant=False"
                )
            self._reached.add(name)
            if backward != self._completes and not self._completing and not _recomputes():
                self._completes = backward
                _ENGINE.queue_callback(self._complete)
        else:
            self.hold(backward)
        # Keep a NaN over nothing out of what earlier backwards have left.
        return (
            torch.zeros_like(gradient) if gradient is not None and LEDGER.idle(backward) else None
        )

    def _begin_backward(self, ddp: DistributedDataParallel, backward: int) -> None:
        """Prepare DDP, whose own forward would do so for one backward alone."""
        thawed = [name for name, parameter in self._frozen.items() if parameter.requires_grad]
        if thawed:
            raise RuntimeError(
                f"{thawed[0]!r} requires a gradient since the model was wrapped, which would stay "
                "on this rank alone: call the wrapped model itself in the first step after that"
            )
        self._reached.clear()
        self._backward = backward
        # Collective once, behind the first backward: buckets in the order of the gradients.
        ddp.reducer._rebuild_buckets()
        ddp.reducer.prepare_for_backward([])
        self.begun = True

    def thawed(self) -> bool:
        """True where a parameter that was frozen at first requires a gradient now."""
        return any(parameter.requires_grad for parameter in self._frozen.values())

    def _complete(self) -> None:
        """At the end of a backward: exchange the parameters that it has not reached as zeros.

        Where that happens at all, the ranks find out which parameters have a gradient on none of
        them: there it stays None as on one GPU, or an optimizer would let the weights decay.
        """
        left = [p for n, p in self._trained.items() if n not in self._reached] if self.begun else []
        mine = [] if self.sparse is False else self._bitmap()
        if left:
            self._completing = True
            try:
                _run_without_gradient(left)
            finally:
                self._completing = False
        if self.begun:
            raise RuntimeError(_CHANGED)
        if not mine:
            return
        ranks = torch.tensor(mine, dtype=torch.int32, device=_table_device(self._trained))
        dist.all_reduce(ranks)
        self.sparse = self.sparse or bool((ranks < dist.get_world_size()).any())
        numbers = ranks[0].tolist()
        nowhere = [p for p, n in zip(self._trained.values(), numbers, strict=True) if n == 0]
        if nowhere:  # behind DDP's own callback, which sets them
            _ENGINE.queue_callback(functools.partial(_forget, nowhere))

    def _bitmap(self) -> list[list[bool]]:
        """Return whether each parameter has a gradient, and whether this backward has reached it.

        Before DDP gives a gradient to those without.
        """
        has = [parameter.grad is not None for parameter in self._trained.values()]
        return [has, [name in self._reached for name in self._trained]]

    def require_reached(self, name: str) -> None:
        """After a parameter got its gradient: raise where its hooks have not run."""
        ddp = self._ddp()
        if ddp is not None and ddp.require_backward_grad_sync and name not in self._reached:
            raise RuntimeError(_CHANGED)

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
        self.hold(self._backward)
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
    statistics = None
    if bucket.is_last():
        exchange.begun = False
        if exchange.statistics.size:
            statistics = exchange.share_statistics(buffer.device)
    total = exchange.total

    def finish(done: torch.futures.Future[Any]) -> torch.Tensor:
        gradient: torch.Tensor = done.value()[0]
        # What was started before the bucket's own sum is here with it: on a GPU these waits are
        # the stream's, not the host's.
        if total is not None:
            units = total.wait()[0]
            if exchange.compressed is None:
                gradient.div_(_divisor(units, gradient.dtype))
            if before is not None:
                if before.is_cuda:  # made on another stream than this
                    before.record_stream(torch.cuda.current_stream(before.device))
                # Nothing was summed but what compression still owed.
                gradient.add_(torch.where(units > 0, 0.0, before))
        if statistics is not None:
            values, ranks = statistics.wait()[0].split([exchange.statistics.size, 1])
            mean = values / ranks.clamp(min=1.0)
            exchange.statistics.assign(torch.where(ranks > 0, mean, exchange.statistics.flat()))
        return gradient

    # Nothing but the bucket's own future: one made by `collect_all` has no devices, and what is
    # chained to it waits for NCCL in the stream of the backward.
    return exchange.share(bucket).then(finish)


_CHANGED = (
    "wrap: gradients cannot be exchanged, since the type or device of the model's parameters has "
    "changed; convert or move the model before wrap, or the wrapped model itself"
)
_ENGINE = torch.autograd.Variable._execution_engine


class _NoGradient(torch.autograd.Function):
    """Reaches parameters in a backward, without a gradient."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.number = len(parameters)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return (None,) * ctx.number


def _run_without_gradient(parameters: Sequence[nn.Parameter]) -> None:
    """Let DDP's hooks of these parameters run, as a backward does that ends in them."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    with torch.enable_grad():
        for parameter in frozen:  # by the script, since wrap
            parameter.requires_grad_(True)
        nothing = _NoGradient.apply(*parameters)
        for parameter in frozen:
            parameter.requires_grad_(False)
    nothing.backward()


def _table_device(parameters: Mapping[str, nn.Parameter]) -> torch.device:
    """The CPU where the group has gloo, so that no rank waits for its GPU."""
    with contextlib.suppress(RuntimeError):
        dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        return torch.device("cpu")
    return next(iter(parameters.values())).device


def _forget(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _reach(
    exchange: "weakref.ref[Exchange]", name: str, gradients: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor] | None:
    found = exchange()
    instead = found.reach(name, gradients[0]) if found is not None else None
    return None if instead is None else (instead,)


def _require_reached(exchange: "weakref.ref[Exchange]", name: str, parameter: torch.Tensor) -> None:
    found = exchange()
    if found is not None:
        found.require_reached(name)


def _recomputes() -> bool:
    """True in a backward that activation checkpointing runs within another one.

    What this one does not reach, the other may.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _RECOMPUTES:
            return True
        frame = frame.f_back
    return False


_RECOMPUTES = CheckpointFunction.backward.__code__


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
