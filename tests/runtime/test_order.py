"""The order of samples: a bijection, uniform, and the same however it is asked for."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from math import factorial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankup.runtime.order import Order

POWERS = [2**k + d for k in range(6, 14) for d in (-1, 0, 1)]
SOME_SIZES = sorted({*range(70), *POWERS, *random.Random(0).sample(range(10_001), 60), 10_000})


def _is_bijection(n: int, seed: int, epoch: int) -> bool:
    samples = Order(n, seed, epoch)(torch.arange(n))
    return torch.equal(samples.sort().values, torch.arange(n))


def test_bijection() -> None:
    assert [n for n in SOME_SIZES if not _is_bijection(n, seed=n, epoch=1)] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bijection_for_all_n_up_to_1024() -> None:
    """Past every power of four up to there, each of which is another width of the network."""
    sizes = (*range(1_030), *range(1_030, 4_100, 99))
    assert [n for n in sizes if not _is_bijection(n, seed=3, epoch=n % 7)] == []


@pytest.mark.slow
def test_uniform_over_permutations() -> None:
    assert _p_value(3, 120, by_epoch=False) > 1e-3


@pytest.mark.slow
def test_uniform_over_epochs() -> None:
    assert _p_value(4, 240, by_epoch=True) > 1e-3


def _p_value(n: int, draws: int, by_epoch: bool) -> float:
    """Chi-square of the permutations that `draws` seeds (or epochs) give, against uniform."""
    orders = (Order(n, 0, i) if by_epoch else Order(n, i, 0) for i in range(draws))
    counts = Counter(tuple(order(torch.arange(n)).tolist()) for order in orders)
    cells, expected = factorial(n), draws / factorial(n)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    statistic += (cells - len(counts)) * expected
    # The chance of so much by itself: the survival function of chi-square.
    half = torch.tensor([cells - 1, statistic]) / 2
    return float(torch.special.gammaincc(*half))


def test_neighbours_land_apart() -> None:
    """In a large order the first samples of two epochs, and of two seeds, hardly overlap."""
    n, take = 1_000_000, 1000
    for other in (Order(n, 0, 1), Order(n, 1, 0)):
        first = set(Order(n, 0, 0)(torch.arange(take)).tolist())
        assert len(first & set(other(torch.arange(take)).tolist())) < 10


@given(st.data())
def test_slices_are_what_single_positions_give(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 90), "n")
    order = Order(n, data.draw(st.integers(-5, 2**70), "seed"), data.draw(st.integers(0, 9)))
    bound = st.none() | st.integers(-n - 3, n + 3)
    step = st.none() | st.integers(-4, 4).filter(bool)
    cut = slice(data.draw(bound), data.draw(bound), data.draw(step))
    part = order[cut]
    assert isinstance(part, torch.Tensor)
    assert part.dtype == torch.int64
    assert part.tolist() == [order[position] for position in range(n)[cut]]


@given(st.integers(1, 2**62 - 1), st.integers(0, 2**62), st.integers(0, 2**62))
def test_large_orders_stay_in_range(n: int, seed: int, position: int) -> None:
    order = Order(n, seed)
    sample = order[position % n]
    assert isinstance(sample, int)
    assert 0 <= sample < n
    assert order[position % n - n] == sample


def test_pieces_do_not_show() -> None:
    order = Order(200_000, seed=5)
    slices = [order[start : start + 7919] for start in range(0, len(order), 7919)]
    assert torch.equal(torch.cat(slices), order(torch.arange(len(order))))


def test_any_shape_and_integer_type() -> None:
    order = Order(1000, seed=1)
    positions = torch.tensor([[3, 1, 4], [1, 5, 9]])
    samples = order(positions)
    assert samples.shape == (2, 3)
    assert torch.equal(order(positions.to(torch.int32)), samples)
    assert order(positions[:0]).numel() == 0
    assert positions.tolist() == [[3, 1, 4], [1, 5, 9]], "the positions were overwritten"


def test_small_orders() -> None:
    assert len(Order(0)) == 0
    assert Order(0)[:].tolist() == []
    assert list(Order(0)) == []
    assert Order(1)[0] == 0
    assert Order(1)[:].tolist() == [0]
    assert sorted(Order(3)) == [0, 1, 2]


def test_equal_after_pickling() -> None:
    order = Order(1000, seed=7, epoch=2)
    again = pickle.loads(pickle.dumps(order))
    assert again == order
    assert hash(again) == hash(order)
    assert torch.equal(again[:], order[:])
    assert order != Order(1000, seed=7, epoch=3)


def test_the_order_of_a_seed_never_changes() -> None:
    """A run resumed with a later rankup must go on in the order it began with."""
    assert Order(10, seed=0, epoch=0)[:].tolist() == [0, 7, 9, 6, 4, 2, 8, 1, 3, 5]


def test_errors_say_what_was_found() -> None:
    with pytest.raises(ValueError, match="-1"):
        Order(-1)
    with pytest.raises(ValueError, match="2\\*\\*62"):
        Order(2**62)
    for position in (5, -6):
        with pytest.raises(IndexError, match=f"{position} is outside an order of 5"):
            Order(5)[position]
    for positions in ([0, 5], [-1, 0]):
        with pytest.raises(IndexError, match="outside an order of 5"):
            Order(5)(torch.tensor(positions))
    with pytest.raises(IndexError):
        Order(0)[0]
