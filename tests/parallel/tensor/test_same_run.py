"""Losses and gradients of a cut model are those of the model in one piece."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor, distribute_tensor

from rankup.parallel.gradients import finish_gradients
from rankup.parallel.tensor.apply import loss_context, plain
from rankup.runtime.world import World
from tests.pool import RankPool

from .same import assert_same, full, mesh_of, per_token, split, text, transformer


def the_transformer(world: World, options: dict, shape: dict, vocab: int = 13) -> None:
    batches = partial(text, vocab=vocab)
    model = assert_same(world, partial(transformer, **shape), batches, **options)
    if shape.get("tied"):
        assert model.head.weight is model.tokens.weight


def recomputed(world: World) -> None:
    """A model built on meta, whose blocks are computed again in the backward."""
    torch.manual_seed(0)
    whole = transformer(dropout=0.2)
    with torch.device("meta"):
        models = [transformer(dropout=0.2) for _ in range(2)]
    gradients = []
    for model, again in zip(models, (False, True), strict=True):
        plan = split(model, mesh_of(world, 2))
        if again:
            for name, block in list(model.blocks.items()):
                model.blocks[name] = checkpoint_wrapper(block)
        assert all(p.is_meta and isinstance(p, DTensor) for p in model.parameters())
        model.to_empty(device="cpu")
        for mine, value in zip(model.parameters(), whole.parameters(), strict=True):
            part = distribute_tensor(value.detach(), mine.device_mesh, mine.placements)
            mine.data.copy_(part)
        with loss_context(plan):
            torch.manual_seed(1)
            plain(per_token(model, text(0))).backward()
        finish_gradients(model)
        gradients.append([full(p.grad) for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_from_meta_and_with_recomputation(ranks: RankPool) -> None:
    ranks.run(2, recomputed)


@pytest.mark.slow
def test_an_uneven_vocabulary_over_four(ranks: RankPool) -> None:
    options = {"tp": 4, "sharded": True}
    ranks.run(4, the_transformer, options, {"layers": 1, "tied": True, "vocab_size": 13})


@pytest.mark.slow
def test_tensor_times_data(ranks: RankPool) -> None:
    options = {"tp": 2, "replicas": 2, "sharded": True}
    ranks.run(4, the_transformer, options, {"layers": 1, "tied": True})


@pytest.mark.slow
def test_mixed_precision(ranks: RankPool) -> None:
    # bfloat16 has 8 bits: products are rounded before and after they are added up.
    options = {"tp": 2, "autocast": True, "within": 0.1, "steps": 1}
    ranks.run(2, the_transformer, options, {})
