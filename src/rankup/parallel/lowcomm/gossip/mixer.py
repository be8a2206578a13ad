"""A worker among its neighbours: at each step boundary it takes in what came, and tells one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import torch
from torch import nn

from ....runtime.compress.codecs import make
from ....runtime.compress.names import Compression
from ..flat import Flat
from .link import Link
from .mixing import Edge, base_weight, rounds_to_know
from .names import patience
from .schedule import Turns, neighbours


class Mixer:
    """Mixes one worker's model with those of its neighbours.

    All workers have to start from equal values.

    Args:
        worker, workers: this worker's number, and how many there are.
        address: of the store, where neighbours find each other.
        connect: makes the connection to a neighbour.

    Attributes:
        behind: this worker's values are old, so it takes those of a neighbour before it mixes.
    """

    def __init__(
        self,
        model: nn.Module,
        worker: int,
        workers: int,
        address: str,
        compression: Compression,
        connect: Callable[[str, int, int, Edge], Link] = Link,
    ) -> None:
        self.flat = Flat(model)
        self._weight = base_weight(compression)
        start = self.flat.gather().cpu()
        codec = make(compression)
        self._links = {
            other: connect(address, worker, other, Edge(start, codec))
            for other in neighbours(worker, workers)
        }
        self._turns = Turns(worker, workers)
        self._here = 0.0
        self._broken: dict[int, float] = {}  # neighbour -> since when
        self._told = set[int]()
        self.behind = False
        self._rounds_to_know = rounds_to_know(compression)
        self._guide: int | None = None  # the neighbour whose values are taken
        self._left = 0  # rounds with it
        self._also_behind = set[int]()

    @property
    def bytes_sent(self) -> int:
        """Of messages to neighbours, so far."""
        return sum(link.bytes_sent for link in self._links.values())

    @property
    def seconds(self) -> float:
        """Time for flattening, encoding, decoding and mixing, in all threads."""
        return self._here + sum(link.seconds for link in self._links.values())

    @property
    def memory(self) -> int:
        """Bytes held for what neighbours know of each other."""
        return sum(link.edge.memory for link in self._links.values())

    def cut_off(self, absent: Collection[int], now: float) -> dict[int, str]:
        """Neighbours that live and cannot be talked to any more, and why; each is told once.

        A broken connection mostly means that the neighbour has died, which is known soon.

        Args:
            absent: workers that are known to be gone.
            now: seconds of any clock.
        """
        found = {}
        for other, link in self._links.items():
            if link.broken and other not in absent and other not in self._told:
                since = self._broken.setdefault(other, now)
                if now - since > patience():
                    found[other] = link.broken
                    self._told.add(other)
        return found

    def exchange(self, absent: Collection[int]) -> None:
        """Between two steps: mix in what has come, and hand the model to the next neighbour.

        Waits for nobody.

        Args:
            absent: workers not to begin anything with.
        """
        began = time.perf_counter()
        here = {other: link for other, link in self._links.items() if other not in absent}
        for one in self._links.keys() & {*absent}:
            self._links[one].edge.doubt()
        # Before what came is taken, so that no round is begun whose predecessor is not.
        free = [other for other, link in here.items() if link.free]
        waiting = [other for other, link in here.items() if link.waiting]
        self.take()
        if self.behind:
            self._catch_up({o for o, link in here.items() if link.open}, free, waiting)
        elif (other := self._turns.take(free, waiting)) is not None:
            # Rounds that go on at the same time share the way between them.
            rounds = 1 + sum(link.in_round for o, link in here.items() if o != other)
            self._links[other].offer(self.flat.gather().cpu(), self._weight / rounds, False)
        self._here += time.perf_counter() - began

    def fall_behind(self) -> None:
        """This worker stood still while the others went on."""
        self.behind, self._guide = True, None
        self._also_behind.clear()
        for link in self._links.values():
            if link.in_round and not link.waiting:
                link.edge.doubt()

    def take(self) -> None:
        """Mix in what has come; while behind, only what leads to the guide's values."""
        total: torch.Tensor | None = None
        for other, link in self._links.items():
            change, guided, refused = link.edge.take()
            if self.behind or guided:
                if other != self._guide:
                    continue
                if refused:
                    self._also_behind.add(other)
                    self._guide = None
                if not guided:
                    continue
                self._left -= 1
            if change is not None:
                total = change if total is None else total.add_(change)
        if total is not None:
            self.flat.add(total)
        if self.behind and self._guide is not None and self._left == 0:
            self.behind, self._guide = False, None

    def _catch_up(self, live: set[int], free: list[int], waiting: list[int]) -> None:
        """Come to one neighbour's values. Others that wait are answered, which moves neither."""
        if live and live <= self._also_behind:  # all have stood still, and nobody is ahead
            self.behind = False
            return
        if self._guide not in live:
            able = live - self._also_behind
            self._guide = self._turns.take(able & {*free}, able & {*waiting})
            self._left = 1 + self._rounds_to_know  # its side of the first may be of before
        values = self.flat.gather().cpu()
        for other in (*free, *waiting):
            if other == self._guide or other in waiting:
                self._links[other].offer(values, 0.0, True)
