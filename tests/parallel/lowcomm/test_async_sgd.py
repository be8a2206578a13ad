"""Asynchronous SGD: bounded staleness, whole versions, no worker stuck, looking ahead."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.parallel.lowcomm.async_sgd import Brought, Server, Ticket, Version, Versions


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


_CURVATURE = 1.8


class Hill:
    """A parabola with one parameter and one buffer, that SGD with momentum 0.9 walks down."""

    def __init__(self, steps: int, micro_batches: int, look_ahead: float) -> None:
        self.values = torch.tensor([1.0, 7.0])
        self.parameter = torch.ones(1, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.1, momentum=0.9)
        versions = Versions([micro_batches] * steps, 1)
        self.server = Server(
            versions, self._apply, self._parameters, self._empty, False, look_ahead
        )

    def _apply(self, version: Version) -> None:
        self.parameter.grad = version.gradient
        self.optimizer.step()
        self.values[1] += 1

    def _parameters(self) -> torch.Tensor:
        return torch.cat([self.parameter.detach(), self.values[1:]])

    def _empty(self) -> Version:
        return Version(torch.zeros(1), torch.zeros(0, dtype=torch.float64))


def _brought(at: torch.Tensor, share: float) -> Brought:
    gradient = _CURVATURE * share * at[:1]
    return Brought(gradient, 0.0, 1, True, 0.0, 0.0, torch.zeros(0, dtype=torch.float64))


def _walk(steps: int, look_ahead: float) -> tuple[list[float], list[torch.Tensor]]:
    """Two workers in turns, each gradient one version late: the parameter at each version, and
    what the workers had when the round was over."""
    hill = Hill(steps, 1, look_ahead)
    held = [hill.server.exchange(worker, None)[1] for worker in (0, 1)]
    seen = []
    for turn in range(steps - 2):
        worker = turn % 2
        ticket, held[worker] = hill.server.exchange(worker, _brought(held[worker], 1.0))
        assert ticket == Ticket(turn + 2, 0, turn + 1)
        seen.append(float(hill.server.newest[0]))
    with ThreadPoolExecutor(2) as pool:  # who is done first waits for the other
        turns = [
            pool.submit(hill.server.exchange, worker, _brought(held[worker], 1.0))
            for worker in (steps % 2, 1 - steps % 2)
        ]
        ends = [turn.result(timeout=60) for turn in turns]
    assert [ticket for ticket, _ in ends] == [None, None]
    assert all(torch.equal(values, hill.server.newest) for _, values in ends)
    return seen, [hill.server.ahead, hill.server.newest]


def test_looking_ahead_keeps_late_gradients_from_swinging_up() -> None:
    """At momentum 0.9 and a gradient one version late, lr * curvature may be 0.099, and 0.264 where
    it is computed one change ahead: the roots of z²(z - 1)(z - 0.9) + k((1 + c)z - c)."""
    without, _ = _walk(201, 0.0)
    ahead, (handed, newest) = _walk(201, 1.0)
    assert abs(without[-1]) > 100
    assert abs(ahead[-1]) < 1e-3
    assert not torch.equal(handed[:1], newest[:1])
    assert torch.equal(handed[1:], newest[1:])  # a buffer is handed out as it is


def test_it_looks_as_far_ahead_as_gradients_were_late() -> None:
    hill = Hill(3, 2, 2.0)
    held = [hill.server.exchange(worker, None)[1] for worker in (0, 1)]
    first = hill.server.newest
    for worker in (0, 1):
        _, held[worker] = hill.server.exchange(worker, _brought(held[worker], 0.5))
    assert hill.server.ahead is hill.server.newest  # none was late
    before = hill.server.newest
    assert held[0] is first
    for worker in (0, 1):  # the first of them was
        hill.server.exchange(worker, _brought(held[worker], 0.5))
    newest = hill.server.newest
    moved = (2.0 * 0.5) * (newest[:1] - before[:1])
    assert hill.server.ahead[0] == pytest.approx(float(newest[:1] + moved))
