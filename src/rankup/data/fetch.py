"""A batch as it is made: by which function of a request, and in which memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from .bad import Bad
from .batches import BatchRequest
from .index import Int64s
from .transforms import check_made, key_of, seed_process

_REUSED = 1 << 16  # bytes of a batch from which on its memory is used again


@dataclass
class Made:
    """A batch, as a worker has made it.

    Attributes:
        inputs: a tensor of all samples, or a list of what the transform made of each.
        labels: int64 (k,); None where the data has none.
        count: samples that count, see `BatchRequest`.
        bad: samples that were left out.
        drew: the transform has drawn random numbers.
    """

    inputs: Any
    labels: Int64s | None
    count: int
    bad: list[Bad] = field(default_factory=list)
    drew: bool = False

    def items(self) -> list[Any]:
        """Return `(input, label)` of each sample, or the inputs alone."""
        if self.labels is None:
            return list(self.inputs)
        return list(zip(self.inputs, self.labels.tolist(), strict=True))

    def batch(self) -> Any:
        """Return what a loop is given: `(inputs, labels)`, or the inputs alone."""
        return self.inputs if self.labels is None else (self.inputs, torch.from_numpy(self.labels))


# A request, and what was made of it.
Answer = tuple[BatchRequest, Made]

# (shape, dtype) -> memory for a batch
Allocator = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]

# Set by an engine for what runs in it: each thread has its own.
ALLOCATOR: ContextVar[Allocator | None] = ContextVar("allocator", default=None)


# Set while a batch is put together of items: the request that they are made for, whose seed and
# epoch the `[n]` of data sets in between cannot say, and the bad samples that were met.
ASKED: ContextVar[tuple[BatchRequest, list[Bad]] | None] = ContextVar("asked", default=None)


def allocate_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An `Allocator` of page-locked memory, from which a GPU copies while it computes."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class BufferPool:
    """An `Allocator` of memory that comes back once nobody holds the batch any more.

    Fresh memory costs a page fault for every 4 KiB. Threads may share it.

    Args:
        kept: pieces that wait for their next batch, at most.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._free: list[npt.NDArray[np.uint8]] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = int(torch.Size(shape).numel()) * dtype.itemsize
        if size < _REUSED:
            return torch.empty(shape, dtype=dtype)
        try:
            memory = self._free.pop()  # in one step: other threads take from it, too
        except IndexError:
            memory = np.empty(0, np.uint8)
        if not size <= len(memory) <= 2 * size:
            memory = np.empty(size, np.uint8)
        # All views of the batch refer to this one array, so its end is the end of them all.
        whole = memory[:size]
        weakref.finalize(whole, self._back, memory).atexit = False
        return torch.from_numpy(whole).view(dtype).view(shape)

    def _back(self, memory: npt.NDArray[np.uint8]) -> None:
        if len(self._free) < self._kept:
            self._free.append(memory)


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory for a batch, where it need not be copied on its way: see `ALLOCATOR`.

    In a worker of torch's own DataLoader it is shared memory.
    """
    allocator = ALLOCATOR.get()
    if allocator is not None:
        return allocator(shape, dtype)
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    empty = torch.empty(0, dtype=dtype)
    size = int(torch.Size(shape).numel())
    storage = empty._typed_storage()._new_shared(size, device=empty.device)
    return empty.new(storage).resize_(*shape)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Fetch:
    """Makes the batch of a request; it travels to the workers.

    Args:
        collate: function of a list of items; None: `default_collate`, or what is collated already.
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        check_made("collate", self.collate)

    def __call__(self, request: BatchRequest) -> Made:
        make = getattr(self.dataset, "make", None)
        if make is None:
            return self._of_items(request)
        made: Made = make(request)
        if self.collate is not None:
            made.inputs, made.labels = self.collate(made.items()), None
        elif isinstance(made.inputs, list) and made.inputs:
            made.inputs = default_collate(made.inputs)
        return made

    def _of_items(self, request: BatchRequest) -> Made:
        key = key_of(request.seed, request.epoch)
        many = getattr(self.dataset, "__getitems__", None)
        bad: list[Bad] = []
        token = ASKED.set((request, bad))
        try:
            if many is not None:
                seed_process(key, request[0])
                items = many(list(request))
            else:
                items = [self._item(key, sample) for sample in request]
        finally:
            ASKED.reset(token)
        inputs = (self.collate or default_collate)(items)
        return Made(inputs, None, min(request.count, len(items)), bad)

    def _item(self, key: int, sample: int) -> Any:
        seed_process(key, sample)
        return self.dataset[sample]
