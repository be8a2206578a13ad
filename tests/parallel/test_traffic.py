"""Bytes that a step of the training loop sends, against what docs/strategies/ states of each.

`P` parameters of 4 bytes; `a`: bytes of a micro-batch's activations between two layers. Recorded
is what torch hands to gloo, of which a ring sends the least there is; beside it the kernel tells
what went over the wire.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from rankup.train.options import TrainOptions
from tests.pool import RankPool

from .tasks import LENGTH
from .test_same_run import SGD
from .traffic import DIM, LAYERS, Traffic, take

GATHER, SCATTER, REDUCE, SEND = "all_gather", "reduce_scatter", "all_reduce", "send"
OPTIONS = replace(SGD, global_batch=8, micro_batch=2)
# What fsdp gathers one after the other: blocks, which are given back between forward and backward,
# and what is left, which is not.
GIVEN_BACK, KEPT = LAYERS, 1
UNITS = GIVEN_BACK + KEPT
# The loop's own, in any layout: loss, flags and time in one message; the norm for clipping.
TOGETHER, NORM = 4 * 8, 8
# Headers of gloo and the acknowledging barrier; 240 to 650 bytes a message were measured.
HEADERS = 1000


def steps(ranks: RankPool, size: int, **asked: Any) -> list[Traffic]:
    """What each rank has sent; the wire has carried it, and little else."""
    options: TrainOptions = replace(OPTIONS, **asked)
    found: list[Traffic] = ranks.run(size, take, options, timeout=200)
    for traffic in found:
        # Gloo adds everything up on all ranks to hand out parts, and so sends those twice.
        most = traffic.bytes() + traffic.bytes(SCATTER) + HEADERS * (len(traffic.sent) + 1)
        assert traffic.bytes() <= traffic.wire <= most
    return found


def weights(found: Traffic) -> int:
    return 4 * sum(found.parameters.values())


def in_blocks(found: Traffic) -> int:
    return sum(n for name, n in found.parameters.items() if name.startswith("blocks."))


def activations(options: TrainOptions = OPTIONS) -> int:
    return 4 * options.micro_batch * LENGTH * DIM


def test_ddp(ranks: RankPool) -> None:
    """2 (W-1)/W P in one exchange for both micro-batches of a rank; DDP has made it a sum."""
    for found in steps(ranks, 2, strategy="ddp"):
        assert found.counts == {REDUCE: 2}
        assert found.bytes() == 2 * 1 / 2 * (weights(found) + TOGETHER)


def test_ddp_in_half(ranks: RankPool) -> None:
    """The same sum in float32, one for each block and one for the rest; nothing is gathered."""
    for found in steps(ranks, 2, strategy="ddp", precision="bf16"):
        assert found.counts == {REDUCE: UNITS + 1}
        assert found.bytes() == 2 * 1 / 2 * (weights(found) + TOGETHER)


def test_fsdp(ranks: RankPool) -> None:
    """Per micro-batch the weights for the forward and for the backward, and gradients."""
    for found in steps(ranks, 2, strategy="fsdp"):
        micro_batches, part = 2, 1 / 2
        gathered = weights(found) + 4 * in_blocks(found)
        assert found.bytes(GATHER) == micro_batches * part * gathered
        assert found.bytes(SCATTER) == micro_batches * part * weights(found)
        assert found.bytes(REDUCE) == 2 * part * (TOGETHER + NORM)
        assert found.counts[GATHER] == micro_batches * (UNITS + GIVEN_BACK)
        assert found.counts[SCATTER] == micro_batches * UNITS


@pytest.mark.parametrize(
    ("zero", "exchanges"), [pytest.param("2", 2, marks=pytest.mark.slow), ("1", 1)]
)
def test_weights_that_are_gathered_once_a_step(ranks: RankPool, zero: str, exchanges: int) -> None:
    """In 16 bits; gradients in 32, with each micro-batch or the last one alone."""
    for found in steps(ranks, 2, strategy="fsdp", precision="bf16", zero=zero):
        assert found.bytes(GATHER) == 1 / 2 * weights(found) / 2
        assert found.bytes(SCATTER) == exchanges * 1 / 2 * weights(found)
        assert found.counts == {GATHER: UNITS, SCATTER: exchanges * UNITS, REDUCE: 2}


@pytest.mark.slow
def test_hsdp(ranks: RankPool) -> None:
    """As fsdp within a copy, for each micro-batch; between the copies 2 (R-1)/R P/S, once."""
    for found in steps(ranks, 4, dp=2, shard=2, micro_batch=1):
        gathers = 2 * (UNITS + GIVEN_BACK)
        assert found.counts == {GATHER: gathers, SCATTER: 2 * UNITS, REDUCE: UNITS + 2}
        assert found.bytes(GATHER) == 2 * 1 / 2 * (weights(found) + 4 * in_blocks(found))
        assert found.bytes(SCATTER) == 2 * 1 / 2 * weights(found)
        own = 2 * 3 / 4 * (TOGETHER + NORM)
        assert found.bytes(REDUCE) == 2 * 1 / 2 * weights(found) / 2 + own


def partial(found: Traffic) -> int:
    """Bytes of what each rank of a tensor-parallel group applies to its part of the sequence."""
    parts = ("norm.", "positions.")
    return 4 * sum(n for name, n in found.parameters.items() if any(p in name for p in parts))


def in_tensor_group(number: int) -> float:
    """8 (T-1)/T a for each block; half of that for both ends, embedding and head, together."""
    return number * (8 * LAYERS + 4) * 1 / 2 * activations()


def of_tokens(number: int) -> float:
    """The cut loss: three numbers of each token, added up over the group."""
    return number * 2 * 1 / 2 * 3 * 4 * OPTIONS.micro_batch * LENGTH


@pytest.mark.slow
def test_tensor_parallel(ranks: RankPool) -> None:
    for found in steps(ranks, 2, strategy="tp"):
        assert found.bytes(GATHER) == found.bytes(SCATTER) == in_tensor_group(4) / 2
        own = partial(found) + TOGETHER + NORM
        assert found.bytes(REDUCE) == of_tokens(4) + 2 * 1 / 2 * own
        # The loss three times per micro-batch; the gradients of norms and positions at once.
        assert found.counts[REDUCE] == 4 * 3 + 1 + 2


def test_pipeline(ranks: RankPool) -> None:
    """Per chunk `a` to the next stage, and `a` back."""
    for found in steps(ranks, 2, strategy="pp"):
        assert found.counts == Counter({SEND: 4, REDUCE: 2})
        assert found.bytes(SEND) == 4 * activations()
        assert found.bytes(REDUCE) == 2 * 1 / 2 * (TOGETHER + NORM)


@pytest.mark.slow
def test_3d(ranks: RankPool) -> None:
    """Each axis as by itself, of its own share: over a cut goes a rank's part of the sequence."""
    found = steps(ranks, 4, strategy="3d")
    assert [traffic.bytes(SEND) for traffic in found] == [4 * activations() / 2] * 4
    for kind in (GATHER, SCATTER):
        # Wherever the cut is, the two stages together are the whole model.
        stages = [traffic.bytes(kind) for traffic in found]
        assert stages[0] + stages[2] == stages[1] + stages[3] == in_tensor_group(4) / 2
    own = 2 * 3 / 4 * (TOGETHER + NORM)
    sums = [traffic.bytes(REDUCE) - own for traffic in found]
    assert sums[0] + sums[2] == sums[1] + sums[3] == of_tokens(4) + partial(found[0])
