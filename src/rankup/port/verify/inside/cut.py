"""Sizes and samples of data sets that are cut, and samplers of their indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from math import gcd
from typing import Any

from ..protocol import FULL, PAIR, PAIRS, SHORT


def at_most(length: int, most: int = SHORT, batch: int | None = None) -> int:
    """The largest size up to both that neither 2 nor 3 divides: no rank's part fits evenly.

    Args:
        batch: that of the data set, where it is known: of `PAIRS` the last one has two samples for
            each of three ranks.
    """
    size = min(length, most)
    if most == PAIRS and length >= PAIR:
        return size if not batch or batch <= PAIR else PAIR + (size - PAIR) // batch * batch
    while most != FULL and size > 1 and gcd(size, 6) > 1:
        size -= 1
    return size


def scale(item: Any, factor: float) -> Any:
    """The sample with its first floating point array scaled.

    Samples that are all of one scale would hide a mean that weighs wrongly. The factor is at most
    1, so that what lies in a range still does.
    """
    import numpy as np
    import torch

    if isinstance(item, torch.Tensor):
        fits = item.is_floating_point() and item.dim() and not item.is_sparse
        return item.detach() * factor if fits and type(item) is torch.Tensor else item
    if isinstance(item, np.ndarray):
        return (item * factor).astype(item.dtype) if item.ndim and item.dtype.kind == "f" else item
    if type(item) in (list, tuple):
        for place, value in enumerate(item):
            scaled = scale(value, factor)
            if scaled is not value:
                return type(item)([*item[:place], scaled, *item[place + 1 :]])
    if type(item) is dict:
        for key, value in item.items():
            scaled = scale(value, factor)
            if scaled is not value:
                return {**item, key: scaled}
    return item


def spread(place: Any, size: int, whole: int) -> Any:
    """Indices over all of a data set, whose first samples may all be of one class."""
    return place * whole // size if isinstance(place, int) and 0 <= place < size else place


def is_index(index: Any) -> bool:
    return not isinstance(index, str | slice | list | tuple) and hasattr(index, "__index__")


def shorten_samplers(data: Any, most: int, *, in_order: bool) -> None:
    """Cut samplers with indices of their own.

    Args:
        in_order: so that all runs see the same batches; else shuffled, each index as often.
    """
    import torch

    def order(sampler: Any, length: int) -> Sequence[int]:
        if in_order:
            return range(length)  # which may be 10 ** 10, to be drawn from without an end
        generator = sampler.generator
        if generator is None:  # as torch does
            number = int(torch.empty((), dtype=torch.int64).random_().item())
            generator = torch.Generator().manual_seed(number)
        return [int(place) for place in torch.randperm(length, generator=generator)]

    def numbers(sampler: Any) -> Iterator[int]:
        size, most = len(sampler.data_source), sampler.num_samples
        if in_order or most <= size:
            return (place % size for place in order(sampler, most))
        passes = (order(sampler, size) for _ in range(0, most, size))
        return islice(chain.from_iterable(passes), most)

    def subset(sampler: Any) -> Iterator[int]:
        places = order(sampler, len(sampler))
        return iter([int(sampler.indices[place]) for place in places])

    data.RandomSampler.__iter__ = numbers
    data.SubsetRandomSampler.__iter__ = subset
    data.SubsetRandomSampler.__len__ = lambda one: at_most(len(one.indices), most)
    data.WeightedRandomSampler.__len__ = lambda one: at_most(
        min(one.num_samples, len(one.weights)), most
    )
    data.WeightedRandomSampler.__iter__ = lambda one: iter(range(len(one)))
    if not in_order:
        return
    sharded = data.DistributedSampler.__iter__

    def distributed(sampler: Any) -> Iterator[int]:
        shuffle, sampler.shuffle = sampler.shuffle, False
        try:
            return iter(list(sharded(sampler)))
        finally:
            sampler.shuffle = shuffle

    data.DistributedSampler.__iter__ = distributed


def shuffles(sampler: Any) -> bool:
    name = type(sampler).__name__
    if name in ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"):
        return True
    return name == "DistributedSampler" and bool(sampler.shuffle)
