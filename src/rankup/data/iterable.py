"""`PackedIterable`: whole batches of this rank, for torch's own DataLoader."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..base.errors import UserError
from . import tally
from .ahead import along
from .cut import Cut
from .draw import Draw
from .making import BadSample, Fetch, handed_out
from .orders import Blocks, Ordering, Sequential
from .place import Place
from .reader import OnBad, PackedDataset
from .transforms import Transform

_WORKERS = 1024  # of a DataLoader, at most
_HERE = _WORKERS  # the slot of a loop in this process itself


class PackedIterable(IterableDataset[Any]):
    """The batches of this rank, in block-shuffled order, out of torch's own DataLoader.

        photos = PackedIterable("imagenet.h5", "train", transform, global_batch=1024, seed=1)
        loader = DataLoader(photos, batch_size=None, num_workers=8)
        for epoch in range(photos.epoch, 90):
            photos.set_epoch(epoch)
            for images, labels in loader:
                ...

    For data much larger than memory: see `orders.Blocks`. Each worker makes every so-manieth batch,
    so that what comes out is the run's order with any number of them; samples, order and
    augmentation depend on (seed, epoch, position) alone, not on ranks or workers. A thread of each
    worker reads the coming windows ahead, each worker a part of them.

    Prefer `rankup.data.Loader(dataset, global_batch, shuffle=orders.Blocks(…))`: it gives the same
    batches, and does what cannot be done from behind torch's DataLoader: it counts what the loop
    has taken, goes on to the next epoch by itself, and weighs gradients by what each rank was
    dealt. `DataLoader(PackedDataset(…), batch_sampler=Batches(orders.Blocks(…)))` gives them, too,
    but reads nothing ahead. This class is for what wants an IterableDataset, and for data on a
    parallel file system behind torch's DataLoader. Here `set_epoch` comes before each `for`, as for
    a DistributedSampler (in training an epoch that was run to its end is refused a second time);
    `state_dict(batches)` is told what the loop has taken; and a batch that is not full, or cannot
    be cut into equal parts, needs `rankup.count(len(labels))` before `backward` for an exact mean.

    torchdata's StatefulDataLoader saves and loads the places of the workers, with the same number
    of them and of ranks.

    Args:
        path, split, transform, field, labels, on_bad, verify: see `PackedDataset`.
        global_batch: samples of all ranks together.
        seed: of the order and of augmentation; by default that of `order`, or 0. Two that differ
            are refused.
        order: made for the length of the split; by default blocks by bytes (`Blocks.of`), as stored
            where `train` is False.
        train: whether ranks have to step together.
        drop_last: leave out a batch that is not full.
        collate: function of a list of items, where the inputs are of different shapes.
        rank, world_size: by default those of this process.

    Raises:
        UserError: as `PackedDataset`; values that make no sense together; in training a last batch
            of fewer samples than there are ranks, since the loop could not know which rank's do not
            count.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str | None = None,
        transform: Transform | None = None,
        *,
        global_batch: int,
        seed: int | None = None,
        order: Ordering | None = None,
        train: bool = True,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        field: str | tuple[str, ...] | None = None,
        labels: bool | None = None,
        on_bad: OnBad = "raise",
        verify: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.dataset = PackedDataset(
            path, split, transform, field=field, labels=labels, seed=seed or 0, on_bad=on_bad,
            verify=verify,
        )  # fmt: skip
        if order is None:
            count = len(self.dataset)
            order = (
                Blocks.of(self.dataset.lengths, seed or 0, global_batch)
                if train
                else Sequential(count)
            )
        self._cut = Cut.of(
            order, global_batch, seed, rank=rank, world_size=world_size, train=train,
            drop_last=drop_last, samples=len(self.dataset),
        )  # fmt: skip
        self.order, self.global_batch, self.seed = order, global_batch, self._cut.seed
        self.train = train
        self._rank, self._world_size = self._cut.rank, self._cut.world_size
        rest = order.n % global_batch
        if train and not drop_last and 0 < rest < self._world_size:
            raise UserError(
                f"the last batch has {rest} samples for {self._world_size} ranks, and the loop "
                "could not know which rank's do not count: take drop_last=True, another global "
                "batch, or rankup.data.Loader, which weighs them"
            )
        self._fetch = Fetch(self.dataset, collate)
        # What main process and workers tell each other, without a lock: only the main process
        # writes the place, and of the slots each worker only its own. A version is a place that was
        # set, so that what was begun or ended belongs to it.
        self._now = torch.zeros(3, dtype=torch.int64).share_memory_()  # version, epoch, consumed
        self._now[0] = 1
        self._begun = torch.zeros(_WORKERS + 1, dtype=torch.int64).share_memory_()
        self._ended = torch.zeros(_WORKERS + 1, dtype=torch.int64).share_memory_()
        self._consumed = 0  # by the loop of this process, where there is one
        # Where the loop of this worker began (epoch, consumed), and its batches since then.
        self._from, self._taken = (0, 0), 0
        self._resumed: Mapping[str, Any] | None = None  # this worker's, from StatefulDataLoader

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` runs, or that runs."""
        return int(self._now[1])

    def __len__(self) -> int:
        """Batches of this rank in an epoch; in training the same on every rank."""
        return len(self._cut)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `for`; where it is that of a resume, from there."""
        version, now, consumed = self._now.tolist()
        begun = bool((self._begun == version).any())
        self._set(epoch, consumed if epoch == now and not begun else 0)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The place in the run, equal on all ranks, and that of a `Loader`.

        Args:
            batches: how many this `for` has taken, from the place where it began. Workers are
                ahead of the loop, so that with them only the loop knows; without, it may be left
                away.

        Raises:
            UserError: it has to be given, or is more than there are.
        """
        place, (version, epoch, consumed) = self._place(), self._now.tolist()
        info = get_worker_info()
        if info is not None:  # torchdata asks its workers
            own = {"worker": info.id, "workers": info.num_workers, "taken": self._taken}
            if self._resumed is not None:  # it has not begun yet
                return dict(self._resumed)
            place.set(*self._from)
            return {**place.state_dict(), **own}
        if batches is not None:
            end = consumed + batches * self.global_batch
            if batches < 0 or end >= self.order.n + self.global_batch:
                raise UserError(
                    f"a loop from position {consumed} of {self.order.n} on cannot have taken "
                    f"{batches} batches of {self.global_batch}"
                )
            place.set(epoch, min(end, self.order.n))
        elif bool((self._begun[:_WORKERS] == version).any()):
            raise UserError(
                "DataLoader's workers are ahead of the loop, and only the loop knows how many "
                "batches it has taken: state_dict(batches=…) of this `for`; rankup.data.Loader "
                "counts by itself"
            )
        else:
            here = int(self._begun[_HERE]) == version
            place.set(epoch, self._consumed if here else consumed)
        return place.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place of `state_dict`, of any number of ranks and workers, or of a `Loader`.

        Raises:
            UserError: it is that of other data, or of a run with another seed, global batch
                or order.
        """
        place = self._place()
        place.load_state_dict(state)
        info = get_worker_info()
        if info is None:
            if "worker" in state:
                raise UserError(
                    "this is the place of a worker of StatefulDataLoader, and no place in a run"
                )
            self._set(place.epoch, place.consumed)
            return
        if (state.get("worker"), state.get("workers")) != (info.id, info.num_workers):
            raise UserError(
                f"this is the place of worker {state.get('worker')} of {state.get('workers')}, and "
                f"this is worker {info.id} of {info.num_workers}: StatefulDataLoader goes on with "
                "the same number of workers, a place of state_dict(batches) with any"
            )
        version, epoch, _ = self._now.tolist()
        if version > 1 and epoch != place.epoch:
            raise UserError(
                f"StatefulDataLoader's place is in epoch {place.epoch}, and set_epoch was called "
                f"with {epoch}: begin with the epoch that was interrupted"
            )
        self._resumed = state

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if worker >= _WORKERS:
            raise UserError(f"a DataLoader of {workers} workers: {_WORKERS} at most")
        slot = _HERE if info is None else worker
        version, epoch, consumed = self._now.tolist()
        skipped = 0
        if self._resumed is not None:
            epoch, consumed = self._resumed["epoch"], self._resumed["consumed"]
            skipped, self._resumed = self._resumed["taken"], None
        elif self.train and int(self._ended[slot]) == version:
            raise UserError(
                f"epoch {epoch} was run to its end, and would be run again: call set_epoch before "
                "each `for`"
            )
        self._begun[slot] = version
        self._consumed, self._from, self._taken = consumed, (epoch, consumed), skipped
        return self._batches(slot, version, epoch, consumed, worker, workers, skipped)

    def _batches(
        self,
        slot: int,
        version: int,
        epoch: int,
        consumed: int,
        worker: int,
        workers: int,
        skipped: int,
    ) -> Iterator[Any]:
        counted = tally.Tally(self.order.n, self._world_size * workers)
        every = self._draws(epoch, consumed, worker, workers)
        for draw in islice(every, worker + skipped * workers, None, workers):
            made = self._fetch(draw)
            counted.add(made.bad)
            if self.train and not made.count:
                raise BadSample(
                    f"all samples of a batch were dropped, the last is {made.bad[-1].name}: "
                    f"{made.bad[-1].why}. on_bad='replace', or rankup.data.Loader, would go on"
                )
            self._consumed, self._taken = draw.stop, self._taken + 1
            if made.count:
                yield handed_out(made)
        self.dataset.check()
        self._ended[slot] = version
        line = tally.report([counted.summary], self.order.n, epoch, self.dataset.on_bad)
        if line:
            where = f"rank {self._rank}, worker {worker}"
            print(f"rankup data: {where}: {line}", file=sys.stderr, flush=True)

    def _draws(self, epoch: int, consumed: int, worker: int, workers: int) -> Iterator[Draw]:
        found = self._cut.draws(epoch, consumed)
        return along(
            found,
            self.order,
            self.dataset,
            rank=self._rank,
            world_size=self._world_size,
            share=worker,
            shares=workers,
        )

    def _place(self) -> Place:
        return self._cut.place()

    def _set(self, epoch: int, consumed: int) -> None:
        self._now.copy_(torch.tensor([int(self._now[0]) + 1, epoch, consumed]))
