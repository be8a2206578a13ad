"""Which part of a photo is taken, in numbers."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankup.data.photos import CenterCrop, RandomResizedCrop

_SIDES = st.one_of(st.integers(1, 12), st.integers(1, 70_000))


@given(_SIDES, _SIDES, st.integers(0, 2**32))
def test_a_part_lies_inside_the_photo(height: int, width: int, seed: int) -> None:
    top, left, down, across = (
        RandomResizedCrop(8).view(height, width, np.random.default_rng(seed)).part
    )
    assert 0 <= top < top + down <= height
    assert 0 <= left < left + across <= width


def test_parts_are_of_the_area_and_shape_that_was_asked_for() -> None:
    rng = np.random.default_rng(1)
    drawn = np.array([RandomResizedCrop(8).view(300, 400, rng).part for _ in range(4000)])
    top, left, down, across = drawn.T
    area, shape = down * across / (300 * 400), across / down
    assert 0.075 < area.min() < 0.1
    assert 0.97 < area.max() <= 1
    assert 0.73 < shape.min() < 0.77
    assert 1.3 < shape.max() < 1.36
    # Small ones fit nearly everywhere: they are as often upright as not, and their place is even.
    small = area < 0.2
    assert abs(np.log(shape[small]).mean()) < 0.02
    assert abs((top[small] / (300 - down[small])).mean() - 0.5) < 0.03
    assert abs((left[small] / (400 - across[small])).mean() - 0.5) < 0.03


def test_the_middle_square() -> None:
    def centre(height: int, width: int, size: int, resize: int | None = None) -> tuple[int, ...]:
        found = CenterCrop(size, resize).view(height, width, np.random.default_rng())
        assert found.part == (0, 0, height, width)
        return *found.size, *found.corner

    assert centre(375, 500, 224) == (256, 341, 16, 58)  # 58.5 to the even one
    assert centre(500, 375, 224) == (341, 256, 58, 16)
    assert centre(375, 500, 224, 224) == (224, 298, 0, 37)
    assert centre(1, 1, 8) == (9, 9, 0, 0)  # 0.5 to the even one
    for height, width in ((10, 7000), (97, 100), (333, 333)):
        down, across, top, left = centre(height, width, 160)
        assert min(down, across) == round(160 * 256 / 224)
        assert math.isclose(across / down, width / height, rel_tol=0.01)
        assert 0 <= top <= down - 160
        assert 0 <= left <= across - 160
