"""Block shuffle: exact, elastic, and each rank reads only its own part."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.batches import Batches, BatchRequest
from rankup.data.index import Int64s
from rankup.data.orders import Blocks, Ordering, Shuffled
from rankup.runtime.keys import derive
from rankup.runtime.shard import part


def epoch_of(order: Ordering, epoch: int = 0) -> Int64s:
    """An epoch as a Loader asks for it: batch by batch."""
    batch = order.global_batch or 7
    starts = range(0, order.n, batch)
    parts = [order.slice(epoch, start, min(start + batch, order.n)) for start in starts]
    return np.concatenate([np.empty(0, np.int64), *parts])


blocks = st.builds(
    Blocks,
    n=st.integers(0, 700),
    seed=st.integers(0, 1 << 62),
    global_batch=st.integers(1, 90),
    block=st.integers(1, 60),
    window=st.integers(1, 120),
    lanes=st.integers(1, 70),
)


def requests(order: Blocks, epoch: int, start: int, rank: int, world: int) -> list[BatchRequest]:
    batches = Batches(order, order.global_batch, rank=rank, world_size=world)
    batches.go_to(epoch, start)
    return list(batches.requests())


def check(order: Blocks, epoch: int, batch: int, worlds: tuple[int, ...]) -> None:
    whole = epoch_of(order, epoch)
    assert np.array_equal(np.sort(whole), np.arange(order.n))
    again = pickle.loads(pickle.dumps(order))
    # Resume at any batch boundary, on any number of ranks.
    start = min(batch * order.global_batch, order.n)
    for world in worlds:
        ranks = [requests(again, epoch, start, rank, world) for rank in range(world)]
        joined = [
            np.concatenate([one.samples[: one.count] for one in step])
            for step in zip(*ranks, strict=True)
        ]
        assert np.array_equal(np.concatenate([whole[:start], *joined]), whole)


@given(order=blocks, epoch=st.integers(0, 1 << 40), batch=st.integers(0, 700))
def test_an_epoch_has_each_sample_once_and_goes_on_anywhere(
    order: Blocks, epoch: int, batch: int
) -> None:
    check(order, epoch, batch, (1, 3, 5))


@pytest.mark.slow
@settings(max_examples=8)
@given(order=blocks, epoch=st.integers(0, 5), world=st.integers(1, 9))
def test_windows_are_what_a_rank_reads(order: Blocks, epoch: int, world: int) -> None:
    """Read-ahead is told by `windows` and `members` what the rank's batches will take."""
    for rank in range(world):
        for start in [*range(0, order.n, order.global_batch)][-3:]:
            stop = min(start + order.global_batch, order.n)
            mine = part(stop - start, rank, world)
            own = order.slice(epoch, start, stop)[mine.start : mine.stop]
            pairs = order.windows(epoch, start, rank, world)
            read = [order.members(epoch, lane, window) for lane, window in pairs]
            assert all(0 < len(one) <= order.window for one in read)
            assert set(own) <= set(np.concatenate([np.empty(0, np.int64), *read]))


def test_seeds_and_epochs_differ() -> None:
    orders = [epoch_of(Blocks(900, seed, 50, 10, 50, 8), epoch) for seed in (0, 1) for epoch in
              (0, 1)]  # fmt: skip
    for place, one in enumerate(orders):
        for other in orders[place + 1 :]:
            assert (one == other).mean() < 0.05


def blocks_touched(order: Ordering, rank: int, world: int, batches: range, block: int) -> int:
    """Different blocks that a rank reads in some batches; blocks as the epoch's turn cuts them."""
    size = order.global_batch or 0
    turn = derive(3, "turn", 0) % order.n
    taken = []
    for number in batches:
        stop = min((number + 1) * size, order.n)
        mine = part(stop - number * size, rank, world)
        batch = order.slice(0, number * size, stop)
        taken.append(batch[mine.start : mine.stop])
    return len(np.unique((np.concatenate(taken) - turn) % order.n // block))


def test_a_rank_touches_few_blocks() -> None:
    """Of 200 000 samples in blocks of 64, while each lane goes through one window of 512."""
    n, batch, window, lanes, block = 200_000, 256, 512, 32, 64
    order, shuffled = Blocks(n, 3, batch, block, window, lanes), Shuffled(n, 3, batch)
    steps = range(70, 70 + window * lanes // batch)
    for world in (1, 2, 4, 8):
        touched = [blocks_touched(order, rank, world, steps, block) for rank in range(world)]
        full = blocks_touched(shuffled, 0, world, steps, block)
        # Two windows of each lane, as lanes change theirs one after another, and blocks at borders.
        assert max(touched) <= 2 * (window // block + 1) * lanes / world
        assert full > 4.9 * max(touched)
    # Where ranks do not divide the lanes, one is shared at each border.
    touched = [blocks_touched(order, rank, 3, steps, block) for rank in range(3)]
    assert max(touched) <= 2 * (window // block + 1) * (lanes // 3 + 2)


def test_over_an_epoch_a_rank_reads_its_part_alone() -> None:
    n, batch, block, lanes = 100_000, 256, 50, 64
    order, shuffled = Blocks(n, 3, batch, block, 400, lanes), Shuffled(n, 3, batch)
    steps = range(-(-n // batch))
    for world in (1, 3):
        touched = [blocks_touched(order, rank, world, steps, block) for rank in range(world)]
        # Over all ranks each block once, but for those on which the border of two lies.
        assert sum(touched) <= n / block + lanes * world
        assert max(touched) <= n / block / world * 1.12 + 2
    assert blocks_touched(shuffled, 0, 4, steps, block) == n / block


def test_classes_that_lie_together_are_mixed() -> None:
    """ImageNet's size, sorted by class: the figure of the docstring."""
    n, classes = 1_281_167, 1000
    order = Blocks(n, 0, 1024)
    found = [
        len(np.unique(order.slice(0, start, start + 1024) * classes // n))
        for start in range(0, n - 1024, 40 * 1024)
    ]
    assert 370 < np.mean(found) < 400
    finer = Blocks(n, 0, 1024, block=16)
    found = [
        len(np.unique(finer.slice(0, start, start + 1024) * classes // n))
        for start in range(0, n - 1024, 40 * 1024)
    ]
    assert np.mean(found) > 580


def test_sizes_by_bytes() -> None:
    lengths = np.full(100_000, 110_000)
    order = Blocks.of(lengths, 1, 1024)
    assert order.window * order.lanes * 110_000 <= 4 << 30
    assert order.block * 110_000 <= 16 << 20
    assert order.window >= 8 * order.block
    unknown = Blocks.of(np.full(50, -1), 1, 8)
    assert np.array_equal(np.sort(epoch_of(unknown)), np.arange(50))
    # The order must not follow from the number of ranks, nor from how large single samples are.
    assert Blocks.of(lengths[::-1], 1, 1024) == order
    assert epoch_of(Blocks.of([], 1, 8)).tolist() == []


@pytest.mark.parametrize("name", ["global_batch", "block", "window", "lanes"])
def test_numbers_without_sense(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}=0 has to be a whole number, 1 or more"):
        Blocks(**{"n": 10, "seed": 0, "global_batch": 4, name: 0})  # type: ignore[arg-type]
