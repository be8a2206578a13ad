"""The end of a run without a centre: for once all that are left come together in one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch

from .alive import patience
from .board import Board, look_again_after, pair

_EMPTY_HANDED = "nothing"


class Meeting:
    """Workers hand their values to the speaker, one after the other, each in full precision.

    Whoever dies or does not come in time is left out; where that is the speaker, the next one is
    come to.

    Args:
        address: of the store.
        absent: who is not waited for, now.
        allowance: seconds that the others may still need to come here.
        moved: called while it waits, as a sign that this worker is not stuck.

    Attributes:
        bytes_sent: by the others to this worker, where it is the speaker.
        waited: seconds for the others.
    """

    def __init__(
        self,
        board: Board,
        address: str,
        worker: int,
        absent: Callable[[], frozenset[int]],
        allowance: float,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._board, self._address, self._worker = board, address, worker
        self._absent, self._moved = absent, moved
        self._allowance = allowance
        self.bytes_sent = 0
        self.waited = 0.0

    def gather(self, values: torch.Tensor, old: bool = False) -> tuple[torch.Tensor, list[int]]:
        """As the speaker: the mean over all who came, float32 of shape (n,), and who they are.

        Args:
            old: this worker's values are too old to be of use, unless there are no others.
        """
        total = torch.zeros_like(values) if old else values
        total, came = total.double(), [] if old else [self._worker]
        deadline = time.monotonic() + patience() + self._allowance
        left = {w for w in range(self._board.workers) if w != self._worker}
        while left - self._absent() and time.monotonic() < deadline:
            here = [w for w in left if self._board.has(f"here/{self._worker}/{w}")]
            left -= {*here}
            for other in here:
                if self._board.get(f"here/{self._worker}/{other}") == _EMPTY_HANDED:
                    continue
                theirs = self._receive(other, values.numel())
                if theirs is not None:
                    total += theirs
                    self.bytes_sent += theirs.nbytes
                    came.append(other)
            if not here:
                self._pause()
        if not came:
            return values, [self._worker]
        return (total / len(came)).float(), sorted(came)

    def hand_over(self, values: torch.Tensor | None) -> str:
        """As another: give the values to whoever is speaker, and wait for the end of the run.

        Args:
            values: None where they are too old to be of use.

        Returns:
            How the run ended; empty where this worker has become the speaker, and has to gather.
        """
        come_to: int | None = None
        given: int | None = None
        while not (status := self._board.status()).ended:
            speaker = status.speaker
            if speaker == self._worker:
                return ""
            if speaker != come_to:
                said = _EMPTY_HANDED if values is None else "values"
                self._board.set(f"here/{speaker}/{self._worker}", said)
                come_to = speaker
            called = self._board.has(f"come/{speaker}/{self._worker}")
            if values is not None and called and speaker != given:
                self._send(speaker, values)
                given = speaker  # also where it failed: then the speaker goes on without
            self._pause()
        return status.ended

    def _receive(self, other: int, count: int) -> torch.Tensor | None:
        self._board.set(f"come/{self._worker}/{other}", "1")
        values = torch.empty(count)

        def receive() -> None:
            group = pair(self._address, self._name(other), 0, timedelta(seconds=patience()))
            group.recv([values], 1, 0).wait()
            group.send([torch.zeros(1)], 1, 1).wait()

        return values if self._within(receive) and bool(values.isfinite().all()) else None

    def _send(self, speaker: int, values: torch.Tensor) -> None:
        def send() -> None:
            name = f"end/{speaker}-{self._worker}"
            group = pair(self._address, name, 1, timedelta(seconds=patience()))
            group.send([values], 0, 0).wait()
            group.recv([torch.empty(1)], 0, 1).wait()  # until then the connection has to last

        self._within(send)

    def _within(self, work: Callable[[], None]) -> bool:
        """Whether it came off in time; in a thread, since a connection may hold up its caller."""
        done = []

        def guarded() -> None:
            try:
                work()
                done.append(True)
            except RuntimeError:  # the other has gone, or does not answer
                pass

        thread = threading.Thread(target=guarded, daemon=True, name="gossip-end")
        self._moved()
        began = time.monotonic()
        thread.start()
        thread.join(2 * patience())
        self.waited += time.monotonic() - began
        return bool(done)

    def _name(self, other: int) -> str:
        return f"end/{self._worker}-{other}"

    def _pause(self) -> None:
        self._moved()
        seconds = look_again_after(self._board.workers)
        time.sleep(seconds)
        self.waited += seconds
