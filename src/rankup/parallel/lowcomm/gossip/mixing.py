"""A worker among its neighbours: CHOCO-SGD in rounds of a pair.

Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication" (2019): each side keeps an image of what the other knows of it, and sends
the compressed difference to that image, so that what a compression loses is sent later. There all
workers mix at once; here each pair goes through rounds of its own, so that nobody waits: in a round
both send one message, and each then moves towards the other by the same weight. What one gains the
other loses, so the mean over workers stays where the gradients have put it.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import nn

from ....runtime.compress.codecs import Codec, make
from ....runtime.compress.names import Compression
from ..flat import Flat
from .alive import patience
from .board import pair


def neighbours(worker: int, workers: int) -> list[int]:
    """The workers at distances ±1, ±2, ±4, … on a ring, in the order of their turns.

    The one-peer exponential graph (Assran et al., "Stochastic Gradient Push", 2019; Ying et al.,
    "Exponential Graph is Provably Efficient", 2021): a worker has about 2 log2(workers) of them,
    and what one knows has come to all within log2(workers) rounds.
    """
    found = list[int]()
    distance = 1
    while distance <= workers // 2:
        for other in ((worker + distance) % workers, (worker - distance) % workers):
            if other not in (worker, *found):
                found.append(other)
        distance *= 2
    return found


class Turns:
    """Picks one neighbour after the other; who cannot be talked to now is passed over."""

    def __init__(self, worker: int, workers: int) -> None:
        self._order = neighbours(worker, workers)
        self._next = 0

    def take(self, free: Collection[int], waiting: Collection[int] = ()) -> int | None:
        """The next of the `free` neighbours; those who wait for an answer come first.

        An answer does not move the turn on: else who is answered often would never begin.
        """
        count = len(self._order)
        turn = [self._order[(self._next + i) % count] for i in range(count)]
        for other in turn:
            if other in waiting:
                return other
        for place, other in enumerate(turn):
            if other in free:
                self._next = (self._next + place + 1) % count
                return other
        return None


_HEADER = struct.Struct("<if?7x")  # round, weight, behind
_DENSE = 0.5  # the way to the middle


def base_weight(compression: Compression) -> float:
    """How far to move towards a neighbour whose image is as exact as this compression makes it.

    CHOCO's step size falls with the quality of the compression; with topk a worker sees of each
    difference the largest part alone, and full steps along it would swing. The square root is
    where all of fractions 0.001 … 1 still settled in `tests/parallel/lowcomm`.
    """
    return _DENSE * math.sqrt(_kept(compression))


def rounds_to_know(compression: Compression) -> int:
    """Rounds until each of a neighbour's values has come once, where it changed while away."""
    return math.ceil(1 / _kept(compression))


def _kept(compression: Compression) -> float:
    return compression.fraction if compression.kind == "topk" else 1.0


class NotFinite(ValueError):  # noqa: N818 - says what was received
    """A neighbour has sent numbers that are not finite."""


class Taken(NamedTuple):
    """What came of the rounds since one looked last.

    Attributes:
        change: to add to this worker's values, float32 of shape (n,).
        guided: this worker was behind, and the change leads all the way to the neighbour's values.
        refused: both were behind, so neither could lead the other.
    """

    change: torch.Tensor | None
    guided: bool
    refused: bool


