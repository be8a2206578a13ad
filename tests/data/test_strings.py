"""Strings in two arrays behave as a list of bytes does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.data.strings import Strings

LISTS = st.lists(st.binary(max_size=12), max_size=20)


@settings(deadline=None, max_examples=60)
@given(LISTS, st.data())
def test_they_behave_as_a_list_of_bytes(values: list[bytes], data: st.DataObject) -> None:
    strings = Strings.of(values)
    assert len(strings) == len(values)
    assert list(strings) == values == [strings[row] for row in range(len(values))]
    rows = data.draw(
        st.lists(st.integers(0, max(0, len(values) - 1)), max_size=30 if values else 0)
    )
    taken = strings.take(np.array(rows, np.int64))
    assert list(taken) == [values[row] for row in rows]
    for value in [*values, b"no such"]:
        assert strings.find(value) == (values.index(value) if value in values else None)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.binary(max_size=9).map(lambda value: value.rstrip(b"\0")), max_size=10))
def test_rows_of_one_width_lose_their_padding(values: list[bytes]) -> None:
    assert list(Strings.fixed(np.array(values, "S9").reshape(-1))) == values


def test_bytes_that_are_no_text_come_through() -> None:
    name = "\udcff/ü"
    assert Strings.of([name.encode("utf-8", "surrogateescape")]).text(0) == name
