"""The connection to one neighbour: threads that send and receive beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from .board import pair
from .mixing import Edge


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
        """Whether a round may be begun."""
        return self.open and not self._busy and self.edge.between_rounds

    @property
    def waiting(self) -> bool:
        """Whether the neighbour has begun a round and has no answer yet."""
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
