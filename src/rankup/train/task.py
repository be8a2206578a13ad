"""What a recipe gives the loop: data, a model, a loss. Nothing in it knows of ranks."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from ..data.batches import BatchRequest
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
    """A split that makes its batches ahead of the loop, and anew for each epoch."""

    def ahead(self, requests: Iterator[BatchRequest]) -> Iterator[tuple[BatchRequest, Batch]]:
        """The batches of these requests in their order, some of them made ahead.

        A batch depends on seed, epoch and samples of its request, and on nothing else.
        """
        ...

    def once(self, request: BatchRequest) -> Batch:
        """One batch, now."""
        ...


def read_ahead(
    read: Callable[[BatchRequest], Batch], requests: Iterator[BatchRequest]
) -> Iterator[tuple[BatchRequest, Batch]]:
    """Yield each request with its batch, in order; one thread reads `_AHEAD` further ones.

    On a machine with a GPU the batches lie in pinned memory. An error of `read` comes up where its
    batch is asked for. Closing ends the thread; one that hangs in a read is left behind after a
    while, and does not keep the process from ending, so that an error is told all the same.
    """
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    asked: queue.SimpleQueue[tuple[BatchRequest, Future[Batch]] | None] = queue.SimpleQueue()

    def fetch(request: BatchRequest) -> Batch:
        if device is None:
            return read(request)
        # A thread begins on the first GPU, where it would open a context of this process.
        torch.cuda.set_device(device)
        return tuple(tensor.pin_memory() for tensor in read(request))

    def work() -> None:
        while (job := asked.get()) is not None:
            request, batch = job
            if not batch.set_running_or_notify_cancel():
                continue
            try:
                batch.set_result(fetch(request))
            except BaseException as error:  # raised where the batch is asked for
                batch.set_exception(error)

    # No ThreadPoolExecutor: Python waits for its threads without bound as the process ends.
    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    waiting: deque[tuple[BatchRequest, Future[Batch]]] = deque()
    try:
        for request in requests:
            waiting.append((request, Future()))
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


class Task(Protocol):
    """A model, how to optimize it, and what to train and evaluate it on."""

    unit: str  # what a target is, in the plural: "tokens", "samples"

    @property
    def train(self) -> Split: ...
    @property
    def valid(self) -> Split | Named: ...
    @property
    def test(self) -> Split: ...

    def build_model(self) -> nn.Module: ...

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Scalar: the loss summed over the valid targets of the batch.

        Under `--precision bf16` a model may give 16 bits: what is summed is to be cast before.
        """
        ...

    def flops_per_unit(self, model: nn.Module) -> float:
        """Floating-point operations that training on one target takes, for the MFU."""
        ...


@runtime_checkable
class Ordered(Protocol):
    """A task whose epochs have an order of their own: by length, say."""

    def order(self) -> Ordering | None:
        """Of the training samples, made for the seed and the global batch of the run; None: the
        run's own random one."""
        ...


@runtime_checkable
class Loaded(Protocol):
    """A task that may begin with weights from files, of which each rank reads its own part."""

    def gives(self, name: str) -> bool:
        """Return whether `values` fills the parameter of that name: none is drawn for it."""
        ...

    def values(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill what it gives of this rank's parameters, by their names in the model.

        Call on all ranks. Parameters may be DTensors.
        """
        ...


class Feed:
    """The batches of a split.

    What was announced by `begin` is made ahead; whatever else is asked for is made when it is asked
    for. Both give the same batch.

    Args:
        seed: that augmentation is drawn from.
    """

    def __init__(self, split: Split, seed: int) -> None:
        self._split, self._seed = split, seed
        self._made: Iterator[tuple[BatchRequest, Batch]] = iter(())
        self._next: tuple[BatchRequest, Batch] | None = None

    def begin(self, coming: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Say which (epoch, samples) will be asked for, in this order; nothing is made yet."""
        self.close()
        if isinstance(self._split, Ahead):
            self._made = self._split.ahead(self._request(*one) for one in coming)

    def batch(self, epoch: int, samples: torch.Tensor) -> Batch:
        """The batch of these samples, int64 of shape (n,), in that epoch."""
        if self._next is None:
            self._next = next(self._made, None)
        if self._next is None:
            return self.once(epoch, samples)
        request, batch = self._next
        if request.epoch != epoch or not np.array_equal(request.samples, samples.numpy()):
            return self.once(epoch, samples)
        self._next = None
        return batch

    def once(self, epoch: int, samples: torch.Tensor) -> Batch:
        """The same batch, made now; what comes next stays what it was."""
        if not isinstance(self._split, Ahead):
            return self._split.batch(samples)
        return self._split.once(self._request(epoch, samples))

    def close(self) -> None:
        """Leave what is being made ahead."""
        if isinstance(self._made, Generator):
            self._made.close()
        self._made, self._next = iter(()), None

    def _request(self, epoch: int, samples: torch.Tensor) -> BatchRequest:
        return BatchRequest.of(samples.numpy(), self._seed, epoch)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; to a GPU through pinned memory, without waiting for the copy."""
    if device.type == "cpu":
        return batch
    return tuple(_moved(tensor, device) for tensor in batch)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.is_cuda:  # decoded there
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
