"""Fills a copy from its source: large reads by position, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ...site.gpus import usable_cores
from .part import Part

# Gets bytes and samples that are done in all.
Watch = Callable[[int, int], None]
# Gets all pieces of a copy from somewhere and writes them.
Fill = Callable[[Part, Watch], None]


def threads() -> int:
    """How many pieces are read at a time.

    More than cores: on a file system of many disks a read waits, and one stream is a fraction of
    what it gives. In memory two cores are busy with two (2.1 GB/s here, with 16 threads 2.0).
    """
    return min(16, max(4, 2 * usable_cores()))


def fill(part: Part, watch: Watch) -> None:
    """Read all pieces of a copy from its source.

    Raises:
        BadContainer: a sample is not what was packed, or the source is not as it was.
        OSError: the source cannot be read, or the copy not written.
    """
    spare = threading.local()
    lock = threading.Lock()
    stop = threading.Event()
    done = [0, 0]

    def one(number: int) -> None:
        if stop.is_set():
            return
        try:
            piece = part.pieces[number]
            if not hasattr(spare, "buffer"):
                spare.buffer = memoryview(bytearray(part.most))
            count = part.write(piece, part.read(piece, spare.buffer))
            with lock:
                done[0] += piece.length
                done[1] += count
        except BaseException:
            stop.set()  # the others need not go on
            raise

    with ThreadPoolExecutor(threads(), "rankup-stage") as pool:
        try:
            for _ in pool.map(one, range(len(part.pieces))):
                watch(done[0], done[1])
        finally:
            stop.set()
