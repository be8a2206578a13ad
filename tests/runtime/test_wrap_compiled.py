"""`wrap` and `torch.compile`, with and without activation checkpointing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankup.runtime.context import CONTEXT
from rankup.runtime.model import wrap
from rankup.runtime.world import World
from tests.pool import RankPool

WIDTH = 600  # of which a layer fills DDP's first bucket


class Layers(nn.Module):
    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.last = nn.Linear(WIDTH, 2)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        out: torch.Tensor = self.last(x)
        return out


def _inside(model: nn.Module, backend: Callable[..., Any]) -> Any:
    return wrap(torch.compile(model, backend=backend))  # type: ignore[arg-type]


def _outside(model: nn.Module, backend: Callable[..., Any]) -> Any:
    return torch.compile(wrap(model), backend=backend, fullgraph=True)


def _in_place(model: nn.Module, backend: Callable[..., Any]) -> Any:
    wrapped = wrap(model)
    wrapped.compile(backend=backend)
    return wrapped


def _trained(world: World, recompute: bool) -> dict[str, int]:
    """Compare three steps, one of them uneven and one of an idle rank; parts compiled each way."""
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()
    parts = {}
    for way in (_inside, _outside, _in_place):
        torch._dynamo.reset()
        torch.manual_seed(0)
        bare = Layers(recompute)
        inner = copy.deepcopy(bare)
        compiled: list[int] = []

        def backend(graph: Any, inputs: Any, compiled: list[int] = compiled) -> Any:
            compiled.append(len(inputs))
            return graph.forward

        model = way(inner, backend)
        for step, sizes in enumerate([(2, 2), (3, 1), (0, 2)]):
            x = torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(step))
            bare.zero_grad()
            model.zero_grad()
            bare(x).square().mean().backward()
            CONTEXT.samples = (sizes[world.rank], sum(sizes))
            mine = x.split(list(sizes))[world.rank]
            model(
                mine if len(mine) else torch.full_like(x[:1], torch.nan)
            ).square().mean().backward()
            if step == 0:
                parts[way.__name__] = len(compiled)
            for one, other in zip(inner.parameters(), bare.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    return parts


@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_models_train_as_without(ranks: RankPool, recompute: bool) -> None:
    for parts in ranks.run(2, _trained, recompute):
        assert parts["_outside"] == 1
        assert parts["_inside"] > 1, "cut at DDP's buckets"
        assert parts["_in_place"] > 1
