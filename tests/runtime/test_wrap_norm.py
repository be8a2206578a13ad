"""Batch norm under `wrap`: equal running statistics, and evaluation by one rank alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankup.runtime.context import CONTEXT
from rankup.runtime.model import wrap
from rankup.runtime.world import World
from tests.pool import RankPool


def _model() -> nn.Sequential:
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _statistics(
    world: World, sizes: tuple[int, ...], steps: int, recomputed: bool
) -> dict[str, torch.Tensor]:
    """Train and check each step's running statistics against their definition."""
    model = _model()
    wrapped = wrap(model)
    for step in range(steps):
        data = torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(step))
        parts = data.split(list(sizes))
        expected = []
        for part in parts:
            twin = copy.deepcopy(model)
            if len(part):
                for _ in range(1 + recomputed):
                    twin(part)
                expected.append(torch.stack([twin[1].running_mean, twin[1].running_var]))
        CONTEXT.samples = (sizes[world.rank], sum(sizes))
        mine = parts[world.rank] if sizes[world.rank] else torch.full((2, 4), torch.nan)
        mine.requires_grad_(True)
        out = checkpoint(wrapped, mine, use_reentrant=True) if recomputed else wrapped(mine)
        out.square().mean().backward()
        found = torch.stack([model[1].running_mean, model[1].running_var])
        torch.testing.assert_close(found, torch.stack(expected).mean(0), rtol=1e-6, atol=1e-7)
    return dict(model.named_buffers())


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("sizes", [(2, 5), (3, 2, 0)])
def test_running_statistics_are_the_mean_over_ranks(
    ranks: RankPool, sizes: tuple[int, ...], recomputed: bool
) -> None:
    found = ranks.run(len(sizes), _statistics, sizes, 3, recomputed)
    for other in found[1:]:
        for name, value in found[0].items():
            assert torch.equal(value, other[name]), name


def _alone(world: World) -> float:
    """Rank 0 evaluates between two steps; the other one does not wait for it, nor it for them."""
    wrapped = wrap(_model())
    data = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    loss = 0.0
    for _ in range(3):
        wrapped.train()
        wrapped(data).mean().backward()
        if world.rank == 0:
            wrapped.eval()
            before = [buffer.clone() for buffer in wrapped.buffers()]
            with torch.no_grad():
                loss = float(wrapped(data).mean())
            assert all(map(torch.equal, wrapped.buffers(), before))
    dist.barrier()
    return loss


def test_one_rank_may_evaluate_alone(ranks: RankPool) -> None:
    ranks.run(2, _alone)
