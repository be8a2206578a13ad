"""Whether the ranks still do the same: steps taken, and learning rates.

A rank whose plateau has come earlier than the others' trains on with another learning rate, and
nothing says so. What a rank has had of both at its last step goes with the small all-reduce of each
backward as one number, beside its square: where the ranks' numbers are equal, and only there, the
sum of the squares times the ranks is the square of the sum. The sums are read when the next
backward begins, so that no host waits for its GPU.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from .collectives import all_gather_object
from .context import CONTEXT

# So that the sum of 8,192 squares is exact in float64.
_BITS = 20
_NAMED = 4  # ranks that a message lists
# Optimizer steps of a rank, and the learning rates of each group of the optimizers at work.
State = tuple[int, tuple[tuple[float, ...], ...]]


class Agreement:
    """Compares what the ranks of the present process group do, a backward late."""

    def __init__(self) -> None:
        self._backwards = self._steps = 0
        # Of the optimizers seen so far, whether they count.
        self._counts: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool]
        self._counts = weakref.WeakKeyDictionary()
        # The rates of those that have stepped since the last backward, in this order; they stay
        # when Python collects one that is no longer used: when, each rank decides by itself.
        self._stepped: dict[weakref.ref[torch.optim.Optimizer], tuple[float, ...]] = {}
        self._state: State = (0, ())
        # What came of the last backward's all-reduce, and what this rank had put into it.
        self._sent: tuple[torch.Tensor, torch.cuda.Event | None, State] | None = None

    def begin(self) -> tuple[float, float]:
        """Begin a backward; return the two numbers that this rank puts into its all-reduce.

        Raises:
            RuntimeError: in the backward before this one the ranks were not alike. Collective then.
        """
        self._compare()
        self._backwards += 1
        self._state = (self._steps, tuple(self._stepped.values()))
        self._stepped.clear()
        digest = hashlib.blake2b(repr(self._state).encode(), digest_size=4).digest()
        mark = int.from_bytes(digest, "little") >> (32 - _BITS)
        return float(mark), float(mark * mark)

    def end(self, sums: torch.Tensor) -> None:
        """End a backward, on the stream.

        Args:
            sums: of what `begin` returned, over the ranks; float64 of shape (2,).
        """
        passed = None
        if sums.is_cuda:
            sums = sums.to("cpu", non_blocking=True)  # into pinned memory
            passed = torch.cuda.Event()
            passed.record()
        self._sent = sums, passed, self._state

    def count_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step, where it is one of a wrapped model's optimizer."""
        if optimizer not in self._counts:
            self._counts[optimizer] = _trains_wrapped(optimizer)
        if self._counts[optimizer]:
            self._steps += 1
            self._stepped[weakref.ref(optimizer)] = _rates(optimizer)

    def _compare(self) -> None:
        sent, self._sent = self._sent, None
        if sent is None:
            return
        sums, passed, state = sent
        if passed is not None:
            passed.synchronize()
        total, squares = (int(value) for value in sums.tolist())
        if squares * dist.get_world_size() != total * total:
            raise RuntimeError(_difference(all_gather_object(state), self._backwards))


_OF_GROUP: weakref.WeakKeyDictionary[Any, Agreement] = weakref.WeakKeyDictionary()


def agreement() -> Agreement:
    """Return that of the present process group."""
    _watch_optimizers()
    group = dist.group.WORLD
    if group not in _OF_GROUP:
        _OF_GROUP[group] = Agreement()
    return _OF_GROUP[group]


@cache
def _watch_optimizers() -> None:
    """See the steps of all optimizers, also of those that are made later; once in a process."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if dist.is_initialized() and (present := _OF_GROUP.get(dist.group.WORLD)) is not None:
        present.count_step(optimizer)


def _trains_wrapped(optimizer: torch.optim.Optimizer) -> bool:
    """True for one of the wrapped models' parameters: of another each rank may have its own."""
    wrapped = {id(parameter) for model in CONTEXT.models for parameter in model.parameters()}
    return any(
        id(parameter) in wrapped
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _rates(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """The learning rates; without those that lie on a GPU, which would have to be waited for."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return tuple(
        float(rate)
        for rate in rates
        if rate is not None and not (isinstance(rate, torch.Tensor) and rate.is_cuda)
    )


def _difference(states: Sequence[State], backward: int) -> str:
    """Say in what the ranks differ, since when, and what to do."""
    steps = [steps for steps, _ in states]
    rates = [", ".join(f"{r!r}" for group in groups for r in group) for _, groups in states]
    if len({*steps}) > 1:
        where = "behind"
        what = f"the number of optimizer steps ({_by_rank([str(number) for number in steps])})"
        remedy = (
            "Some ranks have left out a step that others have taken: let all decide by one value, "
            "as in `if rankup.broadcast(skip): continue`"
        )
    else:
        where = "at"  # the rates are those of the last step
        what = f"the learning rate ({_by_rank(rates)})"
        remedy = (
            "A number that each rank has by itself has set it: give all ranks one, as in "
            "`scheduler.step(rankup.broadcast(metric))`"
        )
    return (
        f"backward: since backward {backward}, {where} optimizer step {min(steps)}, the ranks "
        f"differ in {what}. {remedy}; and go on from a checkpoint of before"
    )


def _by_rank(values: Sequence[str]) -> str:
    """`0.1 on rank 0, 2; 0.01 on rank 1`."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(
        f"{value} on rank {', '.join(map(str, members[:_NAMED]))}"
        + (f" and {len(members) - _NAMED} more" if len(members) > _NAMED else "")
        for value, members in ranks.items()
    )
