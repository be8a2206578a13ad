"""What a worker is asked to make: the samples of one rank's part of one global batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..runtime.shard import part
from .index import Int64s
from .orders import Ordering


@dataclass(frozen=True)
class Draw:
    """A batch of one rank, before it is made. It behaves as a sequence of sample numbers.

    Attributes:
        samples: int64 (k,), numbers in the data set.
        seed, epoch: with a sample's number, what its augmentation is drawn from.
        count: samples that count: `k`, or 0 where one is there only so that this rank has a batch.
        total: samples of the global batch.
        stop: positions of the epoch that are done with it.
    """

    samples: Int64s
    seed: int
    epoch: int
    count: int
    total: int
    stop: int

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> int:
        return int(self.samples[row])

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples.tolist())


def draws(
    order: Ordering,
    global_batch: int,
    seed: int,
    epoch: int,
    consumed: int,
    *,
    rank: int,
    world_size: int,
    train: bool,
    drop_last: bool = False,
) -> Iterator[Draw]:
    """This rank's batches of an epoch, from position `consumed` on.

    Each global batch is cut by position into one part per rank. In training a rank for whom nothing
    is left of a short batch gets a sample that does not count, so that all ranks step together; in
    evaluation it gets no batch.
    """
    n = order.n
    while consumed < n:
        stop = min(consumed + global_batch, n)
        if drop_last and stop - consumed < global_batch:
            return
        total = stop - consumed
        samples = order.slice(epoch, consumed, stop)
        mine = part(total, rank, world_size)
        consumed = stop
        own = samples[mine.start : mine.stop]
        if len(own) or train:
            yield Draw(own if len(own) else samples[:1].copy(), seed, epoch, len(own), total, stop)
