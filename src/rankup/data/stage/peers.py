"""This node's part in a copy that several make together: see `broadcast`."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from ..errors import BadContainer
from ..index import data_path
from . import copying, meeting, wire
from .copying import Watch
from .meeting import Away, Gone, Peer, Step
from .part import Part
from .waiting import Say

_POLL = 0.2
_AT_A_TIME = 8  # peers that are asked


@dataclass
class _Own:
    """The pieces that this node has read, which others ask for."""

    part: Part
    numbers: range
    digests: dict[int, int] = field(default_factory=dict)
    failed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, number: int, digest: int) -> None:
        with self.changed:
            self.digests[number] = digest
            self.changed.notify_all()

    def lookup(self, number: int, seconds: float) -> tuple[Path, int, int, int] | None:
        """See `wire.Lookup`."""
        if number not in self.numbers:
            raise KeyError(number)
        with self.changed:
            self.changed.wait_for(lambda: number in self.digests or self.failed, seconds)
            if number not in self.digests:
                if self.failed:
                    raise KeyError(number)
                return None
            piece = self.part.pieces[number]
            path = data_path(self.part.root, self.part.index.files, piece.file)
            return path, piece.offset, piece.length, self.digests[number]

    def end(self) -> None:
        """Nothing more will come."""
        with self.changed:
            self.failed = True
            self.changed.notify_all()


class Filling:
    """One copy, as this node makes it."""

    def __init__(self, of: Step, folder: Path, part: Part, watch: Watch, say: Say) -> None:
        self._of, self._folder, self._part = of, folder, part
        self._watch, self._say = watch, say
        self._own = _Own(part, range(of.me, len(part.pieces), of.nodes))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._done = [0, 0]  # bytes, samples
        self._dead: set[int] = set()  # peers that cannot be reached, and so ask for nothing
        self._spare = threading.local()
        self._plan = xxhash.xxh3_64_hexdigest(repr((part.pieces, list(part.index.files))).encode())

    def run(self) -> None:
        of, token = self._of, secrets.token_bytes(32)
        server = wire.Server(token, self._own.lookup, self._of.nodes)
        try:
            meeting.publish(of, self._folder, self._plan, server.port, token)
            peers = [(self._of.me + step) % self._of.nodes for step in range(1, self._of.nodes)]
            with (
                ThreadPoolExecutor(copying.threads(), "rankup-stage") as readers,
                ThreadPoolExecutor(min(len(peers), _AT_A_TIME), "rankup-peer") as askers,
            ):
                try:
                    own: list[Future[Any]] = [
                        readers.submit(self._read, number) for number in self._own.numbers
                    ]
                    asked = {askers.submit(self._ask, node): node for node in peers}
                    self._await([*own, *asked])
                    missing = [number for future in asked for number in future.result()]
                    self._await([readers.submit(self._read, number) for number in missing])
                finally:
                    self._stop.set()
            (self._folder / f"done-{self._of.me}").touch(0o600)
            self._linger(server)
        finally:
            self._own.end()
            server.close()

    def _await(self, futures: Sequence[Future[Any]]) -> None:
        """Until all are through, or the first has failed."""
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, _POLL, FIRST_EXCEPTION)
            with self._lock:
                self._watch(*self._done)
            for one in done:
                error = one.exception()
                if error is not None:
                    raise error.why if isinstance(error, _Unwritten) else error

    def _read(self, number: int) -> None:
        """A piece from the source."""
        if self._stop.is_set():
            return
        piece = self._part.pieces[number]
        view = self._part.read(piece, self._buffer())
        digest = xxhash.xxh3_64_intdigest(view)
        self._count(piece.length, self._part.write(piece, view))
        if number in self._own.numbers:
            self._own.add(number, digest)

    def _ask(self, node: int) -> list[int]:
        """All pieces that a peer has to give; which of them are still missing then."""
        missing = list(range(node, len(self._part.pieces), self._of.nodes))
        name = f"{node + 1} of {self._of.nodes}"
        try:
            peer = self._find(node) if missing else None
            if peer is None:
                return []
            name = peer.name
            me, stop = self._of.me, self._stop.is_set
            with wire.connected(peer.addresses, peer.port, peer.token, me, stop) as get:
                while missing and not self._stop.is_set():
                    self._take(missing[0], get)
                    del missing[0]
        except (OSError, wire.Rubbish, Gone) as error:
            if isinstance(error, OSError | Away):
                self._dead.add(node)
            if self._stop.is_set():  # this node has failed, and says why
                return missing
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            if isinstance(error, ConnectionResetError | BrokenPipeError):
                why = "it hung up"  # which of them it is depends on what was under way
            self._say(
                f"node {name} does not give {len(missing)} of its pieces ({why}): they are read "
                f"from {self._part.source}"
            )
        return missing

    def _take(self, number: int, get: Callable[[int, memoryview], memoryview]) -> None:
        piece = self._part.pieces[number]
        try:
            view = get(number, self._buffer()[: piece.length])
        except KeyError:
            raise Gone("it has failed itself") from None
        try:
            count = self._part.write(piece, view)
        except BadContainer as error:  # else it would have failed itself
            raise Gone(f"it sent other bytes than were packed: {error}") from None
        except OSError as error:  # this node's memory is full: no fault of the peer
            raise _Unwritten(error) from None
        self._count(piece.length, count)

    def _find(self, node: int) -> Peer:
        """Where a peer listens, once it says so."""
        end = time.monotonic() + self._of.meet
        while not self._stop.is_set():
            left = (self._folder / f"left-{node}").exists()  # asked first: it is written last
            try:
                return meeting.found(self._folder, node, self._plan)
            except FileNotFoundError:
                pass
            if left:
                raise Gone("it copies nothing now")
            if time.monotonic() > end:
                raise Away(f"it has not come to {self._folder} in {self._of.meet:g} s")
            time.sleep(_POLL)
        raise Gone("this node has failed")

    def _linger(self, server: wire.Server) -> None:
        """Serve until every peer has what this node has to give."""
        began = time.monotonic()
        while True:
            waiting = [node for node in range(self._of.nodes) if self._needs(node, server)]
            if not waiting:
                return
            if min(server.quiet(), time.monotonic() - began) > self._of.linger:
                numbers = ", ".join(str(node + 1) for node in waiting)
                self._say(f"nodes {numbers} of {self._of.nodes} ask for nothing; going on")
                return
            with self._lock:
                self._watch(*self._done)
            time.sleep(_POLL)

    def _needs(self, node: int, server: wire.Server) -> bool:
        if node == self._of.me or node in self._dead or server.got(node) >= len(self._own.numbers):
            return False
        marks = (self._folder / f"{mark}-{node}" for mark in ("done", "left"))
        return not any(mark.exists() for mark in marks)

    def _buffer(self) -> memoryview:
        if not hasattr(self._spare, "buffer"):
            self._spare.buffer = memoryview(bytearray(self._part.most))
        buffer: memoryview = self._spare.buffer
        return buffer

    def _count(self, length: int, samples: int) -> None:
        with self._lock:
            self._done[0] += length
            self._done[1] += samples


class _Unwritten(Exception):  # noqa: N818 - carries what it is caused by
    """This node could not write a piece that came from a peer."""

    def __init__(self, why: OSError) -> None:
        super().__init__(why)
        self.why = why
