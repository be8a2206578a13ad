"""What a recipe gives the loop: data, a model, a loss. Nothing in it knows of ranks."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from ..data.orders import Ordering

Batch = tuple[torch.Tensor, ...]
_AHEAD = 2  # batches
_PATIENCE = 5.0  # seconds; a batch is read in much less


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
    batch is asked for. Closing ends the thread; one that hangs in a read is left behind after a
    while, and does not keep the process from ending, so that an error is told all the same.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    asked: queue.SimpleQueue[tuple[torch.Tensor, Future[Batch]] | None] = queue.SimpleQueue()

    def fetch(samples: torch.Tensor) -> Batch:
        if device is None:
            return read(samples)
        # A thread begins on the first GPU, where it would open a context of this process.
        torch.cuda.set_device(device)
        return tuple(tensor.pin_memory() for tensor in read(samples))

    def work() -> None:
        while (job := asked.get()) is not None:
            samples, batch = job
            if not batch.set_running_or_notify_cancel():
                continue
            try:
                batch.set_result(fetch(samples))
            except BaseException as error:  # raised where the batch is asked for
                batch.set_exception(error)

    # No ThreadPoolExecutor: Python waits for its threads without bound as the process ends.
    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    waiting: deque[tuple[torch.Tensor, Future[Batch]]] = deque()
    try:
        for samples in coming:
            waiting.append((samples, Future()))
            asked.put(waiting[-1])
            if len(waiting) > _AHEAD:
                first, batch = waiting.popleft()
                yield first, batch.result()
        while waiting:
            first, batch = waiting.popleft()
            yield first, batch.result()
    finally:
        for _, batch in waiting:
            batch.cancel()
        asked.put(None)
        thread.join(_PATIENCE)


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
