"""What `rankup.data` gives by name."""

from __future__ import annotations

import pytest

import rankup


def test_names_and_rooms() -> None:
    for name in rankup.data.__all__:
        assert getattr(rankup.data, name) is not None
        assert name in dir(rankup.data)
    for room in ("photos", "orders", "stage", "dali", "transforms"):
        assert getattr(rankup.data, room).__name__ == f"rankup.data.{room}"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rankup.data.nothing


def test_a_star_leaves_pythons_own_names_alone() -> None:
    names: dict[str, object] = {}
    exec("from rankup.data import *", names)
    assert "open" not in names
    assert names["Loader"] is rankup.data.Loader
