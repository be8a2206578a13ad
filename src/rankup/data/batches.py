"""`Batches`: each rank's part of every global batch of an order, and the place in the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.utils.data import Sampler

from ..base.errors import UserError
from ..runtime.context import CONTEXT
from ..runtime.shard import part
from ..runtime.world import launched
from .errors import require_positive
from .index import Int64s
from .orders import Ordering

_ORDERING = ("n", "samples", "seed", "identity", "global_batch", "slice")
# What has to be equal for a place to mean the same samples, in words.
_IDENTITY = {
    "version": "version",
    "seed": "seed",
    "samples": "a number of samples of",
    "global_batch": "a global batch of",
    "order": "the order",
}


@dataclass(frozen=True)
class BatchRequest:
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

    @classmethod
    def of(cls, samples: Int64s, seed: int = 0, epoch: int = 0) -> BatchRequest:
        """Return a request of which all samples count."""
        return cls(samples, seed, epoch, len(samples), len(samples), 0)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> int:
        return int(self.samples[row])

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples.tolist())


class Place:
    """The place in a run of what makes batches: which samples this rank's next ones have.

    Each global batch is cut by position into one part per rank. In training a rank for whom nothing
    is left of a short batch gets a sample that does not count, so that all ranks step together; in
    evaluation it gets no batch.

    Attributes:
        order, global_batch, seed, train, drop_last, rank, world_size: see `Loader`.
        epoch: the one that runs, or that the next iteration runs.
        consumed: positions of it that are done, on all ranks.

    Raises:
        UserError: values that make no sense together.
    """

    def __init__(
        self,
        order: Ordering,
        global_batch: int,
        *,
        seed: int | None = None,
        train: bool = True,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        require_positive(global_batch=global_batch)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise UserError(f"seed={seed!r} is no whole number")
        missing = [name for name in _ORDERING if not hasattr(order, name)]
        if missing:
            raise UserError(
                f"{order!r} is no order, it has no {', '.join(missing)}: see rankup.data.orders"
            )
        if order.global_batch not in (None, global_batch):
            raise UserError(
                f"this order is made for a global batch of {order.global_batch}, and here it is "
                f"{global_batch}"
            )
        if None not in (seed, order.seed) and seed != order.seed:
            raise UserError(
                f"seed={seed}, and this order has the seed {order.seed}: a run has one. Without "
                f"seed=… it is that of the order"
            )
        self.rank, self.world_size = _ranks(rank, world_size)
        if rank is None and not train and not drop_last:
            _refuse_uneven(order.n, global_batch)
        self.order, self.global_batch = order, global_batch
        self.seed: int = next((one for one in (seed, order.seed) if one is not None), 0)
        self.train, self.drop_last = train, drop_last
        self.epoch = self.consumed = 0
        self._fresh = True  # nobody has gone on from here yet

    def __len__(self) -> int:
        """Batches of this rank in an epoch; in training the same on every rank."""
        whole, rest = divmod(self.order.n, self.global_batch)
        last = 0 if self.drop_last else rest
        return whole * self._gets(self.global_batch) + self._gets(last)

    def _gets(self, size: int) -> bool:
        """Return True where this rank gets a batch of a global batch of a size."""
        return size > 0 and (self.train or len(part(size, self.rank, self.world_size)) > 0)

    def requests(self) -> Iterator[BatchRequest]:
        """Return this rank's batches of the epoch from here on; changes nothing."""
        n, epoch, consumed = self.order.n, self.epoch, self.consumed
        while consumed < n:
            stop = min(consumed + self.global_batch, n)
            total = stop - consumed
            if self.drop_last and total < self.global_batch:
                return
            samples = self.order.slice(epoch, consumed, stop)
            mine = part(total, self.rank, self.world_size)
            consumed = stop
            own = samples[mine.start : mine.stop]
            if len(own):
                yield BatchRequest(own, self.seed, epoch, len(own), total, stop)
            elif self.train:
                yield BatchRequest(samples[:1].copy(), self.seed, epoch, 0, total, stop)

    def begin(self) -> None:
        """At the start of a loop: go on from here, or with the next epoch after an earlier loop."""
        if not self._fresh:
            self.epoch, self.consumed = self.epoch + 1, 0
        self._fresh = False

    def go_to(self, epoch: int, consumed: int = 0) -> None:
        """Let the next loop begin here."""
        self.epoch, self.consumed, self._fresh = epoch, consumed, True

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next `for` runs; where it is that of a resume, from there."""
        self.go_to(epoch, self.consumed if self._fresh and epoch == self.epoch else 0)

    def state_dict(self) -> dict[str, Any]:
        """The place in the run: integers, and the order in words; equal on all ranks.

        After the last batch it is the end of the epoch, until the loop has ended: going on there
        gives a loop without batches, so that what follows it (validation) is not left out.
        """
        return {**self._identity(), "epoch": self.epoch, "consumed": self.consumed}

    def _identity(self) -> dict[str, int | str]:
        return {
            "version": 1,
            "seed": self.seed,
            "samples": self.order.n,
            "global_batch": self.global_batch,
            "order": self.order.identity,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place of `state_dict`, at any number of ranks and workers.

        Raises:
            UserError: it is that of other data, or of a run with another seed, global batch
                or order.
        """
        identity = self._identity()
        for name, what in _IDENTITY.items():
            if state.get(name) != identity[name]:
                raise UserError(
                    f"this place in a run is one of {what} {state.get(name)}, and here it is "
                    f"{identity[name]}: the batches would be others"
                )
        epoch, consumed, n = state.get("epoch"), state.get("consumed"), self.order.n
        if (
            type(epoch) is not int
            or type(consumed) is not int
            or epoch < 0
            or not 0 <= consumed <= n
            or (consumed != n and consumed % self.global_batch)
        ):
            raise UserError(f"this is no place in a run, no batch ends there: {dict(state)}")
        self.go_to(epoch, consumed)