class Edge:
    """What two neighbours know of each other, seen from one of them. Threads may share it.

    Args:
        start: what both have at first, float32 of shape (n,).
    """

    def __init__(self, start: torch.Tensor, codec: Codec) -> None:
        self._codec, self._n = codec, start.numel()
        self._mine, self._theirs = start.clone(), start.clone()
        self._sent = self._heard = 0
        self._said = self._told = (0.0, False)  # weight and `behind` of both in this round
        self._offered: torch.Tensor | None = None  # what this side said of itself, while behind
        self._doubted = False
        self._change: torch.Tensor | None = None
        self._guided = self._refused = False
        self._lock = threading.Lock()

    @property
    def message_bytes(self) -> int:
        """Length of each message."""
        return _HEADER.size + self._codec.size(self._n)

    @property
    def memory(self) -> int:
        """Bytes that it holds all the time."""
        return self._mine.nbytes + self._theirs.nbytes

    @property
    def between_rounds(self) -> bool:
        """Whether a new round may begin."""
        return self._sent == self._heard

    @property
    def to_answer(self) -> bool:
        """Whether the neighbour has begun a round, and waits for this side's message."""
        return self._heard > self._sent

    def speak(self, values: torch.Tensor, weight: float, behind: bool = False) -> torch.Tensor:
        """This side's message of the round.

        Args:
            values: of this worker now, float32 of shape (n,).
            weight: how far it would move towards the neighbour.
            behind: its values are old, so it would rather take the neighbour's.

        Returns:
            uint8 of shape (message_bytes,).
        """
        payload = self._codec.encode(values - self._mine)
        difference = self._codec.decode(payload, self._n)
        with self._lock:
            header = _HEADER.pack(self._sent + 1, weight, behind)
            self._mine += difference
            self._said = (weight, behind)
            self._offered = values if behind else None
            self._sent += 1
            self._settle()
        return torch.cat([torch.frombuffer(bytearray(header), dtype=torch.uint8), payload])

    def hear(self, message: torch.Tensor) -> None:
        """Take the neighbour's message of the round.

        Raises:
            NotFinite: it cannot be mixed with; nothing was taken from it.
            ValueError: it is of another round.
        """
        number, weight, behind = _HEADER.unpack(message[: _HEADER.size].numpy().tobytes())
        difference = self._codec.decode(message[_HEADER.size :].clone(), self._n)
        if not bool(difference.isfinite().all()) or not 0 <= weight <= 1:
            raise NotFinite("it sent values that are not finite")
        with self._lock:
            if number != self._heard + 1:
                raise ValueError(f"its message {number} came where {self._heard + 1} was expected")
            self._theirs += difference
            self._told = (weight, behind)
            self._heard += 1
            self._settle()

    def doubt(self) -> None:
        """One of the two stands still: what it said before is too old to move anybody by it."""
        with self._lock:
            self._doubted = True

    def take(self) -> Taken:
        """What came since the last call."""
        with self._lock:
            taken = Taken(self._change, self._guided, self._refused)
            self._change, self._guided, self._refused = None, False, False
        return taken

    def _settle(self) -> None:
        """At the end of a round: both images are of it, and the next one has not begun."""
        if self._sent != self._heard:
            return
        behind, they_are = self._said[1], self._told[1]
        doubted, self._doubted = self._doubted, False
        if behind and they_are:
            self._refused = True
        elif behind and self._offered is not None:
            # All the way, also where the neighbour's image of this side is not exact. What came
            # before is left out: it was to be added to older values.
            self._change, self._guided = torch.sub(self._theirs, self._offered), True
        if behind or they_are or doubted:
            self._offered = None
            return
        change = torch.sub(self._theirs, self._mine).mul_(min(self._said[0], self._told[0]))
        self._change = change if self._change is None else self._change.add_(change)


class Link:
    """Talks with one neighbour as long as it answers; never raises, never waits.

    Args:
        address: of the store, where both meet.
        me, peer: numbers of the two workers.

    Attributes:
        open: both have called, and nothing has broken since.
        broken: what broke it, empty as long as nothing has.
        bytes_sent: of messages, so far.
        seconds: spent on encoding and decoding, in its threads.
    """

    def __init__(self, address: str, me: int, peer: int, edge: Edge) -> None:
        self.edge = edge
        self.open = False
        self.broken = ""
        self.bytes_sent = 0
        self.seconds = 0.0
        self._address, self._me, self._peer = address, me, peer
        self._busy = False
        self._outbox: SimpleQueue[tuple[torch.Tensor, float, bool]] = SimpleQueue()
        self._start(self._talk)

    @property
    def free(self) -> bool:
        """True if a round may be begun."""
        return self.open and not self._busy and self.edge.between_rounds

    @property
    def waiting(self) -> bool:
        """True if the neighbour has begun a round and has no answer yet."""
        return self.open and not self._busy and self.edge.to_answer

    @property
    def in_round(self) -> bool:
        return self.open and (self._busy or not self.edge.between_rounds)

    def offer(self, values: torch.Tensor, weight: float, behind: bool) -> None:
        """Hand over what to tell the neighbour; only while `free` or `waiting`."""
        self._busy = True
        self._outbox.put((values, weight, behind))

    def _talk(self) -> None:
        low, high = sorted((self._me, self._peer))
        group = pair(self._address, f"{low}-{high}", int(self._me == high))
        self._start(self._listen, group)
        self.open = True
        while True:
            values, weight, behind = self._outbox.get()
            began = time.perf_counter()
            message = self.edge.speak(values, weight, behind)
            self.seconds += time.perf_counter() - began
            del values
            group.send([message], self._other, 0).wait()
            self.bytes_sent += message.numel()
            self._busy = False

    def _listen(self, group: Any) -> None:
        message = torch.empty(self.edge.message_bytes, dtype=torch.uint8)
        while True:
            group.recv([message], self._other, 0).wait()
            began = time.perf_counter()
            self.edge.hear(message)
            self.seconds += time.perf_counter() - began

    @property
    def _other(self) -> int:
        return int(self._me < self._peer)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        def guarded() -> None:
            try:
                work(*args)
            except (RuntimeError, ValueError) as error:
                self.broken = self.broken or (str(error).splitlines() or ["it broke"])[0]
                self.open = False

        # It may wait for a peer that never comes, so the process must not wait for it.
        threading.Thread(target=guarded, daemon=True, name=f"gossip-{self._peer}").start()


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
