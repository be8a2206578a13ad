"""What each strategy sends in a training step of the transformer, against theory.

`L` blocks; a rank's part of the model is gathered in units: each block, and what is left of it
(under pp: of its stage). Numbers are those of Rajbhandari et al., 2020 (sharded), Korthikanti et
al., 2022 (tensor with sequence parallel) and Narayanan et al., 2021 (pipeline).
"""

from __future__ import annotations

from collections import Counter

import pytest

from rankup.parallel.build import Choices
from rankup.parallel.layout import Layout
from tests.pool import RankPool

from .comms import CHUNKS, SAMPLES, Message, Step, step
from .tasks import LENGTH

GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"
DIM = 16
ONE = Counter({REDUCE: 1})  # the norm of all gradients, for clipping


def times(number: int, *counters: Counter[str]) -> Counter[str]:
    return Counter({k: number * n for c in counters for k, n in c.items()})


def in_tensor_group(found: Step) -> tuple[Counter[str], Counter[str]]:
    """Forward and backward of one batch, within a tensor-parallel group.

    The sequence is gathered in front of attention, feed-forward and head, and sums are handed out
    in parts behind the embedding, attention and feed-forward; the backward of each is the other.
    The loss needs three numbers of each token: largest logit, sum of exponentials, its target's.
    """
    gathers = 2 * found.blocks + found.last
    scatters = 2 * found.blocks + found.first
    forward = Counter({GATHER: gathers, SCATTER: scatters, REDUCE: 3 * found.last})
    return +forward, +Counter({GATHER: scatters, SCATTER: gathers})


def partial(found: Step) -> int:
    """Parameters that each rank of a tensor-parallel group applies to its part of the sequence:
    weight and bias of each norm, and the positions."""
    return 4 * found.blocks + 2 * found.last + found.first


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp(ranks: RankPool, layers: int, reshard: bool) -> None:
    """Each unit is gathered for the forward, again for the backward unless it was kept, and its
    gradient is handed out in parts."""
    units = layers + 1
    for found in ranks.run(2, step, Layout(dp_shard=2), Choices(reshard=reshard), layers):
        assert found.forward == Counter({GATHER: units})
        assert found.backward == +Counter({GATHER: units * reshard, SCATTER: units})
        assert (found.finish, found.norm) == (Counter(), ONE)


def test_ddp(ranks: RankPool) -> None:
    """The gradients of a model of less than a bucket (1 MB) travel in one all-reduce."""
    for found in ranks.run(2, step, Layout(dp_replicate=2), Choices(), 3):
        assert (found.forward, found.backward, found.finish) == (Counter(), ONE, Counter())


def test_tensor_parallel(ranks: RankPool) -> None:
    for found in ranks.run(2, step, Layout(tp=2), Choices(), 3):
        assert (found.forward, found.backward) == in_tensor_group(found)
        assert found.blocks == 3
        assert found.finish == ONE  # all gradients of norms and positions at once
        assert found.norm == ONE


def passed(peer: int, number: int, length: int = LENGTH) -> Counter[Message]:
    return Counter({(peer, (SAMPLES, length, DIM)): number})


def test_pipeline(ranks: RankPool) -> None:
    """Over a cut go one activation and one gradient of each chunk, and nothing else."""
    first, last = ranks.run(2, step, Layout(pp=2), Choices(), 3)
    assert (first.sent, first.received) == (passed(1, CHUNKS), passed(1, CHUNKS))
    assert (last.sent, last.received) == (passed(0, CHUNKS), passed(0, CHUNKS))
    assert first.blocks + last.blocks == 3
    for found in (first, last):
        assert (found.forward, found.finish, found.norm) == (Counter(), Counter(), ONE)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["naive", "gpipe", "interleaved"])
def test_schedules_differ_in_their_cuts_alone(ranks: RankPool, schedule: str) -> None:
    """Two stages on each of two ranks have three cuts, all between the ranks."""
    cuts = 3 if schedule == "interleaved" else 1
    first, last = ranks.run(2, step, Layout(pp=2), Choices(schedule=schedule), 3)
    assert (first.sent, first.received) == (passed(1, cuts * CHUNKS), passed(1, cuts * CHUNKS))
    assert (last.sent, last.received) == (passed(0, cuts * CHUNKS), passed(0, cuts * CHUNKS))


@pytest.mark.slow
def test_hsdp(ranks: RankPool) -> None:
    """As under fsdp within a copy; then each unit's parts are added up over the copies."""
    for found in ranks.run(4, step, Layout(dp_replicate=2, dp_shard=2), Choices(), 3):
        assert found.forward == Counter({GATHER: 4})
        assert found.backward == Counter({GATHER: 4, SCATTER: 4, REDUCE: 4})
        assert (found.finish, found.norm) == (Counter(), ONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [Layout(dp_shard=2, tp=2), Layout(dp_replicate=2, tp=2)], ids=str
)
def test_data_and_tensor_parallel(ranks: RankPool, layout: Layout) -> None:
    """Both as alone, but for what FSDP does: it adds up each parameter's parts by itself."""
    for found in ranks.run(4, step, layout, Choices(), 3):
        forward, backward = in_tensor_group(found)
        units = Counter({GATHER: 4}) if layout.dp_shard > 1 else Counter()
        sums = Counter({SCATTER: 4}) if layout.dp_shard > 1 else Counter({REDUCE: 4})
        assert found.forward == forward + units
        assert found.backward == backward + units + sums + Counter({REDUCE: partial(found)})
        assert (found.finish, found.norm) == (Counter(), ONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [Layout(pp=2, dp_shard=2), Layout(pp=2, dp_replicate=2)], ids=str
)
def test_data_parallel_pipelines(ranks: RankPool, layout: Layout) -> None:
    """A stage is gathered, and its gradient exchanged, once a step for all its chunks."""
    reports = ranks.run(4, step, layout, Choices(), 3)
    for rank, found in enumerate(reports):
        units = found.blocks + 1
        once = {GATHER: units, SCATTER: units} if layout.dp_shard > 1 else {REDUCE: units}
        assert found.forward == Counter(once)
        assert (found.finish, found.norm) == (Counter(), ONE)
        peer = (rank + 2) % 4
        assert (found.sent, found.received) == (passed(peer, CHUNKS), passed(peer, CHUNKS))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(pp=2, tp=2), Layout(pp=2, dp_shard=2, tp=2)], ids=str)
def test_tensor_parallel_pipelines(ranks: RankPool, layout: Layout) -> None:
    """Between stages each rank hands on its part of the sequence."""
    half = layout.world_size // 2
    for rank, found in enumerate(ranks.run(layout.world_size, step, layout, Choices(), 3)):
        forward, backward = in_tensor_group(found)
        expected = times(CHUNKS, forward + backward)
        finish = ONE
        if layout.dp_shard > 1:
            units = found.blocks + 1
            expected += Counter({GATHER: units, SCATTER: units, REDUCE: partial(found)})
            finish = Counter()
        assert found.forward == expected
        assert (found.finish, found.norm) == (finish, ONE)
        peer, part = (rank + half) % layout.world_size, LENGTH // 2
        assert found.sent == found.received == passed(peer, CHUNKS, part)
