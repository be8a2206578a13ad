"""A pipeline computes what one process computes: losses, gradients, evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.parallel.pipeline.models import (
    alone,
    chained,
    piped,
    token_batches,
    token_loss,
)
from tests.pool import RankPool

Result = tuple[list[float], list[float], dict[str, torch.Tensor], list[float]]


def _steps(
    world: Any, schedule: str, sizes: list[int], options: dict[str, Any], blocks: int, tied: bool
) -> Result:
    model = chained(blocks=blocks, tied=tied)
    pipeline, ties = piped(world, model, schedule, dist.group.WORLD, world.world_size, **options)
    batches = token_batches(sizes)
    weights = [1.0 / (i + 1) for i in range(len(sizes))]
    first = pipeline.step(batches, weights, token_loss)
    for parameter in model.parameters():
        parameter.grad = None
    second = pipeline.step(batches, weights, token_loss)
    ties.sum_gradients()
    named = model.named_parameters(remove_duplicate=False)
    grads = {name: p.grad for name, p in named if p.grad is not None}
    evaluated = pipeline.evaluate(batches, token_loss)
    return (
        [x.item() for x in first],
        [x.item() for x in second],
        grads,
        [x.item() for x in evaluated],
    )


def _agree(
    ranks: RankPool,
    world_size: int,
    schedule: str,
    sizes: list[int],
    *,
    blocks: int = 4,
    tied: bool = False,
    tolerance: float = 1e-6,
    **options: Any,
) -> None:
    weights = [1.0 / (i + 1) for i in range(len(sizes))]
    losses, grads = alone(chained(blocks=blocks, tied=tied), token_batches(sizes), weights)
    results: list[Result] = ranks.run(world_size, _steps, schedule, sizes, options, blocks, tied)
    reported = [result for result in results if result[0]]
    assert len(reported) == 1, "the losses are where the last stage is, and nowhere else"
    first, second, _, evaluated = reported[0]
    for found in (first, second, evaluated):
        assert found == pytest.approx(losses, rel=tolerance)
    held: dict[str, torch.Tensor] = {}
    for result in results:
        held |= result[2]
    assert held.keys() == grads.keys()
    for name, grad in held.items():
        error = (grad - grads[name]).abs().max() / grads[name].abs().max()
        assert error <= tolerance, f"{name}: {error}"


def test_two_ranks_compute_what_one_does(ranks: RankPool) -> None:
    _agree(ranks, 2, "gpipe", [3, 3, 3, 3])


def test_a_short_last_chunk_and_tied_embeddings(ranks: RankPool) -> None:
    _agree(ranks, 2, "1f1b", [3, 3, 3, 3, 3, 2], blocks=3, tied=True)


def test_fewer_chunks_than_stages(ranks: RankPool) -> None:
    _agree(ranks, 2, "interleaved", [3])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_four_ranks_compute_what_one_does(ranks: RankPool, schedule: str) -> None:
    _agree(ranks, 4, schedule, [2] * 7 + [1], blocks=7, tied=True)


def _refused(world: Any) -> str:
    assert dist.group.WORLD is not None
    pipeline, _ = piped(world, chained(), "1f1b", dist.group.WORLD, world.world_size)
    assert pipeline.evaluate([], token_loss) == []
    with pytest.raises(ValueError, match="2 batches and 1 weights") as caught:
        pipeline.step(token_batches([2, 2]), [1.0], token_loss)
    return str(caught.value)


def test_each_batch_needs_a_weight(ranks: RankPool) -> None:
    assert all(ranks.run(2, _refused))
