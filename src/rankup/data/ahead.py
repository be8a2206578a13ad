"""Reads what an order needs next, in large pieces, before the samples of it are asked for."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..site import mounts
from .draw import Draw
from .errors import BadContainer
from .index import Int64s
from .reader import PackedDataset
from .spans import Spans

_BUFFER = 4 << 20
_GAP = 64 << 10  # what lies between neighbours (headers, fields) is read too, up to this
_EARLIER = 4  # a window is read when a quarter of the one before it is left

# (file of the index, first byte, byte behind the last)
Piece = tuple[int, int, int]


@runtime_checkable
class InWindows(Protocol):
    """An order that takes its samples out of windows, as `orders.Blocks`."""

    @property
    def n(self) -> int: ...
    @property
    def global_batch(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def lanes(self) -> int: ...

    def windows(
        self, epoch: int, start: int, rank: int, world_size: int
    ) -> list[tuple[int, int]]: ...

    def members(self, epoch: int, lane: int, window: int) -> Int64s: ...


def along(
    draws: Iterator[Draw],
    order: Any,
    dataset: Any,
    *,
    rank: int,
    world_size: int,
    share: int = 0,
    shares: int = 1,
) -> Iterator[Draw]:
    """The same draws, while a thread of this process reads the windows that come next.

    It reads into the file system's own cache, which all processes of a node share, and throws the
    bytes away: the small reads that follow find them there. So it costs a copy in memory, keeps
    nothing itself, and what goes wrong in it goes wrong again where the sample is read. Of local
    files, which are mapped, it asks the kernel for them, without a copy. Where the data is larger
    than half of this machine's memory, it tells the kernel which windows are done.

    Without windows to read (another order), where data is in memory already, a staged copy, single
    files or compressed, it does nothing.

    Args:
        rank, world_size: whose draws they are.
        share, shares: of several processes that all make batches of this rank, each reads a part.
    """
    if not isinstance(order, InWindows) or not isinstance(dataset, PackedDataset):
        return draws
    if not _worth(dataset):
        return draws
    plan = _Plan(order, dataset, rank, world_size, share, shares)
    return _along(draws, plan, _larger_than_memory(dataset))


@dataclass(frozen=True)
class _Plan:
    order: InWindows
    dataset: PackedDataset
    rank: int
    world_size: int
    share: int
    shares: int

    def windows(self, epoch: int, start: int) -> list[tuple[int, int]]:
        """Those of the global batch at a position that this process reads."""
        found = self.order.windows(epoch, start, self.rank, self.world_size)
        return [one for one in found if one[0] % self.shares == self.share]

    def pieces(self, epoch: int, lane: int, window: int) -> list[Piece]:
        return pieces(self.dataset, self.order.members(epoch, lane, window))


def pieces(dataset: PackedDataset, samples: Int64s) -> list[Piece]:
    """Where the bytes of some samples lie; of neighbours in one piece."""
    rows = dataset.rows(samples) + dataset._start
    found: list[Piece] = []
    columns = []
    for one in dataset._fields:
        file = np.zeros(len(rows), np.int64) if one.file is None else one.file[rows]
        start = one.offset[rows]
        stop = start + one.length[rows]
        columns.append(np.stack([file.astype(np.int64), start, stop, rows], axis=1))
    table = np.concatenate(columns)
    table = table[(table[:, 1] >= 0) & (table[:, 2] > table[:, 1])]
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    before = -2
    for file, start, stop, row in table.tolist():
        beside = 0 <= row - before <= 1 and found[-1][0] == file
        before = row
        if beside and start <= found[-1][2] + _GAP:
            found[-1] = (file, found[-1][1], max(found[-1][2], stop))
        else:
            found.append((file, start, stop))
    return found


def _worth(dataset: PackedDataset) -> bool:
    samples = dataset.samples
    if samples.staged is not None or samples.index.container == "files":
        return False
    if not isinstance(samples._spans, Spans) or not len(samples.index.files):
        return False
    return mounts.kind_of(samples.file(0)) not in mounts.IN_MEMORY


def _larger_than_memory(dataset: PackedDataset) -> bool:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(np.maximum(dataset.lengths, 0).sum()) > memory // 2


def _along(draws: Iterator[Draw], plan: _Plan, forget: bool) -> Iterator[Draw]:
    reader: Reader | None = None
    try:
        for draw in draws:
            if reader is None:
                reader = Reader(plan, draw, forget)
            reader.at(draw.stop - draw.total)
            yield draw
    finally:
        if reader is not None:
            reader.close()


@dataclass
class _Lane:
    """What is known of a lane: its last window that was read, and where that lies."""

    window: int
    pieces: list[Piece] = field(default_factory=list)


class Reader:
    """The thread that reads ahead of the draws of one epoch.

    Args:
        first: the draw that it begins with.
        forget: tell the kernel which windows are done.
    """

    def __init__(self, plan: _Plan, first: Draw, forget: bool) -> None:
        self._plan, self._epoch, self._forget = plan, first.epoch, forget
        self._step = plan.order.global_batch
        lanes = min(plan.order.lanes, self._step)
        windows = plan.order.window * lanes  # positions until all lanes are in the next window
        self._ahead = max(2 * self._step, windows // _EARLIER)
        self._next = self._now = first.stop - first.total
        self._lanes: dict[int, _Lane] = {}
        self._done: deque[tuple[int, list[Piece]]] = deque()
        self._open: tuple[int, int] | None = None  # file and descriptor
        self._buffer = memoryview(bytearray(_BUFFER))
        # What is mapped is read by the kernel, which need not copy what it has already.
        self._advise = plan.dataset.samples.how == "mmap"
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._ended = False
        self.read = 0  # bytes
        self.forgotten = 0
        self._thread = threading.Thread(target=self._run, name="rankup-ahead", daemon=True)
        self._thread.start()

    def at(self, position: int) -> None:
        """Say that the batch at a position is made now."""
        with self._changed:
            self._now = position
            self._changed.notify_all()

    def wait(self) -> None:
        """Until all that may be read now has been, or the thread has ended."""
        with self._changed:
            while self._thread.is_alive() and self._next < self._until():
                self._changed.wait(0.05)

    def close(self) -> None:
        """End the thread; it is at the most in the middle of one read."""
        if os.getpid() != self._process:  # a forked child has a copy of this, and no thread
            return
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                for lane, window in self._plan.windows(self._epoch, self._next):
                    known = self._lanes.get(lane)
                    if known is not None and known.window >= window:
                        continue
                    if known is not None:
                        self._done.append((self._next + self._ahead, known.pieces))
                    found = self._plan.pieces(self._epoch, lane, window)
                    self._lanes[lane] = _Lane(window, found)
                    self._read(found)
                with self._changed:
                    self._next += self._step
                    self._changed.notify_all()
                while self._forget and self._done and self._done[0][0] <= self._now:
                    self._drop(self._done.popleft()[1])
        except (OSError, BadContainer):
            pass  # who reads the sample says it
        finally:
            if self._open is not None:
                os.close(self._open[1])

    def _wait(self) -> bool:
        """Until there is something to do; False: nothing any more."""
        with self._changed:
            # Where the loop was quicker, what it has read is not read again.
            self._next = max(self._next, self._now)
            while not self._ended and self._until() <= self._next < self._plan.order.n:
                self._changed.wait()
            return not self._ended and self._next < self._plan.order.n

    def _until(self) -> int:
        return min(self._now + self._ahead + 1, self._plan.order.n)

    def _read(self, found: list[Piece]) -> None:
        for file, start, stop in found:
            descriptor = self._descriptor(file)
            if self._advise:
                os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)
                self.read += stop - start
                continue
            while start < stop and not self._ended:
                count = os.preadv(descriptor, [self._buffer[: stop - start]], start)
                if not count:
                    return
                start += count
                self.read += count

    def _drop(self, found: list[Piece]) -> None:
        for file, start, stop in found:
            os.posix_fadvise(self._descriptor(file), start, stop - start, os.POSIX_FADV_DONTNEED)
            self.forgotten += stop - start

    def _descriptor(self, file: int) -> int:
        if self._open is None or self._open[0] != file:
            if self._open is not None:
                os.close(self._open[1])
                self._open = None
            path: Path = self._plan.dataset.samples.file(file)
            self._open = (file, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        return self._open[1]
