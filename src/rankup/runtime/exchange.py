"""The exchange of a wrapped model's gradients: weighed, then averaged over the ranks by DDP.

A backward is an exchange, whatever it came from: a forward of the model, of a part of it, two
forwards, a penalty on the weights. It begins before the first parameter gets a gradient, and when
the backward is over, the parameters that it has not reached count as zeros.

DDP averages as it does without us: in its own all-reduce, beside the backward. Where this rank's
part of a batch is not one of equal parts, its gradients are multiplied before DDP sees them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .context import ENGINE, ShardContext, Weight
from .notices import say_batch_norm
from .statistics import RunningStatistics
from .world import after_first_step


class Exchange:
    """One model's gradient exchange.

    Args:
        ddp: the model, whose parameters are the same on all ranks at the first exchange, or that is
            an error.
        context: what this rank is given of each batch.

    Attributes:
        begun: a backward has begun, and has not reached all parameters.
        weight: how much this rank's gradient counts in the present backward.
        sparse: some rank's first backward has not reached a parameter; None before that.
    """

    def __init__(
        self, ddp: DistributedDataParallel, statistics: RunningStatistics, context: ShardContext
    ) -> None:
        # The hooks below are out of sight of Python's garbage collector: they must not keep it.
        self._ddp = weakref.ref(ddp)
        self._unchecked = dict(ddp.module.named_parameters())
        self._trained = {n: p for n, p in self._unchecked.items() if p.requires_grad}
        self._frozen = {n: p for n, p in self._unchecked.items() if not p.requires_grad}
        self._device = next(iter(self._trained.values())).device
        self._statistics = statistics
        world_size = dist.get_world_size()
        self._context = context
        self.weight = Weight(context, world_size, world_size, 1, self._device)
        self.begun = False
        self.sparse: bool | None = None
        self._reached: set[str] = set()
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
        if ddp is not None and ddp.require_backward_grad_sync:
            if self.begun and name in self._reached:
                self._give_up()
            if not self.begun:
                self._begin_backward(ddp)
            self._reached.add(name)
            self.begun = len(self._reached) < len(self._trained)
        else:
            self.weight.begin(self._complete)
        return None if gradient is None else self.weight.apply(gradient)

    def _begin_backward(self, ddp: DistributedDataParallel) -> None:
        """Prepare DDP, whose own forward would do so for one backward alone."""
        thawed = [name for name, parameter in self._frozen.items() if parameter.requires_grad]
        if thawed:
            raise RuntimeError(
                f"{thawed[0]!r} requires a gradient since the model was wrapped, which would stay "
                "on this rank alone: call the wrapped model itself in the first step after that"
            )
        # Before anything collective: it refuses where not every rank came here.
        self._context.trains()
        self._shorten_timeout()
        if self._unchecked:
            _require_same(self._unchecked, self._device)
            self._unchecked = {}
            self._say_batch_norm()
        self.weight.begin(self._complete)
        self._reached.clear()
        # Collective once, behind the first backward: buckets in the order of the gradients.
        ddp.reducer._rebuild_buckets()
        ddp.reducer.prepare_for_backward([])
        self.begun = True

    def _say_batch_norm(self) -> None:
        parts, samples = self._context.place().size, self._context.samples
        if parts > 1 and samples is not None:
            smallest = self._context.smallest or max(1, samples[1] // parts)
            say_batch_norm(self._context.models, smallest, samples[1])

    def _give_up(self) -> None:
        """End an exchange that has begun and not come to its end; with other ranks, by an error."""
        left = {n: p for n, p in self._trained.items() if n not in self._reached}
        if dist.get_world_size() > 1:
            raise RuntimeError(
                "wrap: an earlier backward has failed before gradients were exchanged, or a "
                "parameter is used in several checkpoints of one backward; without gradient: "
                f"{', '.join(left)}. Call checkpoint with use_reentrant=False; behind a failure no "
                "rank can go on from there: let its error end the script, and go on from a "
                "checkpoint"
            )
        # DDP begins anew only behind an exchange of all parameters, which gives them its gradients.
        gradients = [parameter.grad for parameter in self._trained.values()]
        _run_without_gradient(list(left.values()))
        for parameter, gradient in zip(self._trained.values(), gradients, strict=True):
            parameter.grad = gradient

    def thawed(self) -> bool:
        """True where a parameter that was frozen at first requires a gradient now."""
        return any(parameter.requires_grad for parameter in self._frozen.values())

    def _complete(self) -> None:
        """At the end of a backward: exchange the parameters that it has not reached as zeros.

        Where that happens at all, the ranks find out which parameters have a gradient on none of
        them: there it stays None as on one GPU, or an optimizer would let the weights decay.
        """
        ddp = self._ddp()
        if ddp is None or not ddp.require_backward_grad_sync:
            return
        left = [p for n, p in self._trained.items() if n not in self._reached] if self.begun else []
        mine = [] if self.sparse is False else self._bitmap()
        if left:
            _run_without_gradient(left)
        if self.begun:
            raise RuntimeError(_CHANGED)
        # What follows DDP's own callback, which waits for its sums, is queued here.
        if self._statistics.size:
            ENGINE.queue_callback(self._statistics.start_mean(self.weight.works))
        if not mine:
            return
        ranks = torch.tensor(mine, dtype=torch.int32, device=_table_device(self._trained))
        dist.all_reduce(ranks)
        self.sparse = self.sparse or bool((ranks < dist.get_world_size()).any())
        numbers = ranks[0].tolist()
        nowhere = [p for p, n in zip(self._trained.values(), numbers, strict=True) if n == 0]
        if nowhere:
            ENGINE.queue_callback(functools.partial(_forget, nowhere))

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

    def _shorten_timeout(self) -> None:
        """Once the first exchange is over; on a GPU the host only learns of that later."""
        self._backwards += 1
        if self._backwards == 2 and self._device.type == "cuda":
            self._passed = torch.cuda.Event()
            self._passed.record()
        elif self._backwards == 2 or (self._passed is not None and self._passed.query()):
            self._passed = None
            after_first_step()


_CHANGED = (
    "wrap: gradients cannot be exchanged, since the type or device of the model's parameters has "
    "changed; convert or move the model before wrap, or the wrapped model itself"
)


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
    exchange: weakref.ref[Exchange], name: str, gradients: tuple[torch.Tensor | None, ...]
) -> tuple[torch.Tensor] | None:
    found = exchange()
    instead = found.reach(name, gradients[0]) if found is not None else None
    return None if instead is None else (instead,)


def _require_reached(exchange: weakref.ref[Exchange], name: str, parameter: torch.Tensor) -> None:
    found = exchange()
    if found is not None:
        found.require_reached(name)


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
