"""`wrap` over several backwards: accumulation, two models, and what a step sends."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn

from rankup.runtime.model import wrap
from rankup.runtime.world import World
from tests.pool import RankPool

from .test_wrap import _close, _gradients, _mine, _start


def _accumulates(world: World) -> None:
    model = _start()
    bare = copy.deepcopy(model)
    wrapped = wrap(model)
    size = 2 * world.world_size
    for step in range(2):
        batches = torch.randn(3, size, 4, generator=torch.Generator().manual_seed(step))
        bare.zero_grad()
        wrapped.zero_grad()
        for batch in batches:
            (bare(batch).square().mean() / 3).backward()
        with wrapped.no_sync():
            for batch in batches[:-1]:
                part = _mine(world, (2,) * world.world_size, batch)
                (wrapped(part).square().mean() / 3).backward()
        part = _mine(world, (2,) * world.world_size, batches[-1])
        (wrapped(part).square().mean() / 3).backward()
        _close(_gradients(wrapped), _gradients(bare))


@pytest.mark.parametrize("world_size", [1, 3])
def test_gradients_accumulate_under_no_sync(ranks: RankPool, world_size: int) -> None:
    ranks.run(world_size, _accumulates)


def _gan(world: World, sizes: tuple[int, ...]) -> None:
    nets = [_start(), nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))]
    pairs = [copy.deepcopy(nets), [wrap(net) for net in nets]]
    optimizers = [[torch.optim.SGD(net.parameters(), lr=0.1) for net in pair] for pair in pairs]
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        noise = torch.randn(sum(sizes), 4, generator=generator)
        real = torch.randn(sum(sizes), 3, generator=generator)
        data = ((noise, real), (_mine(world, sizes, noise), _mine(world, sizes, real)))
        for (make, judge), (of_make, of_judge), (z, x) in zip(pairs, optimizers, data, strict=True):
            of_judge.zero_grad()
            (judge(make(z).detach()).square().mean() + (judge(x) - 1).square().mean()).backward()
            of_judge.step()
            of_make.zero_grad()
            (judge(make(z)) - 1).square().mean().backward()
            of_make.step()
    for one, other in zip(*pairs, strict=True):
        _close(list(one.parameters()), list(other.parameters()))


@pytest.mark.parametrize("sizes", [(2, 0, 2)])
def test_two_models_train_against_each_other(ranks: RankPool, sizes: tuple[int, ...]) -> None:
    ranks.run(len(sizes), _gan, sizes)


def _collectives(world: World, norm: bool) -> list[dict[str, int]]:
    """What each part of the third step sends."""
    _start()
    model = nn.Sequential(nn.Linear(4, 4), *([nn.BatchNorm1d(4)] if norm else []))
    wrapped = wrap(model)
    data = torch.randn(3, 4)
    for _ in range(2):
        wrapped(data).mean().backward()
    counts = []
    loss = None
    for part in ("forward", "backward"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            if part == "forward":
                loss = wrapped(data).square().mean()
            else:
                assert loss is not None
                loss.backward()
        counts.append(Counter(e.name for e in profile.events() if e.name.startswith("c10d::")))
    return [dict(count) for count in counts]


@pytest.mark.parametrize("norm", [False, True])
def test_forward_sends_nothing_and_backward_hardly_anything(ranks: RankPool, norm: bool) -> None:
    for forward, backward in ranks.run(2, _collectives, norm):
        assert forward == {}
        assert backward == {"c10d::allreduce_": 1 + norm}
