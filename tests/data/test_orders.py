"""The orders of single samples, and their numbers, which a data set may know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import factorial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset

from rankup.base.errors import UserError
from rankup.data.index import Int64s
from rankup.data.orders import ByLength, Ordering, Sequential, Shuffled, key_of, permutation


def epoch_of(order: Ordering, epoch: int = 0) -> Int64s:
    """An epoch as a Loader asks for it: batch by batch."""
    batch = order.global_batch or 7
    starts = range(0, order.n, batch)
    parts = [order.slice(epoch, start, min(start + batch, order.n)) for start in starts]
    return np.concatenate([np.empty(0, np.int64), *parts])


class Known(Dataset[Any]):
    """A data set whose samples nobody may read to make an order."""

    def __init__(self, rows: npt.ArrayLike = range(30)) -> None:
        self.rows = np.asarray(rows)

    @property
    def lengths(self) -> npt.NDArray[Any]:
        return self.rows + 10

    def subset(self, rows: npt.NDArray[np.int64]) -> Known:
        return Known(self.rows[rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        raise AssertionError("read")


class Unknown(Known):
    lengths = property()  # type: ignore[assignment]


_ORDERS: list[tuple[Callable[[Any], Ordering], str]] = [
    (lambda given: ByLength(given, 1, 4), "lengths"),
]


@pytest.mark.parametrize(("made", "name"), _ORDERS)
def test_a_data_set_in_the_place_of_its_numbers(made: Callable[[Any], Ordering], name: str) -> None:
    data = Known()
    for one in (data, Subset(data, [4, 1, 7, 22, 9, 13])):
        same = one if one is data else data.subset(np.array([4, 1, 7, 22, 9, 13]))
        order, expected = made(one), made(getattr(same, name))
        assert order.identity == expected.identity
        assert np.array_equal(epoch_of(order), epoch_of(expected))
    with pytest.raises(UserError, match=f"Unknown has no {name}.*as an array"):
        made(Unknown())


@pytest.mark.parametrize("order", [Sequential(10), Shuffled(10, 1)])
def test_a_slice_ends_with_the_epoch(order: Ordering) -> None:
    assert np.array_equal(order.slice(0, 7, 99), order.slice(0, 7, order.n))
    assert len(order.slice(0, order.n, 99)) == 0


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


def test_each_is_a_bijection() -> None:
    for size in [*range(130), 255, 256, 257, 1023, 1024, 1025]:
        assert sorted(permutation(size, key_of(5, size))) == list(range(size))


@pytest.mark.parametrize(("n", "draws"), [(2, 400), (3, 600), (4, 2400), (5, 12000)])
def test_uniform_over_permutations(n: int, draws: int) -> None:
    counts = Counter(tuple(permutation(n, key_of(0, draw)).tolist()) for draw in range(draws))
    cells, expected = factorial(n), draws / factorial(n)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    statistic += (cells - len(counts)) * expected
    # The chance of so much by itself: the survival function of chi-square.
    half = torch.tensor([cells - 1, statistic]) / 2
    assert torch.special.gammaincc(*half) > 1e-3


def test_keys_differ_by_seed_and_number() -> None:
    assert len({key_of(seed, number) for seed in range(50) for number in range(50)}) == 2500


def test_the_order_is_the_one_of_earlier_versions() -> None:
    """A run that goes on with a newer rankup, or numpy, must not change its order."""
    key = key_of(key_of(7, 3), 4)
    few = permutation(12, key)
    assert few.tolist() == [2, 7, 8, 11, 0, 10, 5, 4, 1, 9, 6, 3]
    many = permutation(100, key)[:89:8]
    assert many.tolist() == [27, 35, 48, 16, 52, 18, 10, 13, 37, 33, 89, 78]
    by_length = ByLength(np.arange(1000) % 37, 3, 50, 200).slice(2, 100, 150)
    assert by_length[:10].tolist() == [158, 825, 196, 603, 418, 381, 344, 530, 49, 123]
    shuffled = Shuffled(1000, 3).slice(2, 100, 110)
    assert shuffled.tolist() == [119, 631, 826, 694, 99, 938, 66, 671, 384, 37]
