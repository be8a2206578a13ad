"""The collectives by their plain names, and the one right way to take a mean.

Every function works in a group of one and in a process that belongs to no group.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist

from .random_state import STREAMS, States, capture, restore
from .world import launched, several

Reduction = Literal["sum", "mean", "min", "max"]
T = TypeVar("T")

# Calls of rank0_first in a process group, which all its ranks come to together.
_ORDERED: weakref.WeakKeyDictionary[Any, Iterator[int]] = weakref.WeakKeyDictionary()
# Within rank0_first the first rank is alone: it must wait there for no other one.
_IN_TURN = ContextVar("in_turn", default=False)
# torch 2.13 has named them anew, and warns of the older names.
REDUCE_SCATTER, ALL_GATHER = (
    new if hasattr(dist, new) else old
    for new, old in (
        ("reduce_scatter_single", "reduce_scatter_tensor"),
        ("all_gather_single", "all_gather_into_tensor"),
    )
)
_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


def barrier() -> None:
    """Wait until every rank has come here; within `rank0_first` there is nothing to wait for."""
    if several() and not _IN_TURN.get():
        dist.barrier()


def broadcast(value: T, source: int = 0) -> T:
    """Give every rank the value that rank `source` has.

    A tensor is overwritten in place and must have one shape and type everywhere; any other
    picklable value is returned. Tensors in lists, tuples and dictionaries come to this rank's GPU.
    """
    if not several():
        return value
    if isinstance(value, torch.Tensor):
        if value.is_inference() and not torch.is_inference_mode_enabled():
            value = cast("T", value.clone())  # that one may not be written into
        dist.broadcast(cast("torch.Tensor", value), source)
        return value
    box = [_each_tensor(value, _packed)]
    dist.broadcast_object_list(box, source)
    return cast("T", _each_tensor(box[0], _unpacked))


class _OnGpu(tuple[torch.Tensor]):
    """A copy in main memory of a tensor that was on the GPU of the rank that sends it."""

    __slots__ = ()


def _packed(tensor: torch.Tensor) -> Any:
    """A tensor as it is sent: pickled on a GPU it would come to the sender's on all ranks."""
    return _OnGpu([tensor.detach().cpu()]) if tensor.is_cuda else tensor


def _unpacked(tensor: Any) -> torch.Tensor:
    return tensor[0].cuda() if isinstance(tensor, _OnGpu) else tensor


def _each_tensor(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same value with its tensors changed, also those in plain containers."""
    if isinstance(value, torch.Tensor | _OnGpu):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_each_tensor(one, change) for one in value)
    if type(value) is dict:
        return {key: _each_tensor(one, change) for key, one in value.items()}
    return value


def all_reduce(value: torch.Tensor | float, op: Reduction = "sum") -> Any:
    """Combine a value over all ranks; every rank gets the result.

    Args:
        value: a tensor, reduced in place and returned, or a number, of which a float is returned.
        op: `sum`, `mean` (over ranks; for a mean over samples use `mean(total, count)`), `min`,
            `max`.
    """
    _check(op)
    if isinstance(value, torch.Tensor):
        _reduce(value, op)
        return value
    box = torch.tensor(value, dtype=torch.float64)  # on the CPU: gloo is there beside NCCL
    _reduce(box, op)
    return box.item()


def all_gather(value: torch.Tensor) -> torch.Tensor:
    """Stack every rank's tensor: shape `(world_size, *value.shape)`, one shape on all ranks."""
    if not several():
        return value.unsqueeze(0).clone()
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value.contiguous())
    return torch.stack(parts)


