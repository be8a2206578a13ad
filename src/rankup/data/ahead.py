"""Asks the kernel for what an order needs next, in large pieces, before its samples are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..site import mounts
from .batches import BatchRequest
from .errors import BadContainer
from .index import Int64s
from .reader import PackedDataset

_GAP = 64 << 10  # what lies between neighbours (headers, fields) is read too, up to this
_EARLIER = 4  # a window is asked for when a quarter of the one before it is left

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


def reading_ahead(
    requests: Iterator[BatchRequest], order: Any, dataset: Any, rank: int, world_size: int
) -> Iterator[BatchRequest]:
    """Hand on requests, and have the kernel read the windows that come next.

    It reads into the file system's cache, which all processes of a node share: the small reads that
    follow find the bytes there. Without windows (another order), where data is in memory already, a
    staged copy, single files or compressed, nothing is done.

    Args:
        rank, world_size: whose requests they are.
    """
    if not isinstance(order, InWindows) or not isinstance(dataset, PackedDataset):
        return requests
    samples = dataset.samples
    if samples.staged is not None or samples.index.container == "files":
        return requests
    if not len(samples.index.files) or mounts.kind_of(samples.file(0)) in mounts.IN_MEMORY:
        return requests
    return _reading_ahead(requests, order, dataset, rank, world_size)


def _reading_ahead(
    requests: Iterator[BatchRequest],
    order: InWindows,
    dataset: PackedDataset,
    rank: int,
    world_size: int,
) -> Iterator[BatchRequest]:
    step = order.global_batch
    # Positions until all lanes are in the next window.
    ahead = max(2 * step, order.window * min(order.lanes, step) // _EARLIER)
    asked: dict[int, int] = {}  # the last window of each lane
    following = 0
    for request in requests:
        position = request.stop - request.total
        following = max(following, position)
        while following < min(position + ahead + 1, order.n):
            for lane, window in order.windows(request.epoch, following, rank, world_size):
                if asked.get(lane, -1) < window:
                    asked[lane] = window
                    _advise(dataset, order.members(request.epoch, lane, window))
            following += step
        yield request


def _advise(dataset: PackedDataset, samples: Int64s) -> None:
    # What goes wrong here goes wrong again, and is said, where the sample is read.
    with suppress(OSError, BadContainer):
        opened, descriptor = -1, -1
        try:
            for file, start, stop in _pieces(dataset, samples):
                if file != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                    descriptor = os.open(dataset.samples.file(file), flags)
                    opened = file
                os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _pieces(dataset: PackedDataset, samples: Int64s) -> list[Piece]:
    """Return where the bytes of some samples lie; of neighbours in one piece."""
    rows = dataset.rows(samples) + dataset.start
    columns = []
    for one in dataset.fields:
        file = np.zeros(len(rows), np.int64) if one.file is None else one.file[rows]
        start = one.offset[rows]
        stop = start + one.length[rows]
        columns.append(np.stack([file.astype(np.int64), start, stop, rows], axis=1))
    table = np.concatenate(columns)
    table = table[(table[:, 1] >= 0) & (table[:, 2] > table[:, 1])]
    found: list[Piece] = []
    before = -2
    for file, start, stop, row in table[np.lexsort((table[:, 1], table[:, 0]))].tolist():
        neighbours = 0 <= row - before <= 1 and found[-1][0] == file
        before = row
        if neighbours and start <= found[-1][2] + _GAP:
            found[-1] = (file, found[-1][1], max(found[-1][2], stop))
        else:
            found.append((file, start, stop))
    return found
