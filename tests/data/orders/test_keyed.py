"""Permutations with a key and a size for each element."""

from __future__ import annotations

from collections import Counter
from math import factorial

import numpy as np
import pytest
from scipy.stats import chi2

from rankup.data.orders import Balanced, Blocks, ByLength, Shuffled
from rankup.data.orders.plain import keys, permuted


def test_each_is_a_bijection() -> None:
    sizes = np.array([*range(130), 255, 256, 257, 1023, 1024, 1025])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    places = np.concatenate([np.arange(size) for size in sizes])
    found = permuted(places, sizes[owner], keys(5, owner))
    for number, size in enumerate(sizes):
        assert sorted(found[owner == number]) == list(range(size))


@pytest.mark.parametrize(("n", "draws"), [(2, 400), (3, 600), (4, 2400), (5, 12000)])
def test_uniform_over_permutations(n: int, draws: int) -> None:
    owner = np.repeat(np.arange(draws), n)
    places = np.tile(np.arange(n), draws)
    found = permuted(places, np.full(draws * n, n), keys(0, owner)).reshape(draws, n)
    counts = Counter(map(tuple, found.tolist()))
    cells, expected = factorial(n), draws / factorial(n)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    statistic += (cells - len(counts)) * expected
    assert chi2.sf(statistic, cells - 1) > 1e-3


def test_keys_differ_by_every_part_and_its_place() -> None:
    first, second = np.meshgrid(np.arange(50), np.arange(50))
    assert len(np.unique(np.stack([keys(1, first, second), keys(2, first, second)]))) == 5000


def test_the_order_is_the_one_of_earlier_versions() -> None:
    """A run that goes on with a newer rankup, or numpy, must not change its order."""
    key = keys(7, np.full(12, 3), np.full(12, 4))
    few = permuted(np.arange(12), np.full(12, 12), key)
    assert few.tolist() == [2, 7, 8, 11, 0, 10, 5, 4, 1, 9, 6, 3]
    many = permuted(np.arange(12) * 8, np.full(12, 100), key)
    assert many.tolist() == [27, 35, 48, 16, 52, 18, 10, 13, 37, 33, 89, 78]
    blocks = Blocks(1000, 3, 50, 16, 64, 8).slice(2, 100, 150)
    assert blocks[:10].tolist() == [615, 534, 536, 611, 263, 261, 537, 802, 80, 208]
    balanced = Balanced(np.arange(100) % 7, 3).slice(2, 20, 30)
    assert balanced.tolist() == [68, 9, 63, 89, 71, 6, 24, 25, 65, 85]
    by_length = ByLength(np.arange(1000) % 37, 3, 50, 200).slice(2, 100, 150)
    assert by_length[:10].tolist() == [158, 825, 196, 603, 418, 381, 344, 530, 49, 123]
    shuffled = Shuffled(1000, 3).slice(2, 100, 110)
    assert shuffled.tolist() == [119, 631, 826, 694, 99, 938, 66, 671, 384, 37]
