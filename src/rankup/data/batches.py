"""`Batches`: a Loader's batches as a sampler, for DataLoaders of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Sampler

from .cut import Cut
from .draw import Draw
from .orders import Ordering


class Batches(Sampler[Any]):
    """This rank's part of each global batch of an order, for torch's DataLoader and torchdata's.

        sampler = Batches(orders.Shuffled(len(photos), seed=1), global_batch=1024)
        loader = StatefulDataLoader(photos, batch_sampler=sampler, num_workers=8)

    The same batches as a `Loader` makes: each is a `Draw`, which says the epoch too, so that a
    `PackedDataset` augments as there. Each start of iteration after an epoch runs the next one.
    In torchdata's `StatefulDataLoader` the place is that of the batches that were handed out; in
    torch's own DataLoader the sampler is ahead of them by what is prefetched. A Loader also tells
    `wrap` how many samples each rank was dealt: with Batches do so by `rankup.count(n)`, where
    ranks get parts of different sizes.

    The DataLoader has to hand the `Draw` to the data set itself. Around one, torch's Subset and
    random_split make a list of it, which says no epoch: call `set_epoch` of the data set, or take
    its `subset(…)` or `rankup.data.random_split`.

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
        self._cut = Cut.of(
            order, global_batch, seed, rank=rank, world_size=world_size, train=train,
            drop_last=drop_last,
        )  # fmt: skip
        self.order, self.global_batch, self.seed = order, global_batch, self._cut.seed
        self._place = self._cut.place()

    @property
    def epoch(self) -> int:
        """The epoch that runs, or that the next iteration runs."""
        return self._place.epoch

    def __len__(self) -> int:
        """Batches of this rank in an epoch; in training the same on every rank."""
        return len(self._cut)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs."""
        self._place.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch that was taken."""
        return self._place.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place, at any number of ranks.

        Raises:
            UserError: it is that of other data, or of a run with another seed, global batch
                or order.
        """
        self._place.load_state_dict(state)

    def __iter__(self) -> Iterator[Draw]:
        place = self._place
        if place.fresh and self._cut.ended(place.consumed):
            # torchdata does not start an iterator at the end of an epoch, but asks for the next.
            place.begin()
            return iter(())
        return self._run()

    def _run(self) -> Iterator[Draw]:
        # Changes nothing until its first batch is asked for: torch makes iterators that it never
        # starts.
        self._place.begin()
        for draw in self._cut.draws(self._place.epoch, self._place.consumed):
            self._place.consumed = draw.stop
            yield draw
