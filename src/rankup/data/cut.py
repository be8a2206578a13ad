"""An epoch, cut into global batches, and each of these into one part per rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ..base.errors import UserError
from ..runtime.deal import LEDGER
from ..runtime.shard import part
from ..runtime.world import launched
from .draw import Draw, draws
from .orders import Ordering
from .place import Place

_ORDERING = ("n", "samples", "seed", "identity", "global_batch", "slice")


@dataclass(frozen=True)
class Cut:
    """What the batches of one rank follow from: the same for a Loader and for its stand-ins.

    Attributes:
        order: which sample stands at which position of an epoch.
        global_batch: samples of all ranks together.
        seed: of order and augmentation.
        rank, world_size: whose part it is.
        train: whether ranks have to step together.
        drop_last: leave out a batch that is not full.
    """

    order: Ordering
    global_batch: int
    seed: int
    rank: int
    world_size: int
    train: bool
    drop_last: bool

    @classmethod
    def of(
        cls,
        order: Ordering,
        global_batch: int,
        seed: int | None,
        *,
        rank: int | None,
        world_size: int | None,
        train: bool,
        drop_last: bool,
        samples: int | None = None,
    ) -> Cut:
        """The same, checked.

        Args:
            seed: by default the order's own, or 0.
            rank, world_size: by default those of this process.
            samples: of the data set.

        Raises:
            UserError: values that make no sense together.
        """
        for name, number in (("global_batch", global_batch), ("seed", seed or 0)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise UserError(f"{name}={number!r} is no whole number")
        if global_batch < 1:
            raise UserError(f"global_batch={global_batch}: a batch has at least one sample")
        _check(order)
        if order.global_batch not in (None, global_batch):
            raise UserError(
                f"this order is made for a global batch of {order.global_batch}, and here it is "
                f"{global_batch}"
            )
        if samples is not None and order.samples != samples:
            raise UserError(
                f"this order is made for a data set of {order.samples} samples, and this one has "
                f"{samples}: make the order of len(dataset), also where that is a subset"
            )
        if None not in (seed, order.seed) and seed != order.seed:
            raise UserError(
                f"seed={seed}, and this order has the seed {order.seed}: a run has one. Without "
                f"seed=… it is that of the order"
            )
        chosen = next((one for one in (seed, order.seed) if one is not None), 0)
        where = _ranks(rank, world_size)
        if rank is None and not train and not drop_last:
            _refuse_uneven(order.n, global_batch)
        return cls(order, global_batch, chosen, *where, train, drop_last)

    def __len__(self) -> int:
        """Batches of this rank in an epoch; in training the same on every rank."""
        whole, rest = divmod(self.order.n, self.global_batch)
        last = 0 if self.drop_last else rest
        return whole * self._gets(self.global_batch) + self._gets(last)

    def draws(self, epoch: int, consumed: int) -> Iterator[Draw]:
        """This rank's batches of an epoch, from a position on."""
        return draws(
            self.order,
            self.global_batch,
            self.seed,
            epoch,
            consumed,
            rank=self.rank,
            world_size=self.world_size,
            train=self.train,
            drop_last=self.drop_last,
        )

    def ended(self, consumed: int) -> bool:
        """Whether no batch of an epoch is left from a position on."""
        left = self.order.n - consumed
        return left <= 0 or (self.drop_last and left < self.global_batch)

    def place(self) -> Place:
        """The beginning of the run."""
        return Place(self.seed, self.order.n, self.global_batch, self.order.identity)

    def _gets(self, size: int) -> bool:
        """Whether this rank gets a batch of a global batch of a size."""
        return size > 0 and (self.train or len(part(size, self.rank, self.world_size)) > 0)


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None or world_size is None:
        if (rank is None) != (world_size is None):
            raise UserError("give rank and world_size together, or neither")
        if not dist.is_initialized():  # whoever makes batches does not start a process group
            alone = launched()
            return alone.rank, alone.world_size
        # Ranks that share a model's forward, as under tensor parallelism, get the same samples.
        mine = LEDGER.place()
        return mine.rank, mine.size
    if not 0 <= rank < world_size:
        raise UserError(f"rank={rank} is none of {world_size} ranks: they are counted from 0")
    return rank, world_size


def _refuse_uneven(n: int, global_batch: int) -> None:
    """Where a forward is a collective, a rank with a batch less would leave the others waiting."""
    if not dist.is_initialized():
        return
    mine, least = LEDGER.place(), min(n % global_batch or global_batch, global_batch)
    if mine.together and n and least < mine.size:
        raise UserError(
            f"in evaluation the last {least} of {n} samples do not reach all {mine.size} parts of "
            f"the ranks, which have to go through the split model together; use "
            f"rankup.shard(DataLoader(...), train=False), which joins a short batch to the one "
            f"before it, or another batch size"
        )


def _check(order: Any) -> None:
    missing = [name for name in _ORDERING if not hasattr(order, name)]
    if missing:
        raise UserError(
            f"{order!r} is no order, it has no {', '.join(missing)}: see rankup.data.orders"
        )
