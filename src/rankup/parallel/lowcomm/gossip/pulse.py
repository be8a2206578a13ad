"""Signs of life: each worker gives its own, and sees whose have stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .board import Board, Status, StoreLost
from .names import patience
from .progress import Progress
from .silence import Silence


class Pulse:
    """A thread that beats for this worker and watches the others.

    Args:
        say: tells the user a line, once; only the speaker's are.
        progress: of the thread that trains; while it is stuck, there is no sign of life.

    Attributes:
        absent: workers that ended, or have been silent for too long.
        failed: why the store is out of reach; empty as long as it is not.
    """

    def __init__(
        self, board: Board, worker: int, say: Callable[[str], None], progress: Progress
    ) -> None:
        self._board, self._worker, self._say = board, worker, say
        self._progress = progress
        self._patience = patience()
        # A thousand workers that all look once a second would keep the store busy.
        self._interval = min(max(1.0, board.workers / 64), self._patience / 4)
        self._silence = Silence(self._patience)
        self._count = 0
        self._stop = threading.Event()
        self.absent: frozenset[int] = frozenset()
        self._was_away = False
        self._last = self._known = time.monotonic()
        self.failed = ""
        self.status: Status = self._beat()
        threading.Thread(target=self._run, daemon=True, name="gossip-pulse").start()

    @property
    def is_speaker(self) -> bool:
        """Whether this worker writes for all."""
        return self.status.speaker == self._worker

    @property
    def surely_speaker(self) -> bool:
        """The same, where no other can have become it meanwhile; asks nobody. Any thread."""
        return self.is_speaker and time.monotonic() - self._known < self._patience

    def was_away(self) -> bool:
        """Whether since the last call this process stood still for so long that it was left out."""
        away = self._was_away or time.monotonic() - self._last > self._patience
        self._was_away = False
        return away

    def close(self) -> None:
        self._stop.set()

    def look(self) -> Status:
        """What the thread saw last.

        Raises:
            StoreLost: the store is out of reach.
        """
        if self.failed:
            raise StoreLost()
        return self.status

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            if now - self._last > self._patience:
                self._was_away = True
                self._silence.forgive(now)
            self._last = now
            stuck = self._progress.stuck
            try:
                self.status = self._watch(now, stuck)
            except StoreLost as error:
                self.failed = str(error)
                return
            if stuck:
                self._was_away = True
            else:
                self._known = now

    def _beat(self) -> Status:
        self._count += 1
        self._board.set(f"beat/{self._worker}", str(self._count))
        return self._board.status()

    def _watch(self, now: float, stuck: bool) -> Status:
        status = self._board.status() if stuck else self._beat()
        silent = self._silence.of(status.beats, now) - {self._worker} - status.lost.keys()
        before, self.absent = self.absent, silent | status.lost.keys()
        if status.speaker in self.absent and not stuck:
            present = [w for w in range(self._board.workers) if w not in self.absent]
            if present and present[0] == self._worker:
                old = str(status.speaker)
                self._board.swap("speaker", old, str(self._worker))
                status = self._board.status()
        if status.speaker == self._worker:
            self._tell(silent, before - status.lost.keys())
        return status

    def _tell(self, silent: frozenset[int], before: frozenset[int]) -> None:
        nodes = self._board.nodes()
        for worker in sorted(silent - before):
            self._say(
                f"worker {worker} (node {nodes[worker]}) was lost: no sign of life for "
                f"{self._patience:g} s; the others go on"
            )
        for worker in sorted(before - silent):
            self._say(f"worker {worker} (node {nodes[worker]}) is back")
