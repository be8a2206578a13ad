"""A rank's share of each batch, and how much its gradient counts for that."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointFunction

ENGINE = torch.autograd.Variable._execution_engine
_RECOMPUTES = CheckpointFunction.backward.__code__


@dataclass(frozen=True)
class Place:
    """Which part of each batch this rank computes.

    Attributes:
        rank, size: this one among the parts that a batch is dealt in.
        together: a forward is a collective, so no rank may have a batch less than another.
    """

    rank: int
    size: int
    together: bool = False


class UnitSums(Protocol):
    """Sums over the ranks that are under way."""

    def units(self) -> torch.Tensor | None:
        """Return the units given to `count` on all ranks; None where it was not called."""


class ShardContext:
    """This rank's shares of the batches, for `wrap`, `parallelize` and the sums to weigh by.

    Attributes:
        samples: of the batch that is trained on, this rank's and those of all ranks; None before
            the first one, and behind the last.
        last: the same of the batch that was given out last, in an evaluation too.
        smallest: samples in the smallest part of a batch in the last training pass of a loader.
        units: what `count` was given since the last backward; None where it was not called.
        counted: what `count` was given for the present batch, also after its backward.
        sums: what `rankup.backward` adds up over the ranks, while it is under way.
        log: number and samples of each batch that this rank had in the last loop over a loader.
        models: the wrapped models alive, whose train/eval mode says what a batch is for.
    """

    def __init__(self) -> None:
        self.samples: tuple[int, int] | None = None
        self.last: tuple[int, int] | None = None
        self.smallest: int | None = None
        self.units: float | None = None
        self.counted: float | None = None
        self.sums: UnitSums | None = None
        self.log: list[tuple[int, int]] = []
        self.models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Makes a training pass of the evaluation at hand, where only its model's mode says that it
        # is one.
        self._unsure: weakref.WeakMethod[Callable[[], None]] | None = None
        # Of each training pass that has not ended, by its id, what it gave last; the newest last.
        self._open: dict[int, tuple[int, int]] = {}
        # The pass of `samples` was left early: its batch may be at hand still.
        self._left = False
        # The backward under way, as torch numbers them, and the units that it has used up.
        self._taken: tuple[int, float | None] | None = None
        # The place that `parallelize` has given this rank, and the process group it is for.
        self._placed: tuple[weakref.ref[Any], Place] | None = None

    # --- which part of each batch

    def place(self) -> Place:
        """Return the part of a batch that is this rank's: by its rank in the world, or as given."""
        return self._given() or Place(dist.get_rank(), dist.get_world_size())

    def assign(self, place: Place) -> None:
        """Set this rank's part of each batch from now on.

        Raises:
            ValueError: a model that is still there is split over the ranks in another way.
        """
        before = self._given()
        if before is not None:
            if (before.rank, before.size) != (place.rank, place.size):
                gc.collect()  # a model that is gone may only look as if it were there
                if self.models:
                    raise ValueError(
                        f"two models of one script must share the data alike: one was dealt in "
                        f"{before.size} parts, this one would be in {place.size}; give both the "
                        f"same tp and pp"
                    )
            elif before.together and self.models:
                place = before
        self._placed = (weakref.ref(dist.group.WORLD), place)

    def _given(self) -> Place | None:
        """The shares that were assigned, unless it was in a process group that is gone."""
        if self._placed is None or self._placed[0]() is not dist.group.WORLD:
            return None
        return self._placed[1]

    # --- the batch at hand

    def give(
        self,
        mine: int,
        size: int,
        trains: bool,
        unsure: Callable[[], None] | None = None,
        of: object = None,
    ) -> None:
        """Note what this rank is given of a batch.

        Args:
            mine, size: samples of this rank, and of all.
            trains: the batch is trained on; an evaluation leaves that one as it was.
            unsure: a method to be called where it turns out that the batch is trained on.
            of: the pass that gives it, where there is one, until `end_pass`.
        """
        self.last = (mine, size)
        self._unsure = None if unsure is None else weakref.WeakMethod(unsure)
        if trains:
            self.samples, self.counted = self.last, None
            self._taken = None  # of a backward that failed
            self._left = False
            if of is not None:
                self._open.pop(id(of), None)
                self._open[id(of)] = self.last
        elif self._left and torch.is_grad_enabled():
            self._go_back()

    def end_pass(
        self, of: object, trained: bool, exhausted: bool, unsure: Callable[[], None]
    ) -> None:
        """Forget a batch that was trained on: what follows is of the pass around this one, if any.

        Args:
            of: the pass. It may end late, with the last reference to it, in another one.
            exhausted: it has given its last batch. One that was left early, by `next(iter(loader))`
                as by `break`, may have its batch at hand still. What follows and was not shared out
                is weighed right too, since the shares of all ranks add up to one.
            unsure: of this pass.
        """
        if self._unsure is not None and self._unsure() == unsure:
            self._unsure = None
        given = self._open.pop(id(of), None)
        if trained and exhausted:
            self._go_back()
        elif trained and given in (None, self.samples):
            self._left = True

    def _go_back(self) -> None:
        """Take the batch at hand for that of the newest pass that has not ended."""
        self.samples, self._left = next(reversed(self._open.values()), None), False

    def trains(self) -> None:
        """Take the batch at hand for one that is trained on: its backward is here, or next."""
        if self._unsure is not None and (confirm := self._unsure()) is not None:
            confirm()
            self.samples, self._unsure = self.last, None

    def current(self) -> tuple[int, int] | None:
        """Samples of the batch at hand: the one trained on, or in an evaluation that one's."""
        return (self.samples or self.last) if torch.is_grad_enabled() else self.last

    def weight(self) -> float:
        """How much this rank's mean over its part of the batch counts among the ranks'."""
        current = self.current()
        if current is not None and current[0] == 0:
            return 0.0
        if self.counted is not None and torch.is_grad_enabled():
            return self.counted
        return float(current[0]) if current is not None else 1.0

    # --- units of its loss

    def count(self, units: float) -> None:
        """See `count`."""
        self.units = self.counted = (self.units or 0.0) + units
        self._taken = None

    def take_units(self, backward: int) -> float | None:
        """Use the units up; return them, the same for every model that a backward reaches.

        A backward that activation checkpointing runs within another one has a higher number, and
        is part of it.
        """
        if self._taken is None or (backward > self._taken[0] and _recomputation() is None):
            self._taken, self.units = (backward, self.units), None
            _in_whole_backward(lambda: ENGINE.queue_callback(self._end_backward))
        return self._taken[1]

    def _end_backward(self) -> None:
        self._taken = None


