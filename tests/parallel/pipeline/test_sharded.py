"""Pipelining beside sharding: one gathering and one sum per step, whatever each rank's chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from rankup.parallel.pipeline.run import Pipeline
from rankup.parallel.pipeline.stage import Ties
from tests.parallel.pipeline.models import (
    Batch,
    Pair,
    alone,
    chained,
    cut,
    token_batches,
    token_loss,
)
from tests.pool import RankPool

Gathered = tuple[list[float], dict[str, torch.Tensor], list[float], Counter[str], int]


def _dealt(data_rank: int, data_size: int, sizes: list[int]) -> tuple[list[Batch], list[float]]:
    """The batches of a data rank and their weights; all ranks have equally many."""
    mine = token_batches(sizes)[data_rank::data_size]
    spare = -(-len(sizes) // data_size) - len(mine)
    return mine + mine[-1:] * spare, [0.5] * len(mine) + [0.0] * spare


def _steps(world: Any, pp: int, schedule: str, sizes: list[int]) -> Gathered:
    data_size = world.world_size // pp
    mesh = init_device_mesh("cpu", (pp, data_size), mesh_dim_names=("pp", "data"))
    place, data_rank = divmod(world.rank, data_size)
    model = chained(blocks=3, tied=True)
    stages, tied, where = cut(model, pp, place, schedule)
    lines = [[p * data_size + d for p in range(pp)] for d in range(data_size)]
    ties = Ties(tied, model, where, lines)
    blocks = [m for m in model.modules() if isinstance(m, Pair)]
    for module in [*blocks, *stages]:
        fully_shard(module, mesh=mesh["data"], reshard_after_forward=False)
    for module in [m for stage in stages for m in stage.modules() if isinstance(m, FSDPModule)]:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    pipeline = Pipeline(stages, mesh.get_group("pp"), world.device, schedule, max(sizes))
    batches, weights = _dealt(data_rank, data_size, sizes)
    for _ in range(2):  # the second without torch's search for shapes
        for parameter in model.parameters():
            parameter.grad = None
        with _counted() as calls:
            losses = pipeline.step(batches, weights, token_loss)
    ties.sum_gradients()
    grads = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        assert isinstance(parameter, DTensor), f"{name} is sharded between steps"
        assert isinstance(parameter.grad, DTensor)
        grads[name] = parameter.grad.full_tensor()
    evaluated = pipeline.evaluate(batches, token_loss)
    assert all(isinstance(p, DTensor) for p in model.parameters()), "and after an evaluation"
    # A stage that is one block has nothing left to share beside that.
    units = len(blocks) + sum(any(not isinstance(m, Pair) for m in s.children()) for s in stages)
    return [x.item() for x in losses], grads, [x.item() for x in evaluated], calls, units


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Counts FSDP's collectives; torch's debug mode for that fails inside `autograd.grad`."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Any) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return count

    with ExitStack() as stack:
        for kind in ("all_gather", "reduce_scatter"):
            # The first is what torch 2.13 calls, the second what it was called before.
            for name in (f"{kind}_single", f"{kind}_into_tensor", f"{kind}_tensor"):
                if hasattr(dist, name):
                    stack.enter_context(
                        patch.object(dist, name, counting(kind, getattr(dist, name)))
                    )
        yield calls


def _agree(ranks: RankPool, world_size: int, pp: int, schedule: str, sizes: list[int]) -> None:
    data_size = world_size // pp
    losses, grads = alone(chained(blocks=3, tied=True), token_batches(sizes), [0.5] * len(sizes))
    results: list[Gathered] = ranks.run(world_size, _steps, pp, schedule, sizes)
    ends = [result for result in results if result[0]]
    assert len(ends) == data_size
    for data_rank, (found, _, evaluated, _, _) in enumerate(ends):
        expected = losses[data_rank::data_size]
        assert found[: len(expected)] == pytest.approx(expected, rel=1e-6)
        assert evaluated[: len(expected)] == pytest.approx(expected, rel=1e-6)
    for _, held, _, calls, units in results:
        for name, grad in held.items():
            error = (grad - grads[name]).abs().max() / grads[name].abs().max()
            assert error <= 1e-6, f"{name}: {error}"
        once = {"all_gather": units, "reduce_scatter": units} if data_size > 1 else {}
        assert calls == once


@pytest.mark.slow
def test_two_data_ranks_with_different_chunks(ranks: RankPool) -> None:
    # Data rank 0 computes three chunks, the last one short; data rank 1 two.
    _agree(ranks, 4, 2, "1f1b", [3, 3, 3, 3, 2])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "interleaved"])
def test_other_schedules_beside_sharding(ranks: RankPool, schedule: str) -> None:
    _agree(ranks, 4, 2, schedule, [3, 3, 3, 3, 3, 3, 3, 3, 2])
