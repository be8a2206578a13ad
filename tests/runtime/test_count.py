"""`rankup.count`: a mean over tokens is the mean over the tokens of all ranks."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankup.runtime.context import CONTEXT, count
from rankup.runtime.model import wrap
from rankup.runtime.shard import part
from rankup.runtime.world import World
from tests.pool import RankPool

IGNORED = -100


class Scale(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def _batch(valid: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of 6 tokens, of which row i has `valid[i]` targets; the others are padding."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(valid), 6, 4, generator=generator)
    targets = torch.randint(0, 5, (len(valid), 6), generator=generator)
    for row, number in enumerate(valid):
        targets[row, number:] = IGNORED
    return inputs, targets


def _loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def _gradients(world: World, valid: tuple[int, ...], width: int) -> None:
    CONTEXT.samples = CONTEXT.units = None
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), Scale(), nn.Linear(width, 5))
    bare, wrapped = copy.deepcopy(model), wrap(model)
    for seed in range(3):
        inputs, targets = _batch(valid, seed)
        mine = part(len(valid), world.rank, world.world_size)
        CONTEXT.samples = (len(mine), len(valid))
        rows = slice(mine.start, mine.stop) if mine else slice(0, 1)
        bare.zero_grad()
        wrapped.zero_grad()
        _loss(bare, inputs, targets).backward()
        count(int((targets[rows] != IGNORED).sum()))
        _loss(wrapped, inputs[rows], targets[rows]).backward()
        assert CONTEXT.units is None, "used up by the backward"
        for one, other in zip(wrapped.parameters(), bare.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("world_size", "valid"),
    [
        (1, (6, 2)),
        (2, (6, 1, 3)),
        (2, (0, 0, 4, 6)),  # rank 0 has rows but not one target: its mean is NaN
        (2, (5,)),  # a rank without rows
        (3, (6, 1, 2, 6, 3)),
        (3, (4, 1)),
    ],
)
def test_mean_over_tokens(ranks: RankPool, world_size: int, valid: tuple[int, ...]) -> None:
    ranks.run(world_size, _gradients, valid, 7)


def test_mean_over_tokens_in_several_buckets(ranks: RankPool) -> None:
    ranks.run(2, _gradients, (6, 1, 3), 150_000)


def _adds_up(world: World) -> torch.Tensor:
    CONTEXT.samples = CONTEXT.units = None
    wrapped = wrap(nn.Linear(1, 1, bias=False))
    for units in (1, 2) if world.rank else (1,):
        count(units)
    (wrapped(torch.ones(1, 1)) * (10.0 if world.rank else 2.0)).sum().backward()
    gradient = wrapped.weight.grad
    assert gradient is not None
    return gradient


def test_calls_before_one_backward_add_up(ranks: RankPool) -> None:
    for gradient in ranks.run(2, _adds_up):
        assert float(gradient) == pytest.approx((1 * 2.0 + 3 * 10.0) / 4)


def _nothing(world: World) -> list[torch.Tensor]:
    CONTEXT.samples = CONTEXT.units = None
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    wrapped = wrap(model)
    count(0)
    (wrapped(torch.ones(2, 4)) * torch.nan).sum().backward()
    return [p.grad for p in wrapped.parameters()] + [model[1].running_mean]


def test_no_units_anywhere_move_nothing(ranks: RankPool) -> None:
    for gradients in ranks.run(2, _nothing):
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def _nothing_more(world: World, later: bool) -> torch.Tensor:
    """Backwards of one step of which some have no units on any rank, and a loss of NaN."""
    CONTEXT.samples = CONTEXT.units = None
    wrapped = wrap(nn.Linear(1, 1, bias=False))
    for units in (2, 0, 0) if later else (0, 2, 0):
        with wrapped.no_sync() if later and units else contextlib.nullcontext():
            count(units)
            scale = 1.0 + world.rank if units else torch.nan
            (wrapped(torch.ones(1, 1)) * scale).sum().backward()
    gradient = wrapped.weight.grad
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("later", [False, True])
def test_a_backward_without_units_keeps_what_came_before(ranks: RankPool, later: bool) -> None:
    for gradient in ranks.run(2, _nothing_more, later):
        assert float(gradient) == pytest.approx(1.5)


def _held_back(world: World) -> torch.Tensor:
    """Under no_sync a NaN over nothing comes after units."""
    CONTEXT.samples = CONTEXT.units = None
    wrapped = wrap(nn.Linear(1, 1, bias=False))
    for number, units in enumerate((1, 0, 1)):
        with contextlib.nullcontext() if number == 2 else wrapped.no_sync():
            count(units)
            (
                wrapped(torch.ones(1, 1)) * (1.0 + world.rank if units else torch.nan)
            ).sum().backward()
    gradient = wrapped.weight.grad
    assert gradient is not None
    return gradient


def test_nothing_enters_under_no_sync(ranks: RankPool) -> None:
    for gradient in ranks.run(2, _held_back):
        assert float(gradient) == pytest.approx(3.0)


def _accumulated(world: World, counts: bool) -> None:
    """Backwards under no_sync in which this rank's part is another one each time."""
    CONTEXT.samples = CONTEXT.units = None
    torch.manual_seed(0)
    bare = nn.Linear(4, 3)
    wrapped = wrap(copy.deepcopy(bare))
    for number, sizes in enumerate([(1, 4), (3, 0), (2, 2)]):
        x = torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(number))
        bare(x).square().mean().backward()
        mine = x.split(list(sizes))[world.rank]
        mine = mine if len(mine) else torch.full_like(x[:1], torch.nan)
        CONTEXT.samples = None if counts else (sizes[world.rank], sum(sizes))
        with contextlib.nullcontext() if number == 2 else wrapped.no_sync():
            if counts:
                count(sizes[world.rank])
            wrapped(mine).square().mean().backward()
    for one, other in zip(wrapped.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("counts", [False, True])
def test_each_backward_under_no_sync_has_its_own_weight(ranks: RankPool, counts: bool) -> None:
    ranks.run(2, _accumulated, counts)


def _two_models(world: World, recomputed: int) -> list[list[float]]:
    """Gradients of a backward with units and of one without; some models within checkpoints."""
    CONTEXT.samples = CONTEXT.units = None
    nets = [wrap(nn.Linear(1, 1, bias=False)) for _ in range(2)]
    gradients = []
    for units in (3 if world.rank else 1, None):
        if units is not None:
            count(units)
        loss = torch.zeros(1, 1)
        for number, net in enumerate(nets):
            net.zero_grad()
            x = torch.ones(1, 1, requires_grad=True)
            within = number < recomputed
            loss = loss + (checkpoint(net, x, use_reentrant=True) if within else net(x))
        (loss * (10.0 if world.rank else 2.0)).backward()
        assert CONTEXT.units is None
        gradients.append([float(parameter.grad) for net in nets for parameter in net.parameters()])
    return gradients


@pytest.mark.parametrize("recomputed", [0, 1, 2])
def test_all_models_of_a_backward_have_its_units(ranks: RankPool, recomputed: int) -> None:
    for first, second in ranks.run(2, _two_models, recomputed):
        assert first == pytest.approx([8.0, 8.0])
        assert second == pytest.approx([6.0, 6.0])


class Fails(torch.autograd.Function):
    """Does nothing, but for its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ArithmeticError("as a script's own code may")


def _after_a_failure(world: World) -> float:
    """The gradient of a batch without units, behind a backward that used some up and failed."""
    net = wrap(nn.Linear(1, 1, bias=False))
    x = torch.ones(1, 1, requires_grad=True)
    for fails in (True, False):
        CONTEXT.give(1, 2, trains=True)
        if fails:
            count(3 if world.rank else 1)
        inner = (lambda x: net(Fails.apply(x))) if fails else net
        loss = checkpoint(inner, x, use_reentrant=True) * (10.0 if world.rank else 2.0)
        expected = pytest.raises(ArithmeticError) if fails else contextlib.nullcontext()
        with net.no_sync() if fails else contextlib.nullcontext(), expected:
            loss.backward()
        if fails:
            net.zero_grad()
    return float(net.weight.grad)


def test_units_of_a_backward_that_failed_weigh_no_other(ranks: RankPool) -> None:
    """Also where all of both backwards is within reentrant checkpoints."""
    assert ranks.run(2, _after_a_failure) == pytest.approx([6.0, 6.0])


@pytest.mark.parametrize("units", [-1, float("nan"), float("inf")])
def test_impossible_units(units: float) -> None:
    with pytest.raises(ValueError, match="count needs a finite number"):
        count(units)
    assert CONTEXT.units is None
