"""`shard(loader)`: each rank takes its part of every batch of a single-GPU DataLoader."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .collectives import broadcast
from .deal import LEDGER
from .keys import derive
from .world import setup

_BLOCK = 64  # batches that rank 0 draws at once for the others
# These draw all they need from torch before their first index; others may draw at any time.
_DRAW_AT_START = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


def part(size: int, rank: int, world_size: int) -> range:
    """Positions of a batch of `size` that belong to `rank`: contiguous, sizes differ by one."""
    return range(rank * size // world_size, (rank + 1) * size // world_size)


def shard(loader: DataLoader[Any], *, train: bool | None = None) -> ShardedLoader:
    """Deal a DataLoader's batches over the ranks; the global batches stay what they were.

    The loader's own sampler decides the order, with rank 0's random state on every rank, and each
    batch is cut by position into one part per rank. `len` stays the number of global batches.
    Nothing is padded or dropped: in evaluation a rank may get fewer batches than another, so keep
    collectives out of that loop and use `mean(total, count)` after it. In training a rank for whom
    nothing is left of a short batch gets one sample of weight zero, so that all ranks step
    together; `wrap` applies the weights.

    Args:
        loader: any map-style DataLoader; call on every rank.
        train: whether the batches are trained on. By default it is read off when iteration starts:
            with gradients on, yes for a loader that shuffles, and for another one while a wrapped
            model is in train mode.

    Raises:
        TypeError: an IterableDataset, or a loader without batches of indices, has no positions to
            deal by; a DistributedSampler, or a rankup Loader, has dealt them already.
    """
    if isinstance(loader, ShardedLoader):
        return loader
    if not hasattr(loader, "batch_sampler"):
        raise TypeError(
            f"shard deals the batches of a torch DataLoader, not of {type(loader).__name__}; a "
            f"rankup.data.Loader has dealt its own already: iterate over it as it is"
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise TypeError(
            "shard deals batches by position and needs a map-style dataset with a batch size; "
            "for an IterableDataset let the dataset itself read every world_size-th item"
        )
    if isinstance(getattr(loader.batch_sampler, "sampler", None), DistributedSampler):
        raise TypeError("shard deals the batches itself: take the DistributedSampler out")
    return ShardedLoader(loader, train)


class ShardedLoader:
    """What `shard` returns: iterates over this rank's parts, otherwise behaves as the loader."""

    def __init__(self, loader: DataLoader[Any], train: bool | None) -> None:
        world = setup()
        assert loader.batch_sampler is not None
        self._loader = loader
        self._parts = _Parts(loader.batch_sampler, world.rank, world.world_size, train)
        options: dict[str, Any] = {}
        if loader.num_workers:
            options["prefetch_factor"] = loader.prefetch_factor
            options["persistent_workers"] = loader.persistent_workers
            options["multiprocessing_context"] = loader.multiprocessing_context
        self._inner: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=self._parts,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=_SeedWorker(world.rank, loader.worker_init_fn),
            generator=loader.generator,
            **options,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._inner)
        deals, training = self._parts.deals, self._parts.training
        try:
            for batch in batches:
                dealt = deals.popleft()
                if training:
                    LEDGER.samples = dealt
                yield batch
        finally:
            if training:  # what follows may not have been dealt by anybody
                LEDGER.samples = None


class _Parts(BatchSampler):
    """This rank's part of each batch of indices, with a note of what was dealt."""

    def __init__(self, source: Any, rank: int, world_size: int, train: bool | None) -> None:
        self._source = source
        self._sampler = getattr(source, "sampler", source)
        self._rank = rank
        self._world_size = world_size
        self._train = train
        self.deals: deque[tuple[int, int]] = deque()
        self.training = bool(train)

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[list[int]]:
        self.deals = deque()
        self.training = self._trains()
        return self._deal(self.deals, self.training)

    def _trains(self) -> bool:
        if self._train is not None:
            return self._train
        if not torch.is_grad_enabled():
            return False
        if isinstance(self._sampler, RandomSampler):
            return True
        if not LEDGER.models:
            return not isinstance(self._sampler, SequentialSampler)
        return any(model.training for model in LEDGER.models)

    def _deal(self, deals: deque[tuple[int, int]], training: bool) -> Iterator[list[int]]:
        for batch in self._batches():
            mine = [batch[i] for i in part(len(batch), self._rank, self._world_size)]
            if mine or training:
                deals.append((len(mine), len(batch)))
                yield mine or [batch[0]]

    def _batches(self) -> Iterator[list[int]]:
        """The source's batches, the same ones on every rank."""
        if self._world_size == 1 or type(self._sampler) is SequentialSampler:
            yield from self._source
        elif type(self._source) is BatchSampler and type(self._sampler) in _DRAW_AT_START:
            yield from self._drawn_alike()
        else:
            yield from self._drawn_by_root()

    def _drawn_alike(self) -> Iterator[list[int]]:
        """Every rank draws from rank 0's random state."""
        state = broadcast(torch.get_rng_state())
        generator = getattr(self._sampler, "generator", None)
        if generator is not None:
            generator.set_state(broadcast(generator.get_state()))
        own = torch.get_rng_state()
        torch.set_rng_state(state)
        batches = iter(self._source)
        first = next(batches, None)
        # Rank 0 goes on from where the sampler left its stream, as a single process would.
        if self._rank != 0:
            torch.set_rng_state(own)
        if first is not None:
            yield first
            yield from batches

    def _drawn_by_root(self) -> Iterator[list[int]]:
        """Rank 0 draws and tells the others: nobody knows what this sampler draws from."""
        batches = iter(self._source) if self._rank == 0 else iter(())
        while block := broadcast([list(batch) for batch in islice(batches, _BLOCK)]):
            yield from block


class _SeedWorker:
    """Gives the DataLoader workers of each rank random numbers of their own."""

    def __init__(self, rank: int, then: Callable[[int], None] | None) -> None:
        self._rank = rank
        self._then = then

    def __call__(self, worker: int) -> None:
        if self._rank:
            seed = derive(torch.initial_seed(), "rank", self._rank)
            torch.manual_seed(seed)
            random.seed(seed)
        if self._then is not None:
            self._then(worker)
