"""Gradients that sharded models send in bf16: rounded where they are sent, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.runtime.compression import parse
from rankup.runtime.world import World
from tests.pool import RankPool

MICRO_BATCHES = 64


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))


def _gradients(world: World, layout: Layout, zero: int, half: Any) -> list[torch.Tensor]:
    """Of a step of many micro-batches, whole, without compression and with it."""
    found = []
    for kind in ("none", "bf16"):
        choices = Choices(half=half, zero=zero, compression=parse(kind))
        built = build(_network, Mesh(layout, world), 1, choices)
        draw = torch.Generator().manual_seed(world.rank)
        for number in range(MICRO_BATCHES):
            inputs = torch.rand(4, 8, generator=draw)
            with built.exchange_at(number == MICRO_BATCHES - 1):
                (built.replica(inputs).float() - 1).square().sum().backward()
        built.finish_gradients()
        whole = (
            getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in built.model.parameters()
        )
        found.append(torch.cat([gradient.flatten() for gradient in whole]))
    return found


@pytest.mark.parametrize(
    ("layout", "zero", "half"),
    [
        (Layout(dp_shard=2), 3, None),
        (Layout(dp_shard=2), 1, None),
        (Layout(dp_shard=2), 1, "bfloat16"),
        (Layout(dp_replicate=2), 3, "bfloat16"),
        (Layout(dp_replicate=2, dp_shard=2), 3, None),
    ],
    ids=["fsdp", "zero 1", "zero 1 in bf16", "copies in bf16", "hsdp"],
)
def test_many_micro_batches_add_up_in_float32(
    ranks: RankPool, layout: Layout, zero: int, half: str | None
) -> None:
    """Casts to bf16 are off by 2^-9 at most, to either side."""
    for plain, sent in ranks.run(layout.world_size, _gradients, layout, zero, half):
        assert not torch.equal(plain, sent)
        assert float((sent - plain).norm() / plain.norm()) < 2**-9
