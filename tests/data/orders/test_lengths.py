"""Batches of similar lengths: exact sizes, each sample once, little padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.index import Int64s
from rankup.data.orders import ByLength, Shuffled

from .test_blocks import epoch_of


@st.composite
def orders(draw: st.DrawFn) -> ByLength:
    n = draw(st.integers(0, 400))
    lengths = np.random.default_rng(n).integers(0, 50, n)
    window = draw(st.none() | st.integers(1, 300))
    return ByLength(lengths, draw(st.integers(0, 99)), draw(st.integers(1, 50)), window)


@pytest.mark.slow
@given(order=orders(), epoch=st.integers(0, 5), batch=st.integers(0, 400))
def test_each_sample_once_and_any_batch_by_itself(order: ByLength, epoch: int, batch: int) -> None:
    whole = epoch_of(order, epoch)
    assert np.array_equal(np.sort(whole), np.arange(order.n))
    start = batch * order.global_batch
    if start < order.n:
        stop = min(start + order.global_batch, order.n)
        again = ByLength(order.lengths, order.seed, order.global_batch, order.window)
        assert np.array_equal(again.slice(epoch, start, stop), whole[start:stop])


def padded(lengths: Int64s, order: Int64s, batch: int) -> float:
    """Values of an epoch with padding, by those without."""
    parts = [lengths[order[at : at + batch]] for at in range(0, len(order), batch)]
    return sum(len(one) * int(one.max()) for one in parts) / int(lengths.sum())


def test_it_pads_little_and_is_no_curriculum() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 0.8, 40_000).astype(np.int64) + 1
    order = ByLength(lengths, 1, 64)
    by_length, shuffled = epoch_of(order), epoch_of(Shuffled(len(lengths), 1, 64))
    assert padded(lengths, shuffled, 64) > 2.5
    assert padded(lengths, by_length, 64) < 1.2
    assert padded(lengths, epoch_of(ByLength(lengths, 1, 64, 40_000)), 64) < 1.05
    # Short and long batches come in random order.
    means = [lengths[by_length[at : at + 64]].mean() for at in range(0, len(lengths), 64)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.15
    # Another epoch has other batches.
    first = {frozenset(by_length[at : at + 64].tolist()) for at in range(0, 40_000, 64)}
    other = epoch_of(order, 1)
    assert not first & {frozenset(other[at : at + 64].tolist()) for at in range(0, 40_000, 64)}


def test_the_short_batch_is_not_always_of_the_longest() -> None:
    lengths = np.arange(1, 111)
    order = ByLength(lengths, 0, 20)
    last = [lengths[order.slice(epoch, 100, 110)].mean() for epoch in range(40)]
    assert min(last) < 30
    assert max(last) > 80
    assert len(set(last)) > 3


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([3, -1, 5], {}, "lengths of 1 of 3 samples are not known"),
        ([3.5], {}, "whole numbers"),
        ([[3]], {}, "whole numbers"),
        ([3], {"window": 0}, "window=0"),
        ([3], {"global_batch": 0}, "global_batch=0"),
    ],
)
def test_what_cannot_be_sorted(lengths: object, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ByLength(lengths, 0, **{"global_batch": 4, **options})  # type: ignore[arg-type]
