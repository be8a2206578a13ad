"""`shard(loader)`: each rank takes its part of every batch of a single-GPU DataLoader."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

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
from .deal import LEDGER, Place
from .keys import derive
from .world import setup

_BLOCK = 64  # batches that rank 0 draws at once for the others
# These draw all they need from torch before their first index; others may draw at any time.
_DRAW_AT_START = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


def part(size: int, rank: int, world_size: int) -> range:
    """Positions of a batch of `size` that belong to `rank`: contiguous, sizes differ by one."""
    return range(rank * size // world_size, (rank + 1) * size // world_size)


def rounds(batches: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    """The same samples in order, in batches that each have one for every one of `size` ranks.

    A batch too short for that goes with its neighbour. Only when there are fewer samples than ranks
    in all is there one batch that is too short.
    """
    ready: list[int] = []
    short: list[int] = []
    for batch in batches:
        short = short + batch
        if len(short) >= size:
            if ready:
                yield ready
            ready, short = short, []
    if ready or short:
        yield ready + short


def joined(batches: Iterable[list[int]], number: int) -> Iterator[list[int]]:
    """`number` batches after each other as one; the last is of what is left."""
    source = iter(batches)
    while together := list(islice(source, number)):
        yield [index for batch in together for index in batch]


def shard(
    loader: DataLoader[Any],
    *,
    train: bool | None = None,
    batch: Literal["global", "per-gpu"] = "global",
) -> ShardedLoader:
    """Deal a DataLoader's batches over the ranks; the global batches stay what they were.

    The loader's own sampler decides the order, with rank 0's random state on every rank, and each
    batch is cut by position into one part per rank. `len` stays the number of global batches.
    Nothing is padded or dropped: in evaluation a rank may get fewer batches than another, so keep
    collectives out of that loop and use `mean(total, count)` after it. In training a rank for whom
    nothing is left of a short batch gets one sample of weight zero, so that all ranks step
    together; `wrap` applies the weights. What a training loop draws from torch beside (noise,
    dropout) each rank draws by itself, rank 0 as a single process would.

    With a model from `parallelize` that is split in other ways than by copying it, the ranks that
    compute one batch together get the same part. There every forward is a collective, so that in
    evaluation too all ranks get equally many batches: one that has no sample for each goes with its
    neighbour, and of fewer samples than ranks every rank gets all, which leaves
    `mean(total, count)` exact.

    Args:
        loader: any map-style DataLoader; call on every rank.
            One that is dealt already stays as it is, but for another `train`.
        train: whether the batches are trained on. By default it is read off when iteration starts:
            with gradients on, yes for a loader that shuffles, and for another one while a wrapped
            model is in train mode. True also serves an evaluation where a forward is a collective:
            under `no_grad` all ranks then go through the batches together, and `batch_mean` and
            `batch_sum` leave out the sample of weight zero.
        batch: what the loader's batch size means: `global`, the batch of all ranks together, or
            `per-gpu`, where a global batch is one of the loader's batches for each rank, and `len`
            the number of those.

    Raises:
        TypeError: an IterableDataset, or a loader without batches of indices, has no positions to
            deal by; a DistributedSampler, or a rankup Loader, has dealt them already.
        ValueError: `batch` is neither.
    """
    if batch not in ("global", "per-gpu"):
        raise ValueError(f"shard: batch is 'global' or 'per-gpu', not {batch!r}")
    if isinstance(loader, ShardedLoader):
        return loader if train is None else loader.dealt_anew(train)
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
    return ShardedLoader(loader, train, batch)


class ShardedLoader:
    """What `shard` returns: iterates over this rank's parts, otherwise behaves as the loader."""

    def __init__(self, loader: DataLoader[Any], train: bool | None, batch: str) -> None:
        world = setup()
        assert loader.batch_sampler is not None
        self._loader, self._train = loader, train
        self._other: ShardedLoader | None = None
        self._joined = world.world_size if batch == "per-gpu" else 1
        self._parts = _Parts(
            loader.batch_sampler, world.is_root, world.world_size, train, self._joined
        )
        self._seed = _SeedWorker(loader.worker_init_fn)
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
            worker_init_fn=self._seed,
            generator=loader.generator,
            **options,
        )

    def __len__(self) -> int:
        return -(-len(self._loader) // self._joined)

    def dealt_anew(self, train: bool) -> ShardedLoader:
        """The same loader, for training or for an evaluation."""
        if train == self._train:
            return self
        if self._other is None:  # kept, so that its workers may be
            batch = "per-gpu" if self._joined > 1 else "global"
            self._other = ShardedLoader(self._loader, train, batch)
            self._other._other = self
        return self._other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        # Asked for only now: a model may have been split since the loader was made.
        place = self._parts.place = LEDGER.place()
        self._seed.rank = place.rank
        # Begun at once, as torch's: of two loaders side by side each draws from the random state
        # when it begins, and only then its first batch.
        batches = iter(self._inner)
        # An evaluation in the middle of an epoch leaves the batch at hand what it was.
        training = self._parts.training and torch.is_grad_enabled()
        return self._told(batches, self._parts.deals, place.rank, training)

    def _told(
        self, batches: Iterator[Any], deals: deque[tuple[int, int, int]], rank: int, training: bool
    ) -> Iterator[Any]:
        """The batches, each with a note of what part of it this rank has."""
        if training:
            _draw_apart(rank)
        log: list[tuple[int, int]] = []
        LEDGER.log = log
        try:
            for batch in batches:
                number, *dealt = deals.popleft()
                LEDGER.dealt = (dealt[0], dealt[1])
                log.append((number, dealt[0]))
                if training:
                    LEDGER.samples, LEDGER.counted = LEDGER.dealt, None
                yield batch
        finally:
            if training:  # what follows may not have been dealt by anybody
                LEDGER.samples = None


def _draw_apart(rank: int) -> None:
    """Let this part of a batch have noise, dropout and the like of its own.

    A script seeds all ranks alike, so that they begin with one model; drawn on like that, N parts
    of a batch would have the same noise. Rank 0 draws what a single process would, the others go on
    from a seed of their own, until the script sets another.
    """
    if rank and torch.initial_seed() != LEDGER.seed:
        LEDGER.seed = derive(torch.initial_seed(), "rank", rank)
        torch.manual_seed(LEDGER.seed)


class _Parts(BatchSampler):
    """This rank's part of each batch of indices, with a note of what was dealt."""

    def __init__(
        self, source: Any, root: bool, world_size: int, train: bool | None, joined: int
    ) -> None:
        self._source = source
        self._joined = joined
        self._sampler = getattr(source, "sampler", source)
        self._root = root
        self._world_size = world_size
        self._train = train
        self.place = Place(0, 1)
        self.deals: deque[tuple[int, int, int]] = deque()
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

    def _deal(self, deals: deque[tuple[int, int, int]], training: bool) -> Iterator[list[int]]:
        place, batches = self.place, self._batches()
        if self._joined > 1:
            batches = joined(batches, self._joined)
        if place.together and not training:
            batches = rounds(batches, place.size)
        for number, batch in enumerate(batches):
            mine = [batch[i] for i in part(len(batch), place.rank, place.size)]
            if place.together and not training and len(batch) < place.size:
                mine = batch
            if mine or training:
                deals.append((number, len(mine), len(batch)))
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
        # Rank 0 goes on from where the sampler left its stream, as a single process would, and so
        # do ranks that compute the same as it.
        if self.place.rank != 0:
            torch.set_rng_state(own)
        if first is not None:
            yield first
            yield from batches

    def _drawn_by_root(self) -> Iterator[list[int]]:
        """Rank 0 draws and tells the others: nobody knows what this sampler draws from."""
        batches = iter(self._source) if self._root else iter(())
        alike = self.place.size < self._world_size  # some compute the same as rank 0
        while True:
            block = [list(batch) for batch in islice(batches, _BLOCK)]
            block, state = broadcast((block, torch.get_rng_state() if alike else None))
            if state is not None and self.place.rank == 0:
                torch.set_rng_state(state)
            if not block:
                return
            yield from block


class _SeedWorker:
    """Gives the DataLoader workers of each rank random numbers of their own."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self.rank = 0
        self._then = then

    def __call__(self, worker: int) -> None:
        if self.rank:
            seed = derive(torch.initial_seed(), "rank", self.rank)
            torch.manual_seed(seed)
            random.seed(seed)
        if self._then is not None:
            self._then(worker)
