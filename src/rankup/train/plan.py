"""What belongs to which step, as functions of the place in a run: samples, their micro-batches and
ranks, the learning rate; and the batches that are read for them."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from ..data.orders import Ordering
from ..runtime.order import Order
from .options import TrainOptions
from .task import Ahead, Batch, Split, Task

_AHEAD = 2  # batches
_PATIENCE = 5.0  # seconds; a batch is read in much less
FLOOR = 0.1  # the cosine ends at this part of the peak
# A slice of the order costs about a millisecond whatever its length, so it is drawn in blocks.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Place:
    """A place in a run.

    Attributes:
        step: optimizer steps done.
        epoch: the one the last of them belongs to, from 0.
        consumed: samples of that epoch that are done.
    """

    step: int = 0
    epoch: int = 0
    consumed: int = 0


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        number: counted from 1.
        samples: the global batch, int64 of shape (n,).
        micro_batches: the cuts of it, by position.
        after: the place in the run once this step is done.
    """

    number: int
    samples: torch.Tensor
    micro_batches: list[range]
    after: Place

    def samples_of(self, micro_batches: range) -> torch.Tensor:
        """Return the samples of a run of micro-batches."""
        if not micro_batches:
            return self.samples[:0]
        first, last = self.micro_batches[micro_batches[0]], self.micro_batches[micro_batches[-1]]
        return self.samples[first.start : last.stop]

    def part(self, rank: int, ranks: int) -> range:
        """Return the micro-batches that `rank` computes, possibly none: sizes differ by one."""
        number = len(self.micro_batches)
        return range(rank * number // ranks, (rank + 1) * number // ranks)

    def weighted(self, rank: int, ranks: int, together: bool) -> list[tuple[int, float]]:
        """Return the micro-batches that `rank` goes through, at least one, with weights 1 or 0.

        A rank without work joins the exchange of gradients with weight zero. Where a forward is a
        collective (`together`) all ranks go through it equally often: one that has fewer than
        another goes through its last micro-batch, or the first of all, once more.
        """
        mine = self.part(rank, ranks)
        most = -(-len(self.micro_batches) // ranks) if together else 1
        spare = mine[-1] if mine else 0
        return [(index, 1.0) for index in mine] + [(spare, 0.0)] * (most - len(mine))


@dataclass(frozen=True)
class Plan:
    """The run as a sequence of steps over `n` samples.

    Attributes:
        order: of the samples of an epoch; None for a random one.
    """

    n: int
    global_batch: int
    micro_batch: int
    seed: int
    order: Ordering | None = None

    @classmethod
    def of(cls, task: Task, options: TrainOptions) -> Plan:
        """That of a task."""
        order = task.order()
        sizes = options.global_batch, options.micro_batch, options.seed
        return cls(len(task.train) if order is None else order.n, *sizes, order)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.n // self.global_batch)

    def steps(self, place: Place, last: int) -> Iterator[Step]:
        """The steps after `place` up to number `last`. The last batch of an epoch is short."""
        epoch, first, block = -1, 0, torch.empty(0, dtype=torch.int64)
        while place.step < last:
            if place.consumed >= self.n:
                place = Place(place.step, place.epoch + 1, 0)
            stop = min(place.consumed + self.global_batch, self.n)
            if self.order is not None:
                samples = torch.as_tensor(self.order.slice(place.epoch, place.consumed, stop))
            else:
                if place.epoch != epoch or stop > first + len(block):
                    epoch, first = place.epoch, place.consumed
                    positions = torch.arange(first, min(self.n, max(stop, first + _BLOCK)))
                    block = Order(self.n, self.seed, epoch)(positions)
                samples = block[place.consumed - first : stop - first]
            place = Place(place.step + 1, place.epoch, stop)
            yield Step(place.step, samples, micro_batches(len(samples), self.micro_batch), place)


def micro_batches(size: int, micro_batch: int) -> list[range]:
    """Cut `size` positions into micro-batches; the last may be short."""
    return [range(start, min(start + micro_batch, size)) for start in range(0, size, micro_batch)]


def rate(step: int, last: int, options: TrainOptions) -> float:
    """The learning rate of step `step` (from 1) of a run of `last` steps."""
    if options.schedule == "wsd":
        return warmup_stable_decay(step, last, options.lr, options.warmup, options.decay)
    return learning_rate(step, last, options.lr, options.warmup, options.schedule)


def learning_rate(step: int, last: int, peak: float, warmup: int, schedule: str) -> float:
    """Learning rate of step `step` (from 1) of a run of `last` steps.

    Linear from `peak / warmup` to `peak`, then a half cosine down to `FLOOR * peak` (Loshchilov and
    Hutter, "SGDR", 2017, a single cycle), or constant.
    """
    if step <= warmup:
        return peak * step / warmup
    if schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, last - warmup)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


def warmup_stable_decay(step: int, last: int, peak: float, warmup: int, decay: float) -> float:
    """Learning rate that rises, stays at its peak, and falls (Hu et al., "MiniCPM", 2024).

    It falls linearly, and would be 0 one step after the last. Where a short run makes the two lines
    cross, the lower one counts.

    Args:
        decay: part of the run that it falls in; from 1 on, steps.
    """
    falling = max(1, round(decay if decay >= 1 else decay * last))
    return peak * min(1.0, step / max(1, warmup), (last + 1 - step) / falling)


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
