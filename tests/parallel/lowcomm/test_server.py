"""The parameters that count in asynchronous SGD, and what workers compute with meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rankup.parallel.lowcomm.async_sgd import Brought, Server, Ticket, Version, Versions

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
