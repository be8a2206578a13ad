"""The dealing of asynchronous SGD: bounded staleness, whole versions, no worker stuck."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.parallel.lowcomm.async_sgd import Ticket, Versions


def _run(
    sizes: list[int], speeds: list[float], max_staleness: int, seed: int = 0
) -> tuple[list[list[Ticket]], list[int], float]:
    """Simulated workers, one micro-batch in `speeds[w]` seconds: the gradients of each version,
    how stale each was, and when all was done."""
    versions = Versions(sizes, max_staleness)
    chance, now = random.Random(seed), 0.0
    working: dict[int, tuple[float, Ticket]] = {}
    holding: dict[int, Ticket] = {}
    made: list[list[Ticket]] = [[]]
    stale = []
    idle = set(range(len(speeds)))
    while not versions.done:
        changed = True
        while changed:
            changed = False
            for worker in sorted(holding, key=lambda _: chance.random()):
                if not versions.done and versions.may_add(worker):
                    stale.append(versions.add(worker))
                    made[-1].append(holding.pop(worker))
                    idle.add(worker)
                    changed = True
                    if versions.complete:
                        versions.apply()
                        made.append([])
            for worker in sorted(idle):
                if (ticket := versions.deal(worker)) is not None:
                    idle.discard(worker)
                    working[worker] = (now + speeds[worker], ticket)
                    changed = True
        if versions.done:
            break
        assert working, "everybody waits for nobody"
        worker = min(working, key=lambda w: working[w][0])
        now, ticket = working.pop(worker)
        holding[worker] = ticket
    return made[:-1], stale, now


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    speeds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=9),
    max_staleness=st.integers(0, 5),
    seed=st.integers(0, 5),
)
def test_each_micro_batch_once_in_whole_versions_within_the_bound(
    sizes: list[int], speeds: list[float], max_staleness: int, seed: int
) -> None:
    made, stale, _ = _run(sizes, speeds, max_staleness, seed)
    assert [len(version) for version in made] == sizes
    came = sorted((ticket.step, ticket.index) for version in made for ticket in version)
    assert came == [(step, index) for step, size in enumerate(sizes) for index in range(size)]
    assert max(stale) <= max_staleness


def test_without_staleness_each_version_has_its_own_micro_batches() -> None:
    made, stale, _ = _run([4, 4, 3], [1.0, 1.1, 5.0], 0)
    assert [{ticket.step for ticket in version} for version in made] == [{0}, {1}, {2}]
    assert set(stale) == {0}


@pytest.mark.parametrize(("max_staleness", "least"), [(0, 0.3), (1, 0.75), (4, 0.9)])
def test_a_straggler_holds_the_others_up_less_the_staler_gradients_may_be(
    max_staleness: int, least: float
) -> None:
    """Of the speed that four workers, one three times slower, have when nobody waits."""
    speeds = [1.0, 1.0, 1.0, 3.0]
    _, _, took = _run([8] * 50, speeds, max_staleness)
    ideal = 8 * 50 / sum(1 / speed for speed in speeds)
    assert ideal / took >= least


def test_a_round_that_is_cut_ends_with_the_steps_that_were_begun() -> None:
    versions = Versions([2, 2, 2], 2)
    assert versions.deal(0) == Ticket(0, 0, 0)
    assert versions.deal(1) == Ticket(0, 1, 0)
    versions.cut()
    assert versions.deal(2) is None
    for worker in (0, 1):
        assert versions.may_add(worker)
        versions.add(worker)
    assert versions.complete
    versions.apply()
    assert versions.done
