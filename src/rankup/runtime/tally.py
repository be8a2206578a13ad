"""The numbers a script counts, over all ranks: in the training loop, in and after an evaluation.

In training all ranks step together, so that `batch_mean` and `batch_sum` may be collectives. In an
evaluation a rank may have fewer batches than another: there a rank adds up sums and counts by
itself, and `total` or `gather` after the loop puts them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import torch

from .collectives import all_gather_object, all_reduce
from .context import CONTEXT
from .log import print_once
from .random_state import STREAMS
from .world import rank_and_size, several


def batch_mean(value: torch.Tensor | float) -> Any:
    """The mean over the whole batch, where each rank has the mean over its own part of it.

    A collective, for the training loop. Weighed as the gradient is: by what `shard` or `deal` gave
    this rank of the batch, or by the units given to `count`.

    Args:
        value: a number, or a tensor of any shape, of which a detached copy is returned.
    """
    if not several():
        return value.detach().clone() if isinstance(value, torch.Tensor) else value
    weight = CONTEXT.weight()
    if isinstance(value, torch.Tensor):
        mine = value.detach().double() * weight if weight else torch.zeros_like(value).double()
        weights = torch.tensor(weight, dtype=torch.float64, device=value.device)
        both = all_reduce(torch.cat([mine.flatten(), weights.reshape(1)]))
        return (both[:-1] / both[-1]).reshape(value.shape).to(value.dtype)
    pair = torch.tensor([float(value) * weight if weight else 0.0, weight], dtype=torch.float64)
    total, weights = all_reduce(pair).tolist()
    return total / weights if weights else math.nan


def batch_sum(value: torch.Tensor | float) -> Any:
    """The sum over the whole batch, where each rank has the sum over its own part of it.

    A collective, for the training loop. A rank that has nothing of a batch, and computes on a
    stand-in sample, adds nothing.

    Args:
        value: a number, which keeps its type, or a tensor, of which a detached copy is returned.
    """
    if not several():
        return value.detach().clone() if isinstance(value, torch.Tensor) else value
    counts = CONTEXT.weight() > 0
    if isinstance(value, torch.Tensor):
        mine = value.detach().clone() if counts else torch.zeros_like(value)
        return all_reduce(mine.long() if mine.dtype == torch.bool else mine)
    total = all_reduce(float(value) if counts else 0.0)
    return int(total) if isinstance(value, int) else total


def total(*values: Any) -> Any:
    """Sums over all ranks, of what each has counted by itself; each value keeps its type.

        correct, seen = rankup.total(correct, seen)

    A collective, after the evaluation loop.

    Args:
        values: numbers, tensors, lists of them (one entry per batch, added up entry by entry), or
            dictionaries of them. A rank that had no batch may still have the number it began with.

    Returns:
        The sum, or a tuple of them where there is more than one value.

    Raises:
        TypeError: a value of another kind.
    """
    mine = tuple(_sendable(value) for value in values)
    ranks = all_gather_object(mine)
    sums = tuple(
        _like(values[i], _add([rank[i] for rank in ranks])) if len(ranks) > 1 else values[i]
        for i in range(len(values))
    )
    return sums[0] if len(sums) == 1 else sums


def gather(values: Any) -> Any:
    """All ranks' entries in the order in which one process would have made them.

    A collective, after a loop over a loader from `shard`.

    Args:
        values: a list with an entry per batch or per sample of the last loop, or a tensor with a
            row per sample. With another number of entries: rank after rank.
    """
    if not several():
        return values
    ranks = all_gather_object((_sendable(values), tuple(CONTEXT.log)))
    pieces = [
        (number, rank, piece)
        for rank, (mine, log) in enumerate(ranks)
        for number, piece in _cut(mine, log)
    ]
    ordered = [piece for _, _, piece in sorted(pieces, key=lambda item: item[:2])]
    if isinstance(values, torch.Tensor):
        return torch.cat(ordered).to(values.device) if ordered else values
    return [entry for piece in ordered for entry in piece]


def _cut(values: Any, log: tuple[tuple[int, int], ...]) -> list[tuple[int, Any]]:
    """What belongs to each batch, with the batch's number."""
    rows = len(values)
    if not isinstance(values, torch.Tensor) and rows == len(log):
        return [(number, values[i : i + 1]) for i, (number, _) in enumerate(log)]
    if rows == sum(size for _, size in log):
        cut, start = [], 0
        for number, size in log:
            cut.append((number, values[start : start + size]))
            start += size
        return cut
    return [(0, values)] if rows else []


def _sendable(value: Any) -> Any:
    """The same on the CPU; numbers and tensors at the bottom."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _sendable(item) for key, item in value.items()}
    return value


def _add(parts: list[Any]) -> Any:
    if any(isinstance(part, dict) for part in parts):
        keys = dict.fromkeys(key for part in parts for key in part)
        return {key: _add([part[key] for part in parts if key in part]) for key in keys}
    if any(isinstance(part, list) for part in parts):
        return [_add(list(entries)) for entries in zip_longest(*parts, fillvalue=0)]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    for part in parts:
        if not isinstance(part, torch.Tensor) and not hasattr(part, "__add__"):
            raise TypeError(
                f"total adds numbers, tensors, lists and dicts, not {type(part).__name__}"
            )
    if tensors and tensors[0].is_floating_point():
        whole: Any = sum(p.double() if isinstance(p, torch.Tensor) else p for p in parts)
        return whole.to(tensors[0].dtype)
    return sum(parts)


def _like(own: Any, value: Any) -> Any:
    """A sum on the device where this rank's own value was."""
    if isinstance(value, torch.Tensor):
        here = "cuda" if torch.cuda.is_available() else "cpu"  # where this rank computes
        return value.to(own.device if isinstance(own, torch.Tensor) else here)
    if isinstance(value, list):
        first = own[0] if isinstance(own, list | tuple) and own else None
        made = [_like(first, item) for item in value]
        return tuple(made) if isinstance(own, tuple) else made
    if isinstance(value, dict):
        return {key: _like(own.get(key), item) for key, item in value.items()}
    return value


# --- names that ported scripts of earlier versions use; each says once what to do instead


def summed(loss: torch.Tensor) -> torch.Tensor:
    """A loss that is a sum over samples, made ready for its backward.

    `wrap` takes the mean over all samples of the ranks' mean losses. Of what this returns that mean
    is the sum over all ranks, the gradient that one process has.
    """
    print_once(
        "summed() is deprecated: write rankup.backward(loss, summed=True) in place of "
        "rankup.summed(loss).backward(); the value of `loss` is that of the whole batch then"
    )
    CONTEXT.trains()
    mine, size = CONTEXT.samples or (1, rank_and_size()[1])
    return loss if mine in (0, size) else loss * (size / mine)


def same_random() -> None:
    """Give every rank rank 0's random state, which `setup` does by itself."""
    print_once(
        "same_random() is deprecated: setup() gives all ranks rank 0's random states, and "
        "they are alike again after each pass over a training loader; remove the call"
    )
    if several():
        STREAMS.synchronize()


def share(value: Any) -> Any:
    """Return this rank's share of a mean over the batch: the shares of all ranks add up to it."""
    print_once(
        "share() is deprecated, as it takes every value for a mean over the batch: in the "
        "evaluation add up sums (`loss.item() * len(batch)`) and counts, and put them through "
        "rankup.total(...) behind the loop, or leave its loader as on one GPU"
    )
    mine, size = CONTEXT.current() or (1, 1)
    return value if mine == size else value * (mine / size)
