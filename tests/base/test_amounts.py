"""Amounts as people write and read them."""

from __future__ import annotations

import pytest

from rankup.base.amounts import bytes_of, duration, ranges
from rankup.base.errors import UserError


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GB", 10**9), ("1 GiB", 2**30), ("1.5m", 1_500_000), ("77", 77), ("2MiB", 2**21)],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text, "--x") == size


@pytest.mark.parametrize("text", ["", "GB", "1 ib", "-1", "1 EB", "1e9", "a lot"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UserError, match="--x"):
        bytes_of(text, "--x")


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([7, 1, 0, 2], "0-2,7")])
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (90, "1 min 30 s"),
        (700, "12 min"),
        (12_000, "3 h 20 min"),
        (190_000, "2 d 4 h"),
    ],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text
