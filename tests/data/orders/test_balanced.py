"""Each class equally often, and all of a class before any of it comes again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data import Loader
from rankup.data.orders import Balanced

from .test_blocks import epoch_of


@given(
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=120),
    seed=st.integers(0, 99),
    per_class=st.none() | st.integers(1, 30),
)
def test_classes_are_equal_and_samples_do_not_come_again(
    labels: list[int], seed: int, per_class: int | None
) -> None:
    known = np.array(labels)
    order = Balanced(known, seed, per_class)
    epochs = [epoch_of(order, epoch) for epoch in range(3)]
    for one in epochs:
        times = Counter(known[one].tolist())
        assert set(times) == set(labels)
        assert len(set(times.values())) == 1
    # From the first epoch on, each class goes through all of its samples before it begins anew.
    together = np.concatenate(epochs)
    for label in set(labels):
        members = np.flatnonzero(known == label)
        mine = together[known[together] == label]
        for start in range(0, len(mine), len(members)):
            through = mine[start : start + len(members)].tolist()
            assert len(set(through)) == len(through)


def test_ranks_agree_on_it() -> None:
    labels = torch_like = np.repeat([0, 1, 2], [40, 7, 3])
    numbers = [[i] for i in range(len(torch_like))]
    order = Balanced(labels, 5)
    one = [batch.reshape(-1).tolist() for batch in loader(numbers, order, 0, 1)]
    two = zip(loader(numbers, order, 0, 2), loader(numbers, order, 1, 2), strict=True)
    assert [a.reshape(-1).tolist() + b.reshape(-1).tolist() for a, b in two] == one


def loader(numbers: list[list[int]], order: Balanced, rank: int, world: int) -> Loader:
    def collate(items: list[list[int]]) -> np.ndarray:
        return np.array(items)

    return Loader(numbers, 8, shuffle=order, workers=0, collate=collate, rank=rank,  # type: ignore[arg-type]
                  world_size=world)  # fmt: skip


def test_samples_without_a_label() -> None:
    labels = np.array([0, -1, 2, 2, -1])
    with pytest.raises(UserError, match=r"2 of 5 samples have no label.*unlabelled='skip'"):
        Balanced(labels)
    order = Balanced(labels, unlabelled="skip")
    # Class 1 has no samples to give; -1 is no class.
    assert Counter(labels[epoch_of(order)].tolist()) == {0: 2, 2: 2}


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (None, {}, "has no labels"),
        ([], {}, "no sample with a label"),
        ([-1], {"unlabelled": "skip"}, "no sample with a label"),
        ([0.5, 1.0], {}, "whole numbers"),
        ([[0], [1]], {}, "whole numbers"),
        ([0, 1], {"per_class": 0}, "per_class=0 has to be"),
        ([0, 1], {"unlabelled": "drop"}, "not known"),
    ],
)
def test_what_cannot_be_balanced(labels: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Balanced(labels, **options)  # type: ignore[arg-type]