class Batches(Place, Sampler[Any]):
    """This rank's part of each global batch of an order, for torch's DataLoader and torchdata's.

        sampler = Batches(orders.Shuffled(len(photos), seed=1), global_batch=1024)
        loader = StatefulDataLoader(photos, batch_sampler=sampler, num_workers=8)

    The same batches as a `Loader` makes: each is a `BatchRequest`, which says the epoch too, so
    that a `PackedDataset` augments as there. Each start of iteration after an epoch runs the next
    one. In torchdata's `StatefulDataLoader` the place is that of the batches that were handed out;
    in torch's own DataLoader the sampler is ahead of them by what is prefetched. A Loader also
    tells `wrap` how many samples each rank has: with Batches do so by `rankup.count(n)`, where
    ranks get parts of different sizes.

    The DataLoader has to hand the `BatchRequest` to the data set itself. Around one, torch's Subset
    and random_split make a list of it, which says no epoch: call `set_epoch` of the data set, or
    take its `subset(…)`.

    Args:
        order: see `rankup.data.orders`; made for the length of the data set, which only the
            DataLoader knows.
        global_batch: samples of all ranks together.
        seed: of augmentation; by default that of the order, or 0. Two that differ are refused.
        train: whether ranks have to step together, see `Loader`.
        drop_last: leave out a batch that is not full.
        rank, world_size: by default those of this process.

    Raises:
        UserError: values that make no sense together.
    """

    def __iter__(self) -> Iterator[BatchRequest]:
        left = self.order.n - self.consumed
        if self._fresh and (left <= 0 or (self.drop_last and left < self.global_batch)):
            # torchdata does not start an iterator at the end of an epoch, but asks for the next.
            self.begin()
            return iter(())
        return self._run()

    def _run(self) -> Iterator[BatchRequest]:
        # Changes nothing until its first batch is asked for: torch makes iterators that it never
        # starts.
        self.begin()
        for request in self.requests():
            self.consumed = request.stop
            yield request


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None or world_size is None:
        if (rank is None) != (world_size is None):
            raise UserError("give rank and world_size together, or neither")
        if not dist.is_initialized():  # whoever makes batches does not start a process group
            alone = launched()
            return alone.rank, alone.world_size
        # Ranks that share a model's forward, as under tensor parallelism, get the same samples.
        mine = CONTEXT.place()
        return mine.rank, mine.size
    if not 0 <= rank < world_size:
        raise UserError(f"rank={rank} is none of {world_size} ranks: they are counted from 0")
    return rank, world_size


def _refuse_uneven(n: int, global_batch: int) -> None:
    """Refuse what would leave ranks waiting for one with a batch less, in a collective forward."""
    if not dist.is_initialized():
        return
    mine, least = CONTEXT.place(), min(n % global_batch or global_batch, global_batch)
    if mine.together and n and least < mine.size:
        raise UserError(
            f"in evaluation the last {least} of {n} samples do not reach all {mine.size} parts of "
            f"the ranks, which have to go through the split model together; use "
            f"rankup.shard(DataLoader(...), train=False), which joins a short batch to the one "
            f"before it, or another batch size"
        )
