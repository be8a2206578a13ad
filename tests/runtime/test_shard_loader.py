"""What `shard` returns: for training or evaluation, like the loader, and what it refuses."""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from rankup.runtime.collectives import all_reduce, mean
from rankup.runtime.context import CONTEXT
from rankup.runtime.model import wrap
from rankup.runtime.random_state import STREAMS
from rankup.runtime.shard import ShardedLoader, shard
from rankup.runtime.world import World
from tests.pool import RankPool

from .test_random_state import may_start_processes
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
    assert ranks.run(2, _guess) == [[2, 1, 2, 1, 1, 1], [2, 2, 2, 2, 2, 2]]


def _graded(world: World) -> list[float]:
    """The mean over shuffled samples, evaluated with gradients on and the model in eval()."""
    means = []
    wrapped = wrap(nn.Linear(1, 1))
    wrapped.eval()
    for n in range(1, 2 * world.world_size + 2):
        _forget()
        CONTEXT.models.add(wrapped)
        total = count = 0
        for batch in shard(_loader("shuffled", n)):
            total, count = total + int(batch.sum()), count + len(batch)
        means.append(mean(total, count))
    return means


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_shuffled_evaluation_with_gradients_is_exact(ranks: RankPool, world_size: int) -> None:
    for means in ranks.run(world_size, _graded):
        assert means == [(n - 1) / 2 for n in range(1, 2 * world_size + 2)]


def _modes(world: World) -> list[list[tuple[int, bool]]]:
    """Samples that each batch weighs with, and whether random numbers are apart, by epoch."""
    _forget()
    wrapped = wrap(nn.Linear(1, 1))
    wrapped.eval()  # as an evaluation has left it
    epochs = []
    for _ in range(2):
        epoch = []
        for batch in shard(_loader("shuffled", 5)):
            wrapped.train()
            wrapped(batch.float().unsqueeze(1)).mean().backward()
            assert CONTEXT.samples is not None
            epoch.append((CONTEXT.samples[0], STREAMS.apart))
        wrapped.eval()
        for _ in shard(_loader("shuffled", 5)):
            assert not STREAMS.apart
        epochs.append(epoch)
    return epochs


def test_train_mode_may_be_set_in_the_loop(ranks: RankPool) -> None:
    one, other = ranks.run(2, _modes)
    assert one == [[(2, True), (0, True)]] * 2
    assert other == [[(2, True), (1, True)]] * 2


def _in_eval(world: World, batch_size: int, n: int, workers: int, train_first: bool) -> str:
    """Train two epochs in eval(), the first in train() if asked for; the batches of each."""
    _forget()
    model = wrap(nn.Linear(1, 1))
    more: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    numbers = DataLoader(
        Numbers(n), batch_size=batch_size, shuffle=True, num_workers=workers, **more
    )
    loader = shard(numbers)
    epochs = []
    for epoch in range(2):
        model.train(train_first and epoch == 0)
        epochs.append(0)
        try:
            with may_start_processes():
                for batch in loader:
                    model(batch.float().unsqueeze(1)).mean().backward()
                    epochs[-1] += 1
        except RuntimeError as error:
            return str(error)
        if not epochs[-1]:
            return "nothing"
    return str(epochs)


def test_training_in_eval_mode_leaves_no_rank_behind(ranks: RankPool) -> None:
    """Also of batches that workers have drawn before the first backward."""
    assert ranks.run(3, _in_eval, 4, 9, 2, False) == ["[3, 3]"] * 3


def test_training_in_eval_mode_goes_on_where_it_was_trained_before(ranks: RankPool) -> None:
    assert ranks.run(3, _in_eval, 2, 10, 0, True) == ["[5, 5]"] * 3


def test_training_in_eval_mode_on_too_small_batches_is_refused(ranks: RankPool) -> None:
    """Nobody knows of the first batch what it is for: a stand-in would spoil an evaluation."""
    idle, *others = ranks.run(3, _in_eval, 2, 10, 0, False)
    assert idle == "nothing"
    for said in others:
        assert "not each of 3 ranks has had a part of a batch of 2" in said
        assert "train=True" in said


class Endless:
    """Batches in an order of its own, nobody knows how many."""

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield [random.randrange(10), random.randrange(10)]


def _left(world: World) -> list[int]:
    """Leave an evaluation early, each rank elsewhere; what it had, and all ranks' sum."""
    _forget()
    loader = DataLoader(Numbers(10), batch_sampler=Endless())  # type: ignore[arg-type]
    had = []
    for batch in shard(loader, train=False):
        had += batch.tolist()
        if len(had) == (3 if world.is_root else 200):
            break
    assert all_reduce(1.0) == world.world_size
    return had


