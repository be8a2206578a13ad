"""Which sizes the axes get, and what is said where they do not come out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.parallel.layout import STRATEGIES, Layout, choose, crossing, nearest_layouts

# (ranks, ranks per node, strategy) -> pp, dp, shard, cp, tp
BY_NAME = {
    (8, 4, None): (1, 8, 1, 1, 1),
    (8, 4, "ddp"): (1, 8, 1, 1, 1),
    (8, 4, "fsdp"): (1, 1, 8, 1, 1),
    (8, 4, "hsdp"): (1, 2, 4, 1, 1),
    (4, 4, "hsdp"): (1, 2, 2, 1, 1),
    (2, 2, "hsdp"): (1, 1, 2, 1, 1),
    (8, 4, "tp"): (1, 2, 1, 1, 4),
    (8, 4, "pp"): (8, 1, 1, 1, 1),
    (4, 4, "3d"): (2, 1, 1, 1, 2),
    (16, 4, "3d"): (2, 1, 4, 1, 2),
    (1, 1, "fsdp"): (1, 1, 1, 1, 1),
}


@pytest.mark.parametrize("asked", BY_NAME, ids=str)
def test_a_strategy_alone_says_it_all(asked: tuple[int, int, str | None]) -> None:
    assert choose(*asked).sizes == BY_NAME[asked]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"tp": 2}, (1, 4, 1, 1, 2)),
        ({"pp": 2, "tp": 2}, (2, 2, 1, 1, 2)),
        ({"strategy": "fsdp", "shard": 8}, (1, 1, 8, 1, 1)),
        ({"strategy": "hsdp", "shard": 2}, (1, 4, 2, 1, 1)),
        ({"strategy": "hsdp", "dp": 4}, (1, 4, 2, 1, 1)),
        ({"strategy": "pp", "pp": 4}, (4, 2, 1, 1, 1)),
        ({"strategy": "3d", "dp": 2}, (2, 2, 1, 1, 2)),
        ({"strategy": "3d", "tp": 4}, (2, 1, 1, 1, 4)),
        ({"cp": 2}, (1, 4, 1, 2, 1)),
        ({"strategy": "fsdp", "cp": 2}, (1, 1, 4, 2, 1)),
        ({"strategy": "tp", "cp": 2, "tp": 2}, (1, 2, 1, 2, 2)),
    ],
    ids=str,
)
def test_open_sizes_are_filled(sizes: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert choose(8, 4, **sizes).sizes == expected


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"tp": 3}, ["tp 3 is 3 ranks, and there are 8", "--tp 4"]),
        ({"dp": 3, "tp": 2}, ["is 6 ranks, and there are 8", "--dp 4 --tp 2"]),
        ({"strategy": "ddp", "tp": 2}, ["--strategy ddp and --tp 2 contradict"]),
        ({"strategy": "fsdp", "pp": 2}, ["--strategy fsdp and --pp 2 contradict"]),
        ({"strategy": "ddp", "cp": 2}, ["--strategy ddp and --cp 2 contradict"]),
        ({"strategy": "gossip"}, ["--strategy gossip is gone in 0.3", "by-hand/gossip.py"]),
        ({"cp": 3}, ["cp 3 x tp 1 is 3 ranks, and there are 8", "--cp 4"]),
        ({"strategy": "zero"}, ["unknown strategy 'zero'", "hsdp"]),
        ({"tp": 0}, ["--tp 0 is no number of ranks"]),
        ({"pp": 16}, ["is 16 ranks, and there are 8"]),
    ],
    ids=str,
)
def test_what_does_not_come_out_is_refused(sizes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        choose(8, 4, **sizes)
    assert [word for word in words if word not in str(error.value)] == []


@given(st.integers(1, 64), st.sampled_from(STRATEGIES))
def test_a_chosen_layout_always_is_the_world(ranks: int, strategy: str) -> None:
    if strategy == "3d" and ranks % 4:
        with pytest.raises(UserError, match="nearest that come out"):
            choose(ranks, ranks, strategy)
    else:
        assert choose(ranks, ranks, strategy).world_size == ranks


@given(st.tuples(*[st.integers(1, 4)] * 5))
def test_coordinates_number_the_ranks(sizes: tuple[int, int, int, int, int]) -> None:
    layout = Layout(*sizes)
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert places == sorted(set(places))
    parts = {layout.data_rank(rank) for rank in range(layout.world_size)}
    assert parts == set(range(layout.data_size))
    held = {layout.shard_rank(rank) for rank in range(layout.world_size)}
    assert held == set(range(layout.shard_size))


@given(st.tuples(*[st.integers(1, 5)] * 5), st.integers(1, 32))
def test_nearest_layouts_come_out(sizes: tuple[int, int, int, int, int], ranks: int) -> None:
    found = nearest_layouts(Layout(*sizes), ranks)
    assert found
    assert {math.prod(layout.sizes) for layout in found} == {ranks}
    if sizes[3] == 1:  # few models can share a sequence
        assert {layout.cp for layout in found} == {1}
    if math.prod(sizes) == ranks:
        assert found[0] == Layout(*sizes)


def test_tensor_parallel_over_nodes_is_warned_of() -> None:
    assert crossing(Layout(tp=4), 4) is None
    assert "--tp 4 stays on a node" in str(crossing(Layout(tp=8), 4))
    assert "--tp 2 stays on a node" in str(crossing(Layout(tp=4), 2))
