"""The store that workers and those who start them talk through, and the signs of life given there.

It is served by the launcher, outside any worker, so that no worker's end takes it along. Every key
is there from the beginning, so no question has to wait for an answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .alive import Progress, Silence, patience

_LONG = timedelta(days=7)
_CLOSED = 1 << 40  # added to the counter of tickets
_CLOSING = 2.0  # seconds that a worker may need between two words to the store


class StoreLost(RuntimeError):  # noqa: N818 - says what happened
    """The store does not answer: the launcher on the first node is gone."""

    def __init__(self) -> None:
        super().__init__(
            "the launcher on the first node, which keeps the run's store, does not answer any more"
        )


@dataclass(frozen=True)
class Status:
    """What the board says.

    Attributes:
        lost: worker -> how it ended, of those whose processes ended before the run.
        beats: signs of life of each worker so far.
        speaker: who writes for all.
        ended: how the run ended, `finished` or `stopped`; empty while it goes on.
        abort: exit code with which all are to be stopped; 0 for none.
    """

    lost: Mapping[int, str]
    beats: tuple[int, ...]
    speaker: int
    ended: str
    abort: int


class Board:
    """One client's view of the store. One thread at a time.

    Args:
        workers: how many there are in the whole run.
    """

    def __init__(self, store: dist.Store, workers: int) -> None:
        self.store, self.workers = store, workers

    @classmethod
    def connect(cls, address: str, workers: int) -> Board:
        """A client of the store at `host:port`."""
        return cls(client(address), workers)

    def prepare(self) -> None:
        """Put up every key; before any worker starts."""
        everyone = range(self.workers)
        for kind in ("lost", "tally", "ready", "node"):
            for worker in everyone:
                self.store.set(f"{kind}/{worker}", "")
        for worker in everyone:
            self.store.set(f"beat/{worker}", "0")
        for name, value in (
            ("speaker", "0"),
            ("ended", ""),
            ("abort", "0"),
            ("wish", ""),
            ("lines", ""),
            ("drawn", ""),
        ):
            self.store.set(name, value)

    def status(self) -> Status:
        """All that changes, in one question."""
        everyone = range(self.workers)
        keys = [f"lost/{worker}" for worker in everyone] + [f"beat/{w}" for w in everyone]
        found = self._ask([*keys, "speaker", "ended", "abort"])
        lost = {worker: found[worker] for worker in everyone if found[worker]}
        beats = tuple(map(int, found[self.workers : 2 * self.workers]))
        speaker, ended, abort = found[2 * self.workers :]
        return Status(lost, beats, int(speaker), ended, int(abort))

    def ready(self) -> list[str]:
        """What each worker has said of its start; empty where it has not come to it."""
        return self._ask([f"ready/{worker}" for worker in range(self.workers)])

    def nodes(self) -> list[str]:
        """The node of each worker."""
        return self._ask([f"node/{worker}" for worker in range(self.workers)])

    def tallies(self) -> list[dict[str, Any]]:
        """What each worker has counted; empty for one that has not begun."""
        found = self._ask([f"tally/{worker}" for worker in range(self.workers)])
        return [json.loads(text) if text else {} for text in found]

    def get(self, key: str) -> str:
        return self._ask([key])[0]

    def set(self, key: str, value: str) -> None:
        try:
            self.store.set(key, value)
        except RuntimeError as error:
            raise StoreLost() from error

    def has(self, key: str) -> bool:
        """Whether a key was ever set."""
        try:
            return self.store.check([key])
        except RuntimeError as error:
            raise StoreLost() from error

    def swap(self, key: str, old: str, new: str) -> str:
        """Set a key that is still `old` (`""` for one never set); what it is now."""
        try:
            return self.store.compare_set(key, old, new).decode()
        except RuntimeError as error:
            raise StoreLost() from error

    def wish(self, end: bool) -> None:
        """Somebody wishes the run to stop: to its end, or to go on in a next attempt."""
        if end:
            self.set("wish", "end")
        else:
            self.swap("wish", "", "go on")

    def next_number(self) -> int | None:
        """The next number that nobody has drawn; None once the counter is closed."""
        number = self._add("tickets", 1) - 1
        if number < _CLOSED:
            return number
        self._add("tickets", -1)  # drawn in vain
        return None

    def close(self) -> None:
        """No more numbers for anybody; `drawn` tells how many there were."""
        drawn = self._add("tickets", _CLOSED) - _CLOSED
        if drawn < _CLOSED:  # the first to close it knows the number
            self.swap("drawn", "", str(drawn))

    def next_rest(self) -> int:
        """As `next_number`, after the end of it: 0, 1, …"""
        return self._add("rest", 1) - 1

    def drawn(self) -> int:
        """How many numbers were drawn so far, or until it was closed."""
        number = self._add("tickets", 0)
        if number < _CLOSED:
            return number
        deadline = time.monotonic() + _CLOSING
        while not (said := self.get("drawn")) and time.monotonic() < deadline:
            time.sleep(look_again_after(self.workers))
        # Who closed it may have ended before it said so. Then the counter tells, but for those who
        # ask it at this very moment: rather a share left out than one drawn twice.
        return int(said or self.swap("drawn", "", str(number % _CLOSED)))

    def _add(self, key: str, amount: int) -> int:
        try:
            return self.store.add(key, amount)
        except RuntimeError as error:
            raise StoreLost() from error

    def _ask(self, keys: list[str]) -> list[str]:
        try:
            return [value.decode() for value in self.store.multi_get(keys)]
        except RuntimeError as error:
            raise StoreLost() from error


def look_again_after(workers: int) -> float:
    """Seconds between two looks at the board, so that all together do not keep it busy."""
    return max(0.02, workers / 1000)


def client(address: str) -> dist.TCPStore:
    """A connection of its own to the store: a question that waits holds up its connection."""
    host, _, port = address.rpartition(":")
    return dist.TCPStore(
        host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(minutes=5)
    )


def pair(address: str, name: str, rank: int, timeout: timedelta = _LONG) -> Any:
    """A connection between two processes, of ranks 0 and 1; waits until both have called.

    Each pair has a context of its own, since in gloo what happens to one connection ends all of
    its context. A time-out ends it too, so by default there is none: whether a peer lives is asked
    elsewhere.

    Returns:
        A `torch.distributed.ProcessGroupGloo`, of which torch's stubs know no `send` and `recv`.
    """
    store = dist.PrefixStore(f"pair/{name}", client(address))
    return dist.ProcessGroupGloo(store, rank, 2, timeout)


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
        """True if this worker writes for all."""
        return self.status.speaker == self._worker

    @property
    def surely_speaker(self) -> bool:
        """The same, where no other can have become it meanwhile; asks nobody. Any thread."""
        return self.is_speaker and time.monotonic() - self._known < self._patience

    def was_away(self) -> bool:
        """True if since the last call this process stood still for so long that it was left out."""
        away = self._was_away or time.monotonic() - self._last > self._patience
        self._was_away = False
        return away

    def close(self) -> None:
        self._stop.set()

    def look(self) -> Status:
        """The state that the thread saw last.

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
