"""Sums of compressed messages over 1 to 4 ranks, and the bytes that they take."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from rankup.runtime.compress.codecs import Int8, TopK, Whole, make
from rankup.runtime.compress.names import parse
from rankup.runtime.compress.sums import Feedback, Spent, bytes_sent, start, sum_over
from rankup.runtime.world import World
from tests.parallel.traffic import delivered
from tests.pool import RankPool

NAMES = ("none", "bf16", "int8", "topk:0.05")
# Gloo's headers and connections of one collective, and the barrier around: measured 100 to 900.
HEADERS = 2000


def _given(rank: int, n: int, round_: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(1000 * round_ + rank))


def _rounds(world: World, name: str, n: int, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All sums added up, and what this rank still owes."""
    feedback, codec = Feedback(), make(parse(name))
    total = torch.zeros(n)
    for round_ in range(rounds):
        values = _given(world.rank, n, round_)
        before = values.clone()
        total += sum_over(values, codec, feedback)
        assert torch.equal(values, before), "what is given stays"
    owed = torch.zeros(n) if feedback.residual is None else feedback.residual
    return total, owed


def _every_rounds(
    world: World, cases: list[tuple[str, int]], rounds: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [_rounds(world, name, n, rounds) for name, n in cases]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sums_and_what_is_owed_are_all_that_was_given(ranks: RankPool, world_size: int) -> None:
    rounds, cases = 12, [(name, n) for name in NAMES for n in (0, 1, 700)]
    by_rank = ranks.run(world_size, _every_rounds, cases, rounds)
    for case, *found in zip(cases, *by_rank, strict=True):
        totals = [total for total, _ in found]
        assert all(torch.equal(totals[0], total) for total in totals), f"{case}: equal on all ranks"
        n = case[1]
        given = sum(_given(r, n, i).double() for r in range(world_size) for i in range(rounds))
        owed = sum(owed.double() for _, owed in found)
        got = totals[0].double() + owed
        torch.testing.assert_close(got, given, rtol=1e-4, atol=1e-4, msg=f"{case}: {{}}".format)


def _beside_all_reduce(world: World, n: int) -> float:
    values = _given(world.rank, n, 0)
    exact = values.clone()
    dist.all_reduce(exact)
    assert torch.equal(sum_over(values, Whole(), Feedback()), exact)
    found = sum_over(values, Int8(), Feedback())
    return float((found - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("world_size", [2, 3])
def test_whole_is_an_all_reduce_and_int8_near_it(ranks: RankPool, world_size: int) -> None:
    assert max(ranks.run(world_size, _beside_all_reduce, 5000)) < world_size / 127


def _nan(world: World, name: str, bad: float) -> tuple[bool, bool]:
    """Whether a sum with a NaN of the last rank is finite, and the one after it."""
    codec, feedback = make(parse(name)), Feedback()
    sum_over(_given(world.rank, 999, 0), codec, feedback)
    values = _given(world.rank, 999, 1)
    if world.rank == world.world_size - 1:
        values[5:500] = bad
    broken = sum_over(values, codec, feedback)
    after = sum_over(_given(world.rank, 999, 2), codec, feedback)
    return bool(broken.isfinite().all()), bool(after.isfinite().all())


def _every_nan(world: World) -> dict[tuple[str, str], tuple[bool, bool]]:
    bad = {"nan": torch.nan, "inf": torch.inf}
    return {(name, key): _nan(world, name, bad[key]) for name in NAMES for key in bad}


def test_what_is_not_finite_on_one_rank_is_so_on_all(ranks: RankPool) -> None:
    for found in ranks.run(3, _every_nan):
        assert len(found) == 8
        assert [case for case, answer in found.items() if answer != (False, True)] == []


def _three_at_once(world: World, name: str) -> bool:
    """Sums may be under way together, as DDP's buckets are."""
    codec, vectors = make(parse(name)), [_given(world.rank, 300 + i, i) for i in range(3)]
    under_way = [start(values, codec, Feedback()) for values in vectors]
    for one in under_way:
        one.turn()
    together = [one.result() for one in under_way]
    alone = [sum_over(values, codec, Feedback()) for values in vectors]
    return all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def _every_at_once(world: World) -> dict[str, bool]:
    return {name: _three_at_once(world, name) for name in NAMES}


def test_sums_under_way_together(ranks: RankPool) -> None:
    assert ranks.run(2, _every_at_once) == [dict.fromkeys(NAMES, True)] * 2


def _in_a_group(world: World, names: tuple[str, ...]) -> list[float]:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    values = torch.full((10,), float(world.rank))
    totals = [
        sum_over(values, make(parse(name)), Feedback(), pairs[world.rank // 2]) for name in names
    ]
    return [float(total.mean()) for total in totals]


@pytest.mark.slow
def test_a_group_sums_for_itself(ranks: RankPool) -> None:
    found = ranks.run(4, _in_a_group, ("none", "bf16", "topk:1"))
    assert found == [[1] * 3, [1] * 3, [5] * 3, [5] * 3]


def _wire(world: World, n: int) -> list[tuple[int, Spent]]:
    return [_wire_of(world, name, n) for name in NAMES]


def _wire_of(world: World, name: str, n: int) -> tuple[int, Spent]:
    codec, feedback, spent = make(parse(name)), Feedback(), Spent()
    sum_over(_given(world.rank, n, 0), codec, feedback)  # connections are made now
    before = delivered()
    sum_over(_given(world.rank, n, 1), codec, feedback, spent=spent)
    return delivered() - before, spent


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [3])
def test_bytes_on_the_wire_are_those_computed(ranks: RankPool, world_size: int) -> None:
    n = 300_000
    for found in ranks.run(world_size, _wire, n):
        for name, (wire, spent) in zip(NAMES, found, strict=True):
            assert spent.bytes_sent == bytes_sent(make(parse(name)), n, world_size), name
            assert spent.bytes_sent <= wire <= 1.001 * spent.bytes_sent + HEADERS, name
            assert spent.waited > 0, name


@pytest.mark.parametrize(
    ("name", "n", "world_size", "expected"),
    [
        ("none", 1000, 4, 2 * 3 * 4 * 250),
        ("bf16", 1000, 4, 2 * 3 * 2 * 250),
        ("int8", 1000, 4, 2 * 3 * (250 + 4)),
        ("int8", 1001, 4, 2 * 3 * (251 + 4)),
        ("topk:0.01", 1000, 4, 3 * 10 * 8),
        ("int8", 1000, 1, 0),
        ("topk", 1000, 1, 0),
        ("int8", 0, 4, 0),
    ],
)
def test_bytes_as_computed(name: str, n: int, world_size: int, expected: int) -> None:
    assert bytes_sent(make(parse(name)), n, world_size) == expected


def test_a_residual_of_topk_is_what_was_not_sent() -> None:
    feedback = Feedback()
    feedback.pack(torch.tensor([1.0, -3.0, 2.0]), TopK(0.3))
    assert feedback.residual is not None
    assert feedback.residual.tolist() == [1.0, 0.0, 2.0]
