"""Dropout: other masks where a rank has a part, the same ones where it has the whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankup.base.errors import UserError
from rankup.parallel.tensor.apply import loss_context, plain
from rankup.runtime.world import World
from tests.pool import RankPool

from .same import mesh_of, per_token, split, text, transformer


def masks(world: World) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A rank's mask, its neighbour-independent state after it, and a whole region's mask."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8), nn.Dropout(0.5))
    split(model, mesh_of(world, 2))
    torch.manual_seed(5)
    mine = model[1](torch.ones(4, 8))
    again = model[1](torch.ones(4, 8))
    whole = model[3](torch.ones(4, 8))
    model.eval()
    assert torch.equal(model[1](torch.ones(4, 8)), torch.ones(4, 8))
    return mine, again, whole, torch.get_rng_state()


@pytest.mark.slow
def test_masks(ranks: RankPool) -> None:
    first, second = ranks.run(2, masks)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[2], second[2])
    assert torch.equal(first[3], second[3])


def in_the_transformer(world: World) -> tuple[float, float, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = transformer(dropout=0.3)
    plan = split(model, mesh_of(world, 2))
    dropped: list[torch.Tensor] = []

    def note(_: nn.Module, __: object, output: torch.Tensor) -> None:
        dropped.append(output.detach() == 0)

    model.blocks["0"].dropout.register_forward_hook(note)
    losses = []
    with loss_context(plan):
        for _ in range(2):
            torch.manual_seed(1)  # as the training step does for each micro-batch
            losses.append(plain(per_token(model, text(0))))
            losses[-1].backward()
    return float(losses[0]), float(losses[1]), dropped


def test_in_the_transformer(ranks: RankPool) -> None:
    first, second = ranks.run(2, in_the_transformer)
    assert first[0] == first[1] == second[0] == second[1]
    assert first[2][0].shape == (3, 4, 16)
    assert not torch.equal(first[2][0], second[2][0])
    assert torch.equal(first[2][0], first[2][2])


def uneven(world: World) -> str:
    model = transformer()
    split(model, mesh_of(world, 2))
    with pytest.raises(UserError) as refused:
        model(text(0, length=7)[0])
    return str(refused.value)


def test_a_sequence_that_does_not_come_out_even(ranks: RankPool) -> None:
    for message in ranks.run(2, uneven):
        assert "(3, 7)" in message
        assert "multiple of 2" in message
