"""Invariant 3, exact evaluation: each sample once, for any number of samples and ranks."""

from __future__ import annotations

from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankup.parallel.build import Built
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.runtime.deadline import Deadline
from rankup.runtime.world import World
from rankup.train.evaluate import evaluate
from rankup.train.options import TrainOptions
from rankup.train.start import start
from tests.pool import RankPool

from .tasks import ConvNetTask, Images


def _copied(model: nn.Module, world: World) -> Built:
    """A model that every rank holds whole."""
    return Built(model, model, model, Mesh(Layout(dp_replicate=world.world_size), world))


def _evaluations(
    world: World, numbers: range, micro_batch: int
) -> dict[int, tuple[float | None, int]]:
    """For each number of samples the mean loss, and how many collectives it took."""
    task = ConvNetTask(TrainOptions())
    torch.manual_seed(1)
    model = task.build_model()
    calls = 0
    found = {}
    reduce = dist.all_reduce

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return reduce(*args, **kwargs)

    dist.all_reduce = counted
    try:
        for n in numbers:
            calls = 0
            loss = evaluate(task.loss, Images(n, n), _copied(model, world), micro_batch)
            found[n] = (loss, calls)
            assert model.training
    finally:
        dist.all_reduce = reduce
    return found


@pytest.mark.parametrize(("world_size", "micro_batch"), [(2, 1), (3, 3), (4, 1)])
def test_equal_to_one_process_for_every_number_of_samples(
    ranks: RankPool, world_size: int, micro_batch: int
) -> None:
    numbers = range(1, 2 * world_size * micro_batch + 2)
    alone = ranks.run(1, _evaluations, numbers, micro_batch)[0]
    for found in ranks.run(world_size, _evaluations, numbers, micro_batch):
        for n in numbers:
            loss, collectives = found[n]
            assert loss == pytest.approx(alone[n][0], rel=1e-6), f"{n} samples"
            assert collectives == 1


def _plain(world: World, n: int) -> tuple[float | None, float]:
    task = ConvNetTask(TrainOptions())
    torch.manual_seed(1)
    model = task.build_model()
    split = Images(n, n)
    ours = evaluate(task.loss, split, _copied(model, world), 4)
    model.eval()
    with torch.no_grad():
        every = task.loss(model, split.batch(torch.arange(n))) / n
    return ours, float(every)


def test_equal_to_the_plain_mean_over_all_samples(ranks: RankPool) -> None:
    for ours, plain in ranks.run(2, _plain, 13):
        assert ours == pytest.approx(plain, rel=1e-6)


def _statistics_before_and_after(world: World) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    task = ConvNetTask(TrainOptions())
    model = task.build_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluate(task.loss, Images(9, 0), _copied(model, world), 4)
    return before, model.state_dict()


def test_leaves_the_model_as_it_was(ranks: RankPool) -> None:
    for before, after in ranks.run(2, _statistics_before_and_after):
        assert [name for name in before if not torch.equal(before[name], after[name])] == []


def _nothing(world: World) -> float | None:
    task = ConvNetTask(TrainOptions())
    return evaluate(task.loss, Images(0, 0), _copied(task.build_model(), world), 4)


@pytest.mark.parametrize("world_size", [1, 2])
def test_no_samples_have_no_mean(ranks: RankPool, world_size: int) -> None:
    assert ranks.run(world_size, _nothing) == [None] * world_size


class _Weighted(Images):
    """Sample i holds i valid targets, as texts of different lengths do."""

    def count(self, samples: torch.Tensor) -> int:
        return int(samples.sum())


def _per_target(world: World) -> float | None:
    def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return 3.0 * batch[1].sum()

    split = _Weighted(7, 0)
    split.labels = torch.arange(7)
    return evaluate(loss, split, _copied(nn.Linear(1, 1), world), 2)


def test_the_mean_is_over_targets_not_samples(ranks: RankPool) -> None:
    assert ranks.run(3, _per_target) == [3.0] * 3


class _Asked:
    """A deadline that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    @property
    def wish(self) -> float:
        self.times += 1
        return 0.0


def _asked(world: World, strategy: str) -> int:
    options = TrainOptions(strategy=strategy)  # type: ignore[arg-type]
    task = ConvNetTask(options, held_out=0)
    built, stop = start(task, options, world), _Asked()
    evaluate(task.loss, Images(50, seed=3), built, 1, cast("Deadline", stop))
    return stop.times


def test_ranks_that_go_together_ask_each_other_at_every_tenth_micro_batch(ranks: RankPool) -> None:
    """25 micro-batches each: a collective before every one of them costs more than it is worth."""
    assert ranks.run(2, _asked, "fsdp") == [3, 3]