CONTEXT = ShardContext()
"""That of this process. A script hands the loader and the model to nobody who could pass it on, so
`shard`, `deal`, `count` and a `Loader` meet `wrap` and `parallelize` here, as all do in torch's
process group. Whatever these make is given it."""


class Weight:
    """The weight of this rank's gradient in a backward: its share of the batch, times `whole`.

    The shares of all ranks add up to one, so that sums of weighted gradients over the ranks,
    divided by `whole`, are the mean over the samples of all ranks, or over the units given to
    `count`. Where shares are equal the weight is one, and nothing is done.

    Args:
        context: what this rank is given of each batch.
        whole: what sums of gradients are divided by when they have been added up.
        parts: in how many a batch is dealt.
        alike: ranks that compute each part together.
        device: where the gradients are.

    Attributes:
        works: this rank's part of the present backward counts.
    """

    def __init__(
        self, context: ShardContext, whole: int, parts: int, alike: int, device: torch.device
    ) -> None:
        self._context, self._device = context, device
        self._whole, self._parts, self._alike = whole, parts, alike
        self._factor: float | torch.Tensor = 1.0
        self._backward = self._ends = -1
        self.works = True

    def begin(self, end: Callable[[], None]) -> None:
        """Find the weight of the backward under way, where that is another one than before.

        Collective where the script calls `count`; on a GPU only its stream waits.

        Args:
            end: called once when the backward is over, with what activation checkpointing runs
                within it.
        """
        backward = torch._C._current_graph_task_id()
        if backward == self._backward:
            return
        self._backward = backward
        self._context.trains()
        units, samples = self._context.take_units(backward), self._context.samples
        _in_whole_backward(functools.partial(self._queue, end))
        # A rank that was dealt nothing computes on a stand-in sample that counts for nothing.
        idle = samples is not None and samples[0] == 0
        if units is not None:
            own = 0.0 if idle else units
            sums = self._context.sums
            if sums is None or (total := sums.units()) is None:
                total = torch.full((), own, dtype=torch.float64, device=self._device)
                dist.all_reduce(total)
            total = total.to(self._device)
            # No units on any rank: the gradient is a sum of nothing, not 0 / 0.
            total = torch.where(total > 0, total / self._alike, 1.0)
            self._factor, self.works = own * self._whole / total, own > 0
        else:
            own, all_ = samples or (1, self._parts)
            self._factor, self.works = self._whole * own / all_, not idle

    def _queue(self, end: Callable[[], None]) -> None:
        backward = torch._C._current_graph_task_id()
        if backward != self._ends:
            self._ends = backward
            ENGINE.queue_callback(end)

    def apply(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Return the weighted gradient; None where it is the same."""
        if isinstance(self._factor, float) and self._factor == 1.0:
            return None
        if isinstance(gradient, DTensor):
            return DTensor.from_local(
                self._weighted(gradient.to_local()),
                gradient.device_mesh,
                gradient.placements,
                run_check=False,
                shape=gradient.shape,
                stride=gradient.stride(),
            )
        return self._weighted(gradient)

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        if not self.works:  # multiplying by zero would keep an idle rank's NaN
            return torch.zeros_like(gradient)
        if isinstance(self._factor, torch.Tensor) and gradient.dtype.itemsize < 4:
            # A tensor would be rounded to bfloat16 before the product, and weigh all of the
            # gradient by the same error; a number is not.
            return (gradient.float() * self._factor).to(gradient.dtype)
        # A parameter without dimensions would take the type of the factor.
        return (gradient * self._factor).to(gradient.dtype)


def _recomputation() -> torch.autograd.graph.Node | None:
    """Return the node whose activation checkpointing runs the backward under way within another."""
    node = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _RECOMPUTES:
            node = frame.f_locals["ctx"]
        frame = frame.f_back
    return node


def _in_whole_backward(call: Callable[[], Any]) -> None:
    """Call a function in the backward under way, not in one that runs within it.

    From within, that is once the node that runs after the checkpointed one is reached.
    """
    if (checkpointed := _recomputation()) is None:
        call()
        return
    after = next(node for node, _ in checkpointed.next_functions if node is not None)

    def hook(_: Any) -> None:
        handle.remove()
        _in_whole_backward(call)

    handle = after.register_prehook(hook)


def count(units: float) -> None:
    """Say how many units the next backward's loss was averaged over, where they are not samples.

    For a loss that is a mean over valid tokens, `rankup.count(n_tokens)` before `loss.backward()`
    on every rank makes the gradient the exact mean over the tokens of all ranks. Calls before one
    backward add up, those for several batches too: where a batch may be skipped, call it behind
    that check, or its units weigh the next backward. Every rank has to come to the same backwards
    then, those under `no_sync()` too.

    Raises:
        ValueError: a negative or non-finite number.
    """
    units = float(units)
    if not 0 <= units < float("inf"):
        raise ValueError(f"count needs a finite number of units >= 0, got {units}")
    CONTEXT.count(units)
