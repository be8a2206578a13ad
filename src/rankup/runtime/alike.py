"""What is drawn at random, the same on all ranks: the random state, and batches drawn by hand."""

from __future__ import annotations

import random
import sys
from typing import TypeVar

import torch

from .collectives import broadcast
from .deal import LEDGER
from .shard import part

T = TypeVar("T")


def same_random() -> None:
    """Give every rank rank 0's random state: Python's, NumPy's where it is loaded, and torch's.

    For a script that draws without a seed what ranks must agree on: a split of the data, the name
    of a run, a seed. Where a seed is set afterwards it does not matter.
    """
    numpy = sys.modules.get("numpy")
    mine = (random.getstate(), numpy.random.get_state() if numpy is not None else None)
    python, array = broadcast(mine)
    random.setstate(python)
    if numpy is not None and array is not None:
        numpy.random.set_state(array)
    torch.set_rng_state(broadcast(torch.get_rng_state()))


def deal(batch: T, *, dim: int = 0) -> T:
    """This rank's part of a batch that the script has drawn itself, without a DataLoader.

    Every rank draws one; rank 0's counts, and is cut by position. `wrap` applies the weights.

        x, y = rankup.deal(get_batch("train"))

    Args:
        batch: a tensor, or tuples, lists and dictionaries of them, with equally many samples. What
            is no tensor, or has no dimension, stays.
        dim: the dimension of the samples.

    Raises:
        ValueError: no tensor in it, or unequal numbers of samples.
    """
    sizes = {tensor.shape[dim] for tensor in _tensors(batch)}
    if len(sizes) != 1:
        found = f"{sorted(sizes)} samples" if sizes else "no tensor"
        raise ValueError(f"deal cuts a batch by its samples, and found {found} in it")
    size, place = sizes.pop(), LEDGER.place()
    mine = part(size, place.rank, place.size)
    LEDGER.samples = LEDGER.dealt = (len(mine), size)
    LEDGER.counted = None
    # Nothing is left for this rank: one sample, of weight zero, keeps it in step.
    return _cut(batch, mine if mine else range(1), dim, place.size > 1)


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.dim() else []
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, list | tuple | dict):
        return [tensor for item in inside for tensor in _tensors(item)]  # type: ignore[attr-defined]
    return []


def _cut(value: T, mine: range, dim: int, several: bool) -> T:
    if isinstance(value, torch.Tensor):
        if not value.dim():
            return value
        whole = broadcast(value.contiguous()) if several else value
        return whole.narrow(dim, mine.start, len(mine))  # type: ignore[return-value]
    if isinstance(value, list):
        return [_cut(item, mine, dim, several) for item in value]  # type: ignore[return-value]
    if isinstance(value, tuple):
        parts = [_cut(item, mine, dim, several) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {key: _cut(item, mine, dim, several) for key, item in value.items()}  # type: ignore[return-value]
    return value