def reduce_scatter(value: torch.Tensor, op: Reduction = "sum") -> torch.Tensor:
    """Combine over ranks and keep this rank's part: shape `(n, …)` -> `(n / world_size, …)`.

    Raises:
        ValueError: the first dimension is not a multiple of the world size.
    """
    _check(op)
    if not several():
        return value.clone()
    world_size = dist.get_world_size()
    if value.shape[0] % world_size:
        raise ValueError(
            f"reduce_scatter cuts the first dimension into {world_size} equal parts; "
            f"{value.shape[0]} does not divide, pad it"
        )
    part = torch.empty_like(value[: value.shape[0] // world_size])
    reduction = dist.ReduceOp.SUM if op == "mean" else _OPS[op]
    getattr(dist, REDUCE_SCATTER)(part, value.contiguous(), op=reduction)
    return part.div_(world_size) if op == "mean" else part


def mean(total: torch.Tensor | float, count: torch.Tensor | float) -> float:
    """The mean over all ranks' samples: sum of `total` over sum of `count`, reduced together.

    Raises:
        ZeroDivisionError: no rank has counted anything.
    """
    pair = torch.tensor([float(total), float(count)], dtype=torch.float64)
    _reduce(pair, "sum")
    sums: list[float] = pair.tolist()
    if sums[1] == 0:
        raise ZeroDivisionError("mean over no samples: the count is 0 on every rank")
    return sums[0] / sums[1]


class _Rank0First:
    """`with rank0_first():` or `rank0_first(fn, *args)`; see `rank0_first`."""

    def __call__(self, *args: Any, per_node: bool = False, **kwargs: Any) -> Any:
        if not args:
            return _ordered(per_node)
        function, *rest = args
        with _ordered(per_node):
            return function(*rest, **kwargs)


rank0_first = _Rank0First()
"""Let rank 0 do something first (download, build a cache), then the others.

As a context manager, `with rank0_first(): prepare()`, or as a call, `data =
rank0_first(prepare, path)`; within another one it waits for no rank. With `per_node=True` the first
rank of each node goes first, for caches that every node has of its own. When a leading rank fails,
every rank raises and none hangs. Behind it all ranks go on with rank 0's random states, whatever
one of them has drawn in it.
"""


@contextmanager
def _ordered(per_node: bool) -> Iterator[None]:
    if not several() or _IN_TURN.get():
        yield
        return
    rank = dist.get_rank()
    number = next(_ORDERED.setdefault(dist.group.WORLD, itertools.count()))
    leads = launched().local_rank == 0 if per_node else rank == 0
    leaders = sum(all_gather_object(leads)) if per_node else 1
    # In the store, since a download may take longer than a collective is given.
    store = dist.distributed_c10d._get_default_store()
    left, done = f"rankup/first/{number}/left", f"rankup/first/{number}/done"
    failure = ""
    if leads:
        try:
            yield from _in_turn()
        except BaseException as error:
            failure = f"rank {rank}: {type(error).__name__}: {error}"
            raise
        finally:
            if store.add(left, 1) == leaders:
                store.set(done, "")
            states = _agree(failure, store, done)
    else:
        states = _agree("", store, done)
        yield from _in_turn()
    # What is made where it is missing draws on the first rank alone: all go on as that does.
    if not STREAMS.apart:
        restore(states)


def _in_turn() -> Iterator[None]:
    token = _IN_TURN.set(True)
    try:
        yield
    finally:
        _IN_TURN.reset(token)


def _agree(failure: str, store: dist.Store, done: str) -> States:
    """Wait for the leading ranks, tell all how they fared, and raise where another one failed.

    Returns the random states of rank 0.
    """
    pause = 0.01
    while not store.check([done]):
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
    answers = all_gather_object((failure, {} if dist.get_rank() else capture()))
    failed = [text for text, _ in answers if text]
    if failed and not failure:
        raise RuntimeError(f"rank0_first: the rank that goes first failed ({'; '.join(failed)})")
    return answers[0][1]


def all_gather_object(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's picklable value, in rank order. For small things outside the training step."""
    if not several():
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _reduce(tensor: torch.Tensor, op: Reduction) -> None:
    if op == "mean" and not tensor.is_floating_point():
        raise TypeError(f"a mean over ranks needs a floating-point tensor, got {tensor.dtype}")
    if not several():
        return
    # Sum and divide is right on every backend and torch; AVG is not (gloo before 2.11).
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM if op == "mean" else _OPS[op])
    if op == "mean":
        tensor.div_(dist.get_world_size())


def _check(op: str) -> None:
    if op not in ("sum", "mean", "min", "max"):
        raise ValueError(f"unknown reduction {op!r}: use 'sum', 'mean', 'min' or 'max'")
