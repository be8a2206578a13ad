"""The learning rate as a function of the step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.train.schedule import FLOOR, learning_rate


def test_a_small_cosine_by_hand() -> None:
    rates = [learning_rate(step, 6, 1.0, 2, "cosine") for step in range(1, 7)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[3] == pytest.approx((1 + FLOOR) / 2)
    assert rates[5] == pytest.approx(FLOOR)


@given(
    last=st.integers(1, 300),
    warmup=st.integers(0, 400),
    peak=st.floats(1e-6, 10),
    schedule=st.sampled_from(["cosine", "constant"]),
)
def test_rises_to_the_peak_then_never_rises(
    last: int, warmup: int, peak: float, schedule: str
) -> None:
    rates = [learning_rate(step, last, peak, warmup, schedule) for step in range(1, last + 1)]
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in rates)
    rising, falling = rates[:warmup], rates[max(0, warmup - 1) :]
    assert all(a < b for a, b in pairwise(rising))
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(falling))
    if warmup and warmup <= last:
        assert rates[warmup - 1] == pytest.approx(peak)
    if last > warmup:
        assert rates[-1] == pytest.approx(peak * (FLOOR if schedule == "cosine" else 1))


def test_without_warm_up_the_first_step_is_near_the_peak() -> None:
    assert learning_rate(1, 1000, 0.3, 0, "cosine") == pytest.approx(0.3, rel=1e-4)
    assert learning_rate(1, 1000, 0.3, 0, "constant") == 0.3
