"""Where a plan comes from, and what stands beside it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from rankup.base.errors import UserError
from rankup.parallel.tensor.plan import check, plan_of
from rankup.runtime.world import World
from tests.pool import RankPool

from .same import assert_same

GATHERED = ColwiseParallel(output_layouts=Replicate())


def test_given_goes_first() -> None:
    given = {"x": ColwiseParallel()}
    assert plan_of(nn.Linear(2, 2), given) == given


def test_no_plan_says_the_ways_out() -> None:
    with pytest.raises(UserError, match=r"brings no tensor plan.*tensor_plan\(\).*--strategy fsdp"):
        plan_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))


class Residual(nn.Module):
    """Defined in order, called with a residual; a norm that holds its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 12)
        self.act = nn.GELU()
        self.down = nn.Linear(12, 6)
        self.head = nn.Linear(6, 5)

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        return {"up": ColwiseParallel(), "down": RowwiseParallel(), "head": GATHERED}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x + self.down(self.act(self.up(self.norm(x)))))
        return y


class Outside(nn.Module):
    """What a plan says nothing of: a parameter of its own, packed attention, tied maps."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.body = Residual()
        self.unused = nn.Linear(2, 2)
        self.tied = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.tied.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.again(self.tied(x * self.scale))
        y: torch.Tensor = self.body(x + self.attention(x, x, x)[0])
        return y


def rows(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (3, 4), generator=generator)


def classes(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    logits = model(batch[0])
    return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), reduction="sum")


def stacks(world: World) -> None:
    assert_same(world, Residual, rows, tp=2, loss=classes, within=1e-9)
    inside = {f"body.{k}": v for k, v in plan_of(Residual()).items()}
    for sharded in (False, True):
        assert_same(
            world, Outside, rows, tp=2, loss=classes, given=inside, within=1e-9, sharded=sharded
        )
    split = {
        "body.head": ColwiseParallel(use_local_output=False),
        "body.up": GATHERED,
        "body.down": RowwiseParallel(input_layouts=Replicate()),
    }
    assert_same(world, Outside, rows, tp=2, loss=classes, given=split, within=1e-6)


@pytest.mark.slow
def test_stacks_and_what_stands_beside_them(ranks: RankPool) -> None:
    ranks.run(2, stacks)


def test_an_attention_that_counts_its_heads_is_refused() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2
            self.query, self.output = nn.Linear(8, 8), nn.Linear(8, 8)

    with pytest.raises(UserError, match="makes the heads of a Attention, which has heads"):
        check(Attention(), {"query": ColwiseParallel(), "output": RowwiseParallel()}, 2)
