"""What orders are made of: numbers, or a data set that knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch.utils.data import Dataset, Subset

from rankup.base.errors import UserError
from rankup.data.orders import Balanced, Blocks, ByLength, Ordering, Sequential, Shuffled

from .test_blocks import epoch_of


class Known(Dataset[Any]):
    """A data set whose samples nobody may read to make an order."""

    def __init__(self, rows: npt.ArrayLike = range(30)) -> None:
        self.rows = np.asarray(rows)

    @property
    def labels(self) -> npt.NDArray[Any]:
        return self.rows % 3

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
    labels = lengths = property()  # type: ignore[assignment]


_ORDERS: list[tuple[Callable[[Any], Ordering], str]] = [
    (lambda given: Balanced(given, 1), "labels"),
    (lambda given: ByLength(given, 1, 4), "lengths"),
    (lambda given: Blocks.of(given, 1, 4), "lengths"),
]


@pytest.mark.parametrize(("made", "name"), _ORDERS)
def test_a_data_set_in_the_place_of_its_numbers(made: Callable[[Any], Ordering], name: str) -> None:
    data = Known()
    for given in (data, Subset(data, [4, 1, 7, 22, 9, 13])):
        same = given if given is data else data.subset(np.array([4, 1, 7, 22, 9, 13]))
        order, expected = made(given), made(getattr(same, name))
        assert order.identity == expected.identity
        assert np.array_equal(epoch_of(order), epoch_of(expected))
    with pytest.raises(UserError, match=f"Unknown has no {name}.*as an array"):
        made(Unknown())


@pytest.mark.parametrize("order", [Sequential(10), Shuffled(10, 1), Balanced([0, 1] * 5, 1)])
def test_a_slice_ends_with_the_epoch(order: Ordering) -> None:
    assert np.array_equal(order.slice(0, 7, 99), order.slice(0, 7, order.n))
    assert len(order.slice(0, order.n, 99)) == 0
