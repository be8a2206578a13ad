"""Collectives of a step under tensor parallelism are those of theory (Korthikanti et al., 2022)."""

from __future__ import annotations

from collections import Counter

import torch
from torch.distributed.tensor.debug import CommDebugMode

from rankup.parallel.tensor.gradients import finish_gradients
from rankup.parallel.tensor.loss import loss_context, plain
from rankup.runtime.world import World
from tests.pool import RankPool

from .same import mesh_of, per_token, split, text, transformer


def counted(mode: CommDebugMode) -> Counter[str]:
    names = ("all_gather", "reduce_scatter", "all_reduce")
    counts: Counter[str] = Counter()
    for op, number in mode.get_comm_counts().items():
        kind = next(name for name in names if name in str(op).replace("allreduce", "all_reduce"))
        counts[kind] += number
    return counts


def step(world: World, layers: int) -> tuple[Counter[str], Counter[str], Counter[str]]:
    torch.manual_seed(0)
    model = transformer(layers=layers)
    plan = split(model, mesh_of(world, 2))
    for block in model.blocks.values():
        del block.dropout  # torch's counter breaks on a module that is called twice
        block.dropout = torch.clone  # type: ignore[assignment]
    with loss_context(plan):
        with CommDebugMode() as forward:
            loss = plain(per_token(model, text(0)))
        with CommDebugMode() as backward:
            loss.backward()
    with CommDebugMode() as finish:
        finish_gradients(model)
    return counted(forward), counted(backward), counted(finish)


def test_collectives_of_the_transformer(ranks: RankPool) -> None:
    for layers in (1, 3):
        for forward, backward, finish in ranks.run(2, step, layers):
            # In front of attention, feed-forward and head the sequence is gathered; behind the
            # embedding, attention and feed-forward sums are handed out in parts. The loss needs
            # three numbers of each token: largest logit, sum of exponentials, the target's logit.
            assert forward == {
                "all_gather": 2 * layers + 1, "reduce_scatter": 2 * layers + 1, "all_reduce": 3,
            }  # fmt: skip
            # The backward of each is the other one; the loss needs nothing.
            assert backward == {
                "all_gather": 2 * layers + 1, "reduce_scatter": 2 * layers + 1,
            }  # fmt: skip
            # Norms and positions have seen a part of the sequence each: one exchange for all.
            assert finish == {"all_reduce": 1}
