"""Gossip among workers of one process: no sockets, no threads, any order of events."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import nn

from rankup.parallel.lowcomm.gossip.mixing import Edge, Mixer
from rankup.runtime.compress.names import parse


class Wire:
    """A link whose messages arrive when the test says so."""

    def __init__(self, edge: Edge, inbox: deque[torch.Tensor]) -> None:
        self.edge, self.inbox = edge, inbox
        self.open, self.broken = True, ""
        self.bytes_sent, self.seconds = 0, 0.0
        self.outbox: deque[torch.Tensor] = deque()

    @property
    def free(self) -> bool:
        return self.open and self.edge.between_rounds

    @property
    def waiting(self) -> bool:
        return self.open and self.edge.to_answer

    @property
    def in_round(self) -> bool:
        return self.open and not self.edge.between_rounds

    def offer(self, values: torch.Tensor, weight: float, behind: bool) -> None:
        message = self.edge.speak(values, weight, behind)
        self.bytes_sent += message.numel()
        self.outbox.append(message)

    def deliver(self) -> None:
        while self.inbox:
            self.edge.hear(self.inbox.popleft())


class Crowd:
    """Workers that hold vectors, and begin with equal ones.

    Args:
        slow: worker -> steps of the others for one of its own.
    """

    def __init__(
        self,
        workers: int,
        size: int,
        compress: str = "none",
        slow: dict[int, int] | None = None,
        seed: int = 0,
    ) -> None:
        self.models = [nn.ParameterList([nn.Parameter(torch.zeros(size))]) for _ in range(workers)]
        self.wires: dict[tuple[int, int], Wire] = {}
        self.slow = slow or {}
        self.mixers = []
        for worker, model in enumerate(self.models):

            def connect(address: str, me: int, peer: int, edge: Edge) -> Wire:
                wire = Wire(edge, deque())
                self.wires[me, peer] = wire
                return wire

            mixer = Mixer(model, worker, workers, "", parse(compress), connect)  # type: ignore[arg-type]
            self.mixers.append(mixer)
        self.gone: set[int] = set()
        self.away: set[int] = set()  # stand still: they take no step, and no message goes or comes
        self._random = random.Random(seed)
        self._time = 0

    @property
    def values(self) -> torch.Tensor:
        """Of all workers, (workers, size)."""
        return torch.stack([model[0].detach() for model in self.models])

    @property
    def spread(self) -> float:
        """The largest distance of a worker that is there from their mean."""
        here = self.values[[w for w in range(len(self.models)) if w not in self.gone]]
        return float((here - here.mean(0)).norm(dim=1).max())

    def leave(self, worker: int) -> None:
        """It dies: its links break."""
        self.gone.add(worker)
        for (me, peer), wire in self.wires.items():
            if worker in (me, peer):
                wire.open, wire.broken = False, "gone"

    def come_back(self, worker: int) -> None:
        """It stood still, and knows it now."""
        self.away.remove(worker)
        self.mixers[worker].fall_behind()

    def step(self) -> None:
        """Each worker whose turn it is exchanges, in a random order; messages come at any time."""
        self._time += 1
        order = [w for w in range(len(self.models)) if w not in self.gone | self.away]
        self._random.shuffle(order)
        for worker in order:
            if self._time % self.slow.get(worker, 1) == 0:
                self.mixers[worker].exchange(self.gone | self.away)
            self._carry(0.7)

    def settle(self) -> None:
        """All messages arrive, all that came is taken in."""
        self._carry(1.0)
        for worker, mixer in enumerate(self.mixers):
            if worker not in self.gone:
                mixer.take()

    def _carry(self, chance: float) -> None:
        for (me, peer), wire in self.wires.items():
            if wire.outbox and not self.away & {me, peer} and self._random.random() < chance:
                other = self.wires[peer, me]
                while wire.outbox:
                    other.inbox.append(wire.outbox.popleft())
                if other.open:
                    other.deliver()
