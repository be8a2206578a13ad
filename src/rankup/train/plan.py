"""Which samples belong to which step, micro-batch and rank, as functions of the place in a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ..data.orders import Ordering
from ..runtime.order import Window
from ..runtime.shard import part
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
        first: number of the first of the micro-batches, where these are a share of the step's.
    """

    number: int
    samples: torch.Tensor
    micro_batches: list[range]
    after: Place
    first: int = 0

    def drawn(self, micro_batches: range) -> torch.Tensor:
        """The samples of a run of micro-batches."""
        if not micro_batches:
            return self.samples[:0]
        first, last = self.micro_batches[micro_batches[0]], self.micro_batches[micro_batches[-1]]
        return self.samples[first.start : last.stop]

    def dealt(self, rank: int, world_size: int) -> range:
        """The micro-batches that `rank` computes, possibly none."""
        return part(len(self.micro_batches), rank, world_size)

    def share(self, rank: int, world_size: int) -> Step:
        """That part of the step that `rank` computes, possibly nothing, as a step by itself."""
        mine = self.dealt(rank, world_size)
        samples = self.drawn(mine)
        size = len(self.micro_batches[0])
        return replace(
            self, samples=samples, micro_batches=micro_batches(len(samples), size), first=mine.start
        )

    def rounds(self, rank: int, world_size: int) -> list[tuple[int, float]]:
        """The micro-batches that `rank` goes through, each with its weight, 1 or 0.

        Where a forward is a collective all ranks have to go through it equally often: one that was
        dealt fewer than another goes through its last one (or the first of all) once more, with
        weight zero.
        """
        mine = self.dealt(rank, world_size)
        most = max(len(self.dealt(other, world_size)) for other in range(world_size))
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
        window = self.window()
        while place.step < last:
            if place.consumed >= self.n:
                place = Place(place.step, place.epoch + 1, 0)
            stop = min(place.consumed + self.global_batch, self.n)
            samples = torch.as_tensor(window.slice(place.epoch, place.consumed, stop))
            place = Place(place.step + 1, place.epoch, stop)
            yield Step(place.step, samples, micro_batches(len(samples), self.micro_batch), place)

    def place(self, step: int) -> Place:
        """The place behind step number `step`, in a run of whole steps from its beginning."""
        if step == 0:
            return Place()
        epoch, before = divmod(step - 1, self.steps_per_epoch)
        return Place(step, epoch, min((before + 1) * self.global_batch, self.n))

    def window(self) -> Window | Ordering:
        """What gives the samples of a run that come one batch after another."""
        return self.order or Window(self.n, self.seed)

    def at(self, number: int, window: Window | Ordering) -> Step:
        """Step number `number`, from 1, without those before it; `window` is of this run."""
        after = self.place(number)
        start = (number - 1) % self.steps_per_epoch * self.global_batch
        samples = torch.as_tensor(window.slice(after.epoch, start, after.consumed))
        return Step(number, samples, micro_batches(len(samples), self.micro_batch), after)


def micro_batches(size: int, micro_batch: int) -> list[range]:
    """Cut `size` positions into micro-batches; the last may be short."""
    return [range(start, min(start + micro_batch, size)) for start in range(0, size, micro_batch)]
