"""One end of the talk between two neighbours: CHOCO-SGD in rounds of a pair.

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
from typing import NamedTuple

import torch

from ....runtime.compress.codecs import Codec
from ....runtime.compress.names import Compression

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
