"""Dropout: where ranks have parts, together they drop what a single rank would."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from rankup.base.errors import UserError
from rankup.parallel.tensor.apply import loss_context, plain
from rankup.parallel.tensor.styles import PartOfDropout
from rankup.runtime.world import World
from tests.pool import RankPool

from .same import mesh_of, per_token, split, text, transformer


def masks(world: World, tp: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two masks of features that are cut, one of a region that is whole, and the state after it."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8), nn.Dropout(0.5))
    if tp > 1:
        plan = {"0": ColwiseParallel(), "1": PartOfDropout(-1), "2": RowwiseParallel()}
        split(model, mesh_of(world, tp), plan)
    torch.manual_seed(5)
    mine = model[1](torch.ones(4, 16 // tp))
    again = model[1](torch.ones(4, 16 // tp))
    whole = model[3](torch.ones(4, 8))
    model.eval()
    assert torch.equal(model[1](torch.ones(4, 8)), torch.ones(4, 8))
    return mine, again, whole, torch.get_rng_state()


def test_masks(ranks: RankPool) -> None:
    parts = ranks.run(2, masks, 2)
    ((mine, again, whole, state),) = ranks.run(1, masks, 1)
    assert not torch.equal(mine, again)
    assert torch.equal(torch.cat([part[0] for part in parts], dim=1), mine)
    assert torch.equal(torch.cat([part[1] for part in parts], dim=1), again)
    for part in parts:
        assert torch.equal(part[2], whole)
        assert torch.equal(part[3], state)


def in_the_transformer(world: World, tp: int) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = transformer(dropout=0.3)
    plan = split(model, mesh_of(world, tp)) if tp > 1 else {}
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
    return [float(loss) for loss in losses], dropped


def test_in_the_transformer(ranks: RankPool) -> None:
    first, second = ranks.run(2, in_the_transformer, 2)
    ((losses, dropped),) = ranks.run(1, in_the_transformer, 1)
    assert first[0] == second[0] == pytest.approx(losses, rel=1e-6)
    assert losses[0] == losses[1]
    for mine, theirs, whole in zip(first[1], second[1], dropped, strict=True):
        assert mine.shape == (3, 4, 16)
        assert torch.equal(torch.cat([mine, theirs], dim=1), whole)


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
