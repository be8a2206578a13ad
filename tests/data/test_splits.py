"""Parts of a data set: exact, without a common sample, the same on every rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from rankup.base.errors import UserError
from rankup.data import Loader, PackedDataset, random_split
from rankup.data.orders.plain import unwrapped

from .feeding import Digest, small


def members(part: object) -> list[int]:
    return [int(one) for one in part]  # type: ignore[attr-defined]


@given(
    n=st.integers(0, 300),
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    seed=st.integers(0, 99),
)
def test_fractions_sum_to_all(n: int, weights: list[int], seed: int) -> None:
    fractions = [one / sum(weights) for one in weights]
    parts = [members(one) for one in random_split(range(n), fractions, seed)]  # type: ignore[arg-type]
    assert sorted(one for part in parts for one in part) == list(range(n))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * n) < 1
        assert part == sorted(part)
    again = [members(one) for one in random_split(range(n), fractions, seed)]  # type: ignore[arg-type]
    assert again == parts


def test_counts_are_exact_and_seeds_differ() -> None:
    first, other = (members(random_split(range(100), [70, 0, 30], seed)[0]) for seed in (0, 1))  # type: ignore[arg-type]
    assert len(first) == len(other) == 70
    assert first != other
    assert 20 < len(set(first) & set(range(50))) < 50  # random, not the first ones


@pytest.mark.parametrize(
    "parts", [[], [5, 4], [0.5, 0.4], [-1, 11], [float("nan"), 1.0], [0.5, 5], [True, 9]]
)
def test_parts_without_sense(parts: list[float]) -> None:
    with pytest.raises(UserError, match=r"counts \(int\) that sum to its 10 samples, or fractions"):
        random_split(range(10), parts)  # type: ignore[arg-type]


def test_parts_of_a_pack_keep_what_belongs_to_each_sample(tmp_path: Path) -> None:
    photos = PackedDataset(small(tmp_path, 30), transform=Digest())
    train, val = random_split(photos, [0.8, 0.2], seed=3)
    assert isinstance(train, PackedDataset)
    assert (len(train), len(val)) == (24, 6)  # type: ignore[arg-type]
    assert train.labels is not None
    assert len(train.labels) == len(train.lengths) == 24
    whole = {bytes(image.numpy()) for image, _ in photos.__getitems__(range(30))}
    parts = [bytes(image.numpy()) for part in (train, val) for image, _ in part]  # type: ignore[attr-defined]
    assert sorted(parts) == sorted(whole)


def test_torchs_subset_around_a_pack(tmp_path: Path) -> None:
    photos = PackedDataset(small(tmp_path, 30), transform=Digest())
    rows = [7, 3, 29, 11, 0]
    torchs = Subset(photos, rows)
    # In torch's own DataLoader as it is,
    batch, labels = next(iter(DataLoader(torchs, batch_size=5)))
    expected = photos.__getitems__(rows)
    assert torch.equal(batch, torch.stack([image for image, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]
    # and with the Loader's epochs, as the data set's own subset.
    twice = unwrapped(Subset(torchs, [4, 2]))
    assert isinstance(twice, PackedDataset)
    assert [twice.row(n) for n in range(2)] == [0, 29]
    both = [
        [image for image, _ in Loader(data, 2, seed=5, workers=0, rank=0, world_size=1)]
        for data in (torchs, photos.subset(rows))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    assert unwrapped(Subset(range(3), [0])).__class__ is Subset  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        unwrapped(Subset(photos, np.array([30])))  # type: ignore[arg-type]
