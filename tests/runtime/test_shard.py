"""`shard`: the batches of one process, cut by position, each sample once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from rankup.runtime.context import CONTEXT
from rankup.runtime.shard import part, shard
from rankup.runtime.world import World
from tests.pool import RankPool

from .test_random_state import may_start_processes

WORLD_SIZES = pytest.mark.parametrize("world_size", [1, 3])


class Numbers(Dataset[int]):
    """0, 1, 2 …"""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Coins(Sampler[int]):
    """A sampler that throws for every single index, torch's dice and Python's."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            yield int(torch.randint(self.n, ()))


class Growing(BatchSampler):
    """Batches of 1, 2, 3, 4 … samples, in random order."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.n).tolist()
        yield from (order[i * (i + 1) // 2 :][: i + 1] for i in range(4))


LOADERS: dict[str, Any] = {
    "sequential": lambda: {"batch_size": 4},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "drop_last": lambda: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "generator": lambda: {
        "batch_size": 4,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(torch.initial_seed()),
    },
    "subset": lambda: {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 14))},
    "weighted": lambda: {
        "batch_size": 4,
        "sampler": WeightedRandomSampler([1.0 + i for i in range(15)], 15),
    },
    "own sampler": lambda: {"batch_size": 4, "sampler": Coins(15)},
    "own batch sampler": lambda: {"batch_sampler": Growing(15)},
}


def _loader(kind: str, n: int = 15, **more: Any) -> DataLoader[int]:
    return DataLoader(Numbers(n), **LOADERS[kind](), **more)


def _forget() -> None:
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()


# --- each sample once


def _drawn_both_ways(
    world: World, sizes: range
) -> tuple[list[tuple[list[int], list[int]]], list[tuple[list[int], list[int]]]]:
    """In order, and shuffled."""
    return _drawn(world, sizes, False), _drawn(world, sizes, True)


def _drawn(world: World, sizes: range, shuffle: bool) -> list[tuple[list[int], list[int]]]:
    """Per size: what this rank sees in evaluation, and what counts of it in training."""
    _forget()
    found = []
    for n in sizes:
        loader = DataLoader(Numbers(n), batch_size=3, shuffle=shuffle)
        seen = [int(i) for batch in shard(loader, train=False) for i in batch]
        counted, steps = [], 0
        for batch in shard(loader, train=True):
            assert CONTEXT.samples is not None
            mine, everyone = CONTEXT.samples
            assert everyone == min(3, n - 3 * steps)
            assert len(batch) == max(1, mine), "a stand-in where there is nothing left"
            counted += [int(i) for i in batch[:mine]]
            steps += 1
        assert steps == len(loader) == -(-n // 3), "all ranks step together"
        found.append((seen, counted))
    return found


@WORLD_SIZES
def test_each_sample_once(ranks: RankPool, world_size: int) -> None:
    sizes = range(1, 2 * world_size * 3 + 2)
    both = ranks.run(world_size, _drawn_both_ways, sizes)
    for shuffle in (False, True):
        found = [one[shuffle] for one in both]
        for n, of_ranks in zip(sizes, zip(*found, strict=True), strict=True):
            for way in range(2):
                samples = [i for rank in of_ranks for i in rank[way]]
                assert sorted(samples) == list(range(n)), (n, way, shuffle)


def test_parts_are_contiguous_and_differ_by_one() -> None:
    for world_size in range(1, 9):
        for size in range(40):
            parts = [part(size, rank, world_size) for rank in range(world_size)]
            assert [i for one in parts for i in one] == list(range(size))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


# --- the very batches of one process


def _alone(world: World) -> None:
    for kind in LOADERS:
        for seed in range(2):
            histories = []
            for make in (lambda loader: loader, shard):
                torch.manual_seed(seed)
                loader = make(_loader(kind))
                histories.append(
                    [(batch.tolist(), float(torch.rand(()))) for _ in range(2) for batch in loader]
                )
            assert histories[0] == histories[1], kind


def test_one_rank_sees_what_a_single_process_sees(ranks: RankPool) -> None:
    """Also the draws between batches come out the same."""
    ranks.run(1, _alone)


Parts = tuple[list[list[list[int]]], list[list[int]], list[float]]


def _parts_of_each(world: World) -> dict[str, Parts]:
    return {kind: _parts(world, kind) for kind in LOADERS}


def _parts(world: World, kind: str) -> Parts:
    """Two epochs dealt, with a random state of its own on each rank, and bare; the draw after."""
    _forget()
    torch.manual_seed(7 + world.rank)
    own = torch.rand(world.rank + 1)  # and at a place of its own in it
    loader = shard(_loader(kind), train=True)
    dealt = []
    for _ in range(2):
        for batch in loader:
            assert CONTEXT.samples is not None
            dealt.append(batch[: CONTEXT.samples[0]].tolist())
    draws = [float(torch.rand(()))]
    torch.manual_seed(7)
    torch.rand(1)
    bare = _loader(kind)
    whole = [batch.tolist() for _ in range(2) for batch in bare]
    draws.append(float(torch.rand(())))
    del own
    return dealt, whole, draws


@pytest.mark.parametrize("world_size", [3])
def test_global_batches_are_those_of_one_process(ranks: RankPool, world_size: int) -> None:
    of_each = ranks.run(world_size, _parts_of_each)
    for kind in LOADERS:
        found = [of_rank[kind] for of_rank in of_each]
        whole = found[0][1]
        dealt = [
            [i for part in parts for i in part]
            for parts in zip(*(f[0] for f in found), strict=True)
        ]
        assert dealt == whole, kind
        for rank, (parts, _, _) in enumerate(found):
            for mine, batch in zip(parts, whole, strict=True):
                cut = part(len(batch), rank, world_size)
                assert mine == batch[cut.start : cut.stop], kind
        draws = found[0][2]
        assert draws[0] == draws[1], f"{kind}: rank 0 goes on drawing where one process would"


def _noise(world: World, kind: str, train: bool) -> list[list[float]]:
    """What two epochs draw beside the loader, and another after another seed was set."""
    _forget()
    found = []
    for seed in (5, None, 6):
        if seed is not None:
            torch.manual_seed(seed)
        loader = shard(_loader(kind), train=train)
        found.append([float(torch.rand(())) for _ in loader])
    return found


@pytest.mark.parametrize("kind", ["shuffled", "sequential", "weighted"])
def test_parts_of_a_batch_have_noise_of_their_own(ranks: RankPool, kind: str) -> None:
    [alone] = ranks.run(1, _noise, kind, True)
    found = ranks.run(3, _noise, kind, True)
    assert [found[0][0], found[0][2]] == [alone[0], alone[2]], "after a seed: as one process"
    draws = [draw for of_rank in found for epoch in of_rank for draw in epoch]
    assert len(set(draws)) == len(draws), "each rank and each epoch draws its own"


def test_an_evaluation_leaves_the_random_state(ranks: RankPool) -> None:
    found = ranks.run(3, _noise, "sequential", False)
    assert len({tuple(map(tuple, epochs)) for epochs in found}) == 1


# --- workers


def _with_workers(world: World, persistent: bool) -> list[tuple[list[int], tuple[int, int]]]:
    _forget()
    options = {"num_workers": 2, "multiprocessing_context": "fork"}
    found = []
    with may_start_processes():
        loader = shard(
            _loader("shuffled", 14, persistent_workers=persistent, **options), train=True
        )
        assert loader.num_workers == 2
        for _ in range(2):
            for batch in loader:
                assert CONTEXT.samples is not None
                found.append((batch.tolist(), CONTEXT.samples))
    return found


@pytest.mark.parametrize("persistent", [False, True])
def test_loader_processes_read_ahead(ranks: RankPool, persistent: bool) -> None:
    found = ranks.run(3, _with_workers, persistent)
    assert [len(one) for one in found] == [8, 8, 8]
    for epoch in (slice(0, 4), slice(4, 8)):
        steps = list(zip(*(one[epoch] for one in found), strict=True))
        samples = [i for step in steps for batch, dealt in step for i in batch[: dealt[0]]]
        assert sorted(samples) == list(range(14))
        assert [[dealt for _, dealt in step] for step in steps] == [
            *[[(1, 4), (1, 4), (2, 4)]] * 3,
            [(0, 2), (1, 2), (1, 2)],
        ]
