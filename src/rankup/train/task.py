"""What a recipe gives the loop: data, a model, a loss. Nothing in it knows of ranks."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from ..data.orders import Ordering

Batch = tuple[torch.Tensor, ...]
_AHEAD = 2  # batches


class Split(Protocol):
    """Samples numbered from 0, e.g. the training part of a data set."""

    def __len__(self) -> int: ...

    def count(self, samples: torch.Tensor) -> int:
        """Valid targets in these samples (tokens, or the samples themselves), without reading."""
        ...

    def batch(self, samples: torch.Tensor) -> Batch:
        """The samples as CPU tensors, first dimension `len(samples)`."""
        ...


@dataclass(frozen=True)
class Named:
    """Several splits by name, each evaluated by itself; together they are all their samples."""

    parts: Mapping[str, Split]


@runtime_checkable
class Ahead(Protocol):
    """A split that makes its batches ahead of the loop."""

    def ahead(self, coming: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, Batch]]:
        """Samples and their batches in order, some of them made ahead, as `batch` makes them."""
        ...


def read_ahead(
    read: Callable[[torch.Tensor], Batch], coming: Iterable[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, Batch]]:
    """Yield samples with their batch, in order; one thread reads `_AHEAD` further ones.

    On a machine with a GPU the batches lie in pinned memory. An error of `read` comes up where its
    batch is asked for. Closing ends the thread.
    """
    gpu = torch.cuda.is_available()

    def fetch(samples: torch.Tensor) -> Batch:
        batch = read(samples)
        return tuple(tensor.pin_memory() for tensor in batch) if gpu else batch

    # A thread begins on the first GPU, where it would open a context of this process.
    enter = functools.partial(torch.cuda.set_device, torch.cuda.current_device()) if gpu else None
    thread = ThreadPoolExecutor(1, "read-ahead", enter)
    waiting: deque[tuple[torch.Tensor, Future[Batch]]] = deque()
    try:
        for samples in coming:
            waiting.append((samples, thread.submit(fetch, samples)))
            if len(waiting) > _AHEAD:
                first, batch = waiting.popleft()
                yield first, batch.result()
        while waiting:
            first, batch = waiting.popleft()
            yield first, batch.result()
    finally:
        thread.shutdown(cancel_futures=True)


class Task(ABC):
    """A model, how to optimize it, and what to train and evaluate it on."""

    unit: str  # what a target is, in the plural: "tokens", "samples"
    train: Split
    valid: Split | Named
    test: Split

    @abstractmethod
    def build_model(self) -> nn.Module: ...

    @abstractmethod
    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Scalar: the loss summed over the valid targets of the batch.

        Under `--precision bf16` a model may give 16 bits: what is summed is to be cast before.
        """

    @abstractmethod
    def flops_per_unit(self, model: nn.Module) -> float:
        """Floating-point operations that training on one target takes, for the MFU."""

    def order(self) -> Ordering | None:
        """Of the training samples of an epoch, for the run's seed and global batch; None: the run's
        own random one."""
        return None

    def gives(self, name: str) -> bool:
        """Return whether `values` fills the parameter of that name: none is drawn for it."""
        return False

    def values(self, tensors: Mapping[str, torch.Tensor]) -> None:  # noqa: B027
        """Fill what it gives of this rank's parameters, by their names in the model.

        Call on all ranks. Parameters may be DTensors.
        """


class Feed:
    """The batches of a split.

    What was announced by `begin` is made ahead; whatever else is asked for is made when it is asked
    for. Both give the same batch.
    """

    def __init__(self, split: Split) -> None:
        self._split = split
        self._made: Iterator[tuple[torch.Tensor, Batch]] = iter(())
        self._next: tuple[torch.Tensor, Batch] | None = None

    def begin(self, coming: Iterable[torch.Tensor]) -> None:
        """Say which samples will be asked for, in this order; nothing is made yet."""
        self.close()
        if isinstance(self._split, Ahead):
            self._made = self._split.ahead(coming)

    def batch(self, samples: torch.Tensor) -> Batch:
        """The batch of these samples, int64 of shape (n,)."""
        if self._next is None:
            self._next = next(self._made, None)
        if self._next is None or not torch.equal(self._next[0], samples):
            return self._split.batch(samples)
        batch, self._next = self._next[1], None
        return batch

    def close(self) -> None:
        """Leave what is being made ahead."""
        if isinstance(self._made, Generator):
            self._made.close()
        self._made, self._next = iter(()), None


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; to a GPU through pinned memory, without waiting for the copy."""
    if device.type == "cpu":
        return batch
    return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in batch)
