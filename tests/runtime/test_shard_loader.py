"""What `shard` returns: for training or evaluation, like the loader, and what it refuses."""

from __future__ import annotations

import contextlib
import gc
import io
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from rankup.runtime.deal import LEDGER
from rankup.runtime.model import wrap
from rankup.runtime.shard import ShardedLoader, shard
from rankup.runtime.world import World
from tests.pool import RankPool

from .test_shard import Numbers, _forget, _loader

# --- training or evaluation


def _guess(world: World) -> list[int]:
    """Batches that this rank gets out of 7 samples by 3, the last of which is one sample."""
    _forget()
    model = nn.Linear(1, 1)
    lengths = []

    def batches(loader: DataLoader[int]) -> None:
        lengths.append(len(list(shard(loader))))

    batches(_loader("shuffled", 5))
    batches(_loader("sequential", 5))
    wrapped = wrap(model)
    batches(_loader("sequential", 5))  # a training set in the order it has
    with torch.no_grad():
        batches(_loader("sequential", 5))
    wrapped.eval()
    batches(_loader("sequential", 5))
    batches(_loader("shuffled", 5))
    return lengths


def test_what_a_loader_is_for(ranks: RankPool) -> None:
    """Only in training does an idle rank get a stand-in; the last batch here is one sample."""
    assert ranks.run(2, _guess) == [[2, 1, 2, 1, 1, 2], [2, 2, 2, 2, 2, 2]]


def _idle(world: World) -> tuple[list[int], tuple[int, int] | None]:
    _forget()
    loader = shard(_loader("sequential", 1), train=True)
    [(batch, dealt)] = [(batch.tolist(), LEDGER.samples) for batch in loader]
    return batch, dealt


def test_an_idle_rank_gets_a_stand_in_of_weight_zero(ranks: RankPool) -> None:
    assert ranks.run(3, _idle) == [([0], (0, 1)), ([0], (0, 1)), ([0], (1, 1))]


# --- what it looks like, and what it refuses


def test_it_behaves_as_the_loader(ranks: RankPool) -> None:
    ranks.run(2, _behaves)


def _behaves(world: World) -> None:
    bare = _loader("shuffled", 14)
    loader = shard(bare)
    assert isinstance(loader, ShardedLoader)
    assert shard(loader) is loader
    assert shard(bare) is loader
    assert shard(bare, train=False) is shard(loader, train=False) is not loader
    assert len([*bare]) == 4, "the loader itself stays as on one GPU"
    assert sum(map(len, bare)) == 14
    assert len(loader) == len(bare) == 4
    assert loader.dataset is bare.dataset
    assert loader.batch_size == 4
    with pytest.raises(AttributeError):
        _ = loader.nothing_of_this_name
    for _ in range(2):  # leaving early does no harm
        next(iter(loader))
    assert len([*loader]) == 4


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_what_has_no_positions_is_refused() -> None:
    with pytest.raises(TypeError, match="map-style dataset with a batch size"):
        shard(DataLoader(Stream(), batch_size=2))
    with pytest.raises(TypeError, match="map-style dataset with a batch size"):
        shard(DataLoader(Numbers(3), batch_size=None))


class Moving(DataLoader[int]):
    """A loader that does something to each batch."""

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        return (batch + 1 for batch in DataLoader.__iter__(self))


def test_a_loader_that_iterates_in_its_own_way_is_refused() -> None:
    with pytest.raises(TypeError, match="Moving has an __iter__ of its own"):
        shard(Moving(Numbers(3), batch_size=2))


class Filtering(DataLoader[int]):
    """A loader with an argument of its own, and something to do behind the collation."""

    def __init__(self, dataset: Numbers, offset: int, **options: Any) -> None:
        self.offset = offset
        super().__init__(dataset, **options)

    def _get_iterator(self) -> Any:
        return (batch + self.offset for batch in super()._get_iterator())


class Repeating(DataLoader[int]):
    """A loader that hands out its last batch once more."""

    def _get_iterator(self) -> Any:
        batches = list(super()._get_iterator())
        return iter([*batches, batches[-1]])


def _filtered(world: World) -> list[list[int]]:
    bare = Filtering(Numbers(9), 100, batch_size=4)
    loader = shard(bare, train=True)
    assert loader.offset == 100
    found = [batch.tolist() for _ in range(2) for batch in loader]
    assert [len(batch) for batch in bare] == [4, 4, 1]
    return found


def test_a_loader_keeps_what_its_class_does(ranks: RankPool) -> None:
    whole = [[100, 101, 102, 103], [104, 105, 106, 107], [108]]
    assert ranks.run(1, _filtered) == [whole * 2]
    first, second = [[100, 101], [104, 105], [108]], [[102, 103], [106, 107], [108]]
    assert ranks.run(2, _filtered) == [first * 2, second * 2]


def _repeated(world: World) -> None:
    with pytest.raises(RuntimeError, match="a batch that its batch sampler has not drawn"):
        list(shard(Repeating(Numbers(4), batch_size=2), train=True))


def test_a_batch_from_nowhere_is_an_error(ranks: RankPool) -> None:
    ranks.run(2, _repeated)


def _forgotten(world: World) -> list[bool]:
    """Whether loader and sharded loader are gone when the script has let go of them."""
    loader = _loader("shuffled", 14)
    sharded = shard(loader)
    gone: list[weakref.ref[Any]] = [weakref.ref(loader), weakref.ref(sharded)]
    del loader, sharded
    gc.collect()
    return [one() is None for one in gone]


def test_a_loader_is_not_kept_alive(ranks: RankPool) -> None:
    assert ranks.run(1, _forgotten) == [[True, True]]


def _said_of_idle_ranks(world: World, batch_size: int) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for _ in range(2):
            for _ in shard(DataLoader(Numbers(12), batch_size=batch_size, shuffle=True)):
                pass
    return said.getvalue()


def test_idle_ranks_are_reported_once(ranks: RankPool) -> None:
    first, *others = ranks.run(4, _said_of_idle_ranks, 3)
    assert first.count("a batch of 3 for 4 ranks leaves 1 of them idle") == 1
    assert others == [""] * 3
    assert ranks.run(4, _said_of_idle_ranks, 4) == [""] * 4


def _read_alone(world: World) -> list[list[int]]:
    """Evaluation needs no partner: here rank 0 alone goes through a loader in order."""
    _forget()
    loader = shard(DataLoader(Numbers(9), sampler=SequentialSampler(Numbers(9)), batch_size=4))
    return [batch.tolist() for batch in loader] if world.rank == 0 else []


def test_sequential_reading_has_no_collective(ranks: RankPool) -> None:
    assert ranks.run(2, _read_alone) == [[[0, 1], [4, 5]], []]