def test_an_evaluation_may_be_left_early_by_each_rank(ranks: RankPool) -> None:
    assert [len(had) for had in ranks.run(2, _left)] == [3, 200]


class Counting(Sampler[int]):
    """Zeros without end; how many have been drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.drawn += 1
            yield 0


def _drawn_for_one(world: World) -> int:
    _forget()
    sampler = Counting()
    for _ in shard(DataLoader(Numbers(10), batch_size=2, sampler=sampler), train=False):
        break
    return sampler.drawn


def test_an_endless_sampler_is_drawn_from_in_small_blocks(ranks: RankPool) -> None:
    assert max(ranks.run(2, _drawn_for_one)) < 10_000


def _idle(world: World) -> tuple[list[int], tuple[int, int] | None]:
    _forget()
    loader = shard(_loader("sequential", 1), train=True)
    [(batch, dealt)] = [(batch.tolist(), CONTEXT.samples) for batch in loader]
    return batch, dealt


def test_an_idle_rank_gets_a_stand_in_of_weight_zero(ranks: RankPool) -> None:
    assert ranks.run(3, _idle) == [([0], (0, 1)), ([0], (0, 1)), ([0], (1, 1))]


# --- the batch at hand


def _behind_a_pass(world: World) -> list[tuple[int, int] | None]:
    """This rank's samples and those of all, of the batch at hand."""
    _forget()
    found = []
    loader, inner = (shard(_loader("sequential", n), train=True) for n in (3, 5))
    _ = next(iter(loader))
    found.append(CONTEXT.samples)
    with torch.no_grad():
        list(shard(_loader("sequential", 7)))
    found.append(CONTEXT.samples)
    list(shard(_loader("sequential", 7), train=False))  # with gradients: nothing is left of it
    found.append(CONTEXT.samples)
    for _ in loader:
        list(inner)
        found.append(CONTEXT.samples)
        _ = next(iter(inner))
        found.append(CONTEXT.samples)
        list(shard(_loader("sequential", 7), train=False))
        found.append(CONTEXT.samples)
    return [*found, CONTEXT.samples]


def test_a_batch_stays_at_hand_behind_a_pass_left_early_and_one_within(ranks: RankPool) -> None:
    one, other = ranks.run(2, _behind_a_pass)
    assert one == [(1, 3), (1, 3), None, (1, 3), (2, 4), (1, 3), None]
    assert other == [(2, 3), (2, 3), None, (2, 3), (2, 4), (2, 3), None]


# --- what it looks like, and what it refuses


def test_it_behaves_as_the_loader(ranks: RankPool) -> None:
    ranks.run(2, _behaves)


def _behaves(world: World) -> None:
    bare = _loader("shuffled", 14)
    loader = shard(bare)
    assert isinstance(loader, ShardedLoader)
    assert shard(loader) is loader
    assert shard(loader, train=False) is not loader
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


def _forgotten(world: World) -> None:
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
    gc.disable()
    try:
        with may_start_processes():
            loader = DataLoader(Numbers(8), batch_size=4, persistent_workers=True, **options)
            for _ in range(2):
                assert len([*shard(loader, train=True)]) == 2
                assert len(multiprocessing.active_children()) == 1
            gone = weakref.ref(loader)
            del loader
            assert gone() is None
            assert multiprocessing.active_children() == []
    finally:
        gc.enable()


def test_workers_end_with_their_loader(ranks: RankPool) -> None:
    """As on one GPU: at once, when the script lets go of it, and not when Python collects it."""
    ranks.run(1, _forgotten)


class Collecting(Numbers):
    """Collects garbage, as Python does from time to time."""

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return index


def _behind_a_group(world: World) -> list[int]:
    """Read by a worker, while a process group that has ended waits to be collected."""
    gc.disable()
    try:
        group: list[Any] = [dist.new_group()]
        group.append(group)
        dist.barrier(group[0])
        dist.destroy_process_group(group[0])
        del group
        options: dict[str, Any] = {
            "num_workers": 1,
            "multiprocessing_context": "fork",
            "timeout": 60,
        }
        with may_start_processes():
            loader = DataLoader(Collecting(8), batch_size=4, **options)
            return [len(batch) for batch in shard(loader, train=True)]
    finally:
        gc.enable()


def test_a_worker_leaves_the_garbage_of_its_rank(ranks: RankPool) -> None:
    """It has none of the threads that a process group joins at its end, and would hang."""
    assert ranks.run(2, _behind_a_group) == [[2, 2], [2, 2]]


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
