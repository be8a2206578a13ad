"""Which samples belong to which step, micro-batch and rank, as functions of the place in a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..runtime.order import Window
from ..runtime.shard import part
from .place import Place


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

    def dealt(self, rank: int, world_size: int) -> range:
        """The micro-batches that `rank` computes, possibly none."""
        return part(len(self.micro_batches), rank, world_size)


@dataclass(frozen=True)
class Plan:
    """The run as a sequence of steps over `n` samples."""

    n: int
    global_batch: int
    micro_batch: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.n // self.global_batch)

    def steps(self, place: Place, last: int) -> Iterator[Step]:
        """The steps after `place` up to number `last`. The last batch of an epoch is short."""
        window = Window(self.n, self.seed)
        while place.step < last:
            if place.consumed >= self.n:
                place = Place(place.step, place.epoch + 1, 0)
            stop = min(place.consumed + self.global_batch, self.n)
            samples = window.slice(place.epoch, place.consumed, stop)
            place = Place(place.step + 1, place.epoch, stop)
            yield Step(place.step, samples, micro_batches(len(samples), self.micro_batch), place)


def micro_batches(size: int, micro_batch: int) -> list[range]:
    """Cut `size` positions into micro-batches; the last may be short."""
    return [range(start, min(start + micro_batch, size)) for start in range(0, size, micro_batch)]
