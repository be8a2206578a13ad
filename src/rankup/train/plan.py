"""Which samples belong to which step, micro-batch and rank, as functions of the place in a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..data.orders import Ordering
from ..runtime.order import Window
from .options import TrainOptions
from .task import Task


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
        window = self.order or Window(self.n, self.seed)
        while place.step < last:
            if place.consumed >= self.n:
                place = Place(place.step, place.epoch + 1, 0)
            stop = min(place.consumed + self.global_batch, self.n)
            samples = torch.as_tensor(window.slice(place.epoch, place.consumed, stop))
            place = Place(place.step + 1, place.epoch, stop)
            yield Step(place.step, samples, micro_batches(len(samples), self.micro_batch), place)


def micro_batches(size: int, micro_batch: int) -> list[range]:
    """Cut `size` positions into micro-batches; the last may be short."""
    return [range(start, min(start + micro_batch, size)) for start in range(0, size, micro_batch)]
