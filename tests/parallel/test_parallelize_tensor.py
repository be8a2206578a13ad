"""`parallelize` under tp: whole outputs, equal draws, and the same samples on all peers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

import rankup
from rankup.base.errors import UserError
from rankup.parallel.user.parallelize import parallelize
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.keys import derive
from rankup.runtime.save import full_state
from rankup.runtime.world import World
from tests.pool import RankPool

from .user_loops import forget, stack


def transformer(dropout: float = 0.0) -> nn.Module:
    return Transformer(Shape(13, 8, 2, 16, 4, dropout, tied=True))


def dropping() -> nn.Module:
    return transformer(0.3)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def text(seed: int) -> torch.Tensor:
    return torch.randint(13, (4, 8), generator=torch.Generator().manual_seed(seed))


def _whole(world: World) -> None:
    """The logits are cut by classes inside; the script takes them for ordinary ones."""
    forget()
    torch.manual_seed(derive(0, "construction"))
    bare = transformer()
    slow = sgd(bare)
    model, optimizer = parallelize(transformer, sgd, tp=2)
    for step in range(2):
        tokens = text(step)
        logits = model(tokens)
        assert not isinstance(logits, DTensor)
        torch.testing.assert_close(logits, bare(tokens), rtol=1e-5, atol=1e-5)
        for net, taken in ((model, optimizer), (bare, slow)):
            F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
            taken.step()
            taken.zero_grad()
    for name, tensor in full_state(model).items():
        torch.testing.assert_close(tensor, bare.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


def test_logits_come_whole(ranks: RankPool) -> None:
    ranks.run(2, _whole)


def _drop(world: World) -> dict[str, torch.Tensor]:
    forget()
    model, optimizer = parallelize(dropping, sgd, tp=2)
    torch.manual_seed(world.rank)  # as scripts for DDP do
    before = torch.get_rng_state()
    first, second = (model(text(0)) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before), "the script's own draws are its own"
    first.square().mean().backward()
    optimizer.step()
    held = {"logits": first.detach()}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        if parameter.placements == (Replicate(),):
            held[name] = parameter.to_local().detach()
    return held


def test_dropout_is_one_draw_on_all_peers(ranks: RankPool) -> None:
    first, second = ranks.run(2, _drop)
    assert len(first) > 5
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def _other_samples(world: World) -> None:
    forget()
    model, _ = parallelize(stack, sgd, tp=2)
    with pytest.raises(UserError, match="ranks 0 and 1 compute one batch together"):
        model(torch.full((2, 6), float(world.rank)))
    rankup.count(3)
    model(torch.ones(2, 6)).mean().backward()


def test_other_samples_on_a_peer_are_noticed(ranks: RankPool) -> None:
    ranks.run(2, _other_samples)
