"""Fewer points keep every peak, and never make up what was not sampled."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from rankup.monitor.recording import Band, buckets, coarse, folded, strip

VALUES = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.one_of(st.just(float("nan")), st.floats(-1e6, 1e6, width=32)),
)


@given(VALUES, st.integers(1, 5))
def test_a_strip_keeps_the_peaks(values: np.ndarray, factor: int) -> None:
    whole = strip(Band(values, values, values), factor)
    assert len(whole.mean) == -(-len(values) // factor)
    if np.isfinite(values).any():
        assert np.nanmax(whole.high) == np.nanmax(values)
        assert np.nanmin(whole.low) == np.nanmin(values)
    seen = np.isfinite(whole.mean)
    assert (whole.low[seen] <= whole.mean[seen] + 1).all()
    assert (seen == np.isfinite(folded(values, factor)).any(axis=(1, 2))).all()


def test_a_gap_stays_a_gap() -> None:
    values = np.array([[1], [np.nan], [np.nan], [np.nan], [5]], np.float32)
    np.testing.assert_array_equal(coarse(values, 2)[:, 0], np.array([1, np.nan, 5], np.float32))


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 20))
def test_no_bucket_has_two_groups(drawn: list[int], most: int) -> None:
    groups = np.array(sorted(drawn), np.int64)
    starts = buckets(groups, most)
    assert len(starts) <= most + len(set(drawn))
    for begin, end in itertools.pairwise([*starts, len(groups)]):
        assert len(set(groups[begin:end].tolist())) == 1
