"""Threads that make batches: for transforms that spend their time outside the interpreter's lock.

Nothing travels between processes: a batch is written where the training loop reads it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from ..base.errors import UserError
from .batches import BatchRequest
from .fetch import ALLOCATOR, Allocator, Answer, BufferPool, Fetch, Made, allocate_pinned

_GRACE = 5.0  # seconds in which threads may finish the batches that they are at

_Jobs = SimpleQueue[tuple[BatchRequest, "Future[Made]"] | None]


class Threads:
    """The engine; see `engines.Engine`."""

    def __init__(
        self, fetch: Fetch, workers: int, prefetch: int, timeout: float, pin_memory: bool
    ) -> None:
        self._fetch, self._count = fetch, workers
        self._ahead, self._timeout = workers * prefetch, timeout
        self._pin = pin_memory
        self._jobs: _Jobs | None = None
        self._pid = 0
        self._end: weakref.finalize[Any, Any] | None = None

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Answer]:
        # In a forked child the threads are not there.
        jobs = self._jobs if self._pid == os.getpid() else None
        if jobs is None:
            jobs = self._start()
        waiting: deque[tuple[BatchRequest, Future[Made]]] = deque()
        try:
            for request in requests:
                future: Future[Made] = Future()
                waiting.append((request, future))
                jobs.put((request, future))
                if len(waiting) > self._ahead:
                    yield self._first(waiting)
            while waiting:
                yield self._first(waiting)
        finally:
            for _, future in waiting:
                future.cancel()

    def _first(self, waiting: deque[tuple[BatchRequest, Future[Made]]]) -> Answer:
        request, future = waiting[0]
        end = time.monotonic() + self._timeout if self._timeout else None
        while not future.done():
            # In short waits, so that Ctrl-C is heard.
            left = 1.0 if end is None else min(1.0, end - time.monotonic())
            if left <= 0:
                raise self._hanging()
            with suppress(FutureTimeout):
                future.exception(left)
        waiting.popleft()
        return request, future.result()

    def _start(self) -> _Jobs:
        jobs: _Jobs = SimpleQueue()
        # A thread of its own would lock memory for the first GPU, which is another rank's.
        device = torch.cuda.current_device() if self._pin and torch.cuda.is_available() else None
        allocator = BufferPool(self._ahead + 2) if device is None else allocate_pinned
        threads = [
            # Not waited for at the end of the process: one may hang.
            threading.Thread(
                target=_work,
                args=(self._fetch, jobs, device, allocator),
                name=f"rankup-data-{number}",
                daemon=True,
            )
            for number in range(self._count)
        ]
        for thread in threads:
            thread.start()
        self._jobs, self._pid = jobs, os.getpid()
        self._end = weakref.finalize(self, _end, jobs, threads, self._pid)
        return jobs

    def close(self) -> None:
        """End the threads."""
        if self._end is not None:
            self._end()
        self._jobs = self._end = None

    def _hanging(self) -> UserError:
        # These threads cannot be ended before they are done with what they are at, and nobody waits
        # for them; others take over, should anybody go on.
        if self._end is not None and self._jobs is not None:
            self._end.detach()
            _stop(self._jobs, self._count)
        self._jobs = self._end = None
        return UserError(
            f"a data thread has not made its batch within {self._timeout:g} s. Is the file system "
            f"stuck, or does the transform wait for something (a lock, the network)? workers=0 "
            f"shows where; Loader(timeout=…) allows more time, 0 for ever"
        )


def _end(jobs: _Jobs, threads: list[threading.Thread], pid: int) -> None:
    if pid != os.getpid():
        return
    _stop(jobs, len(threads))
    until = time.monotonic() + _GRACE
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


def _stop(jobs: _Jobs, threads: int) -> None:
    """Take back what nobody waits for any more, and tell the threads to end."""
    with suppress(Empty):
        while True:
            job = jobs.get_nowait()
            if job is not None:
                job[1].cancel()
    for _ in range(threads):
        jobs.put(None)


def _work(fetch: Fetch, jobs: _Jobs, device: int | None, allocator: Allocator) -> None:
    one_thread()
    if device is not None:
        torch.cuda.set_device(device)
    ALLOCATOR.set(allocator)
    while (job := jobs.get()) is not None:
        request, future = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(fetch(request))
        except BaseException as error:
            future.set_exception(error)
        # Neither the batch nor its error is held until the next one comes.
        del job, request, future


def one_thread() -> None:
    """Let torch compute in this thread alone, and leave the others as they are.

    `torch.set_num_threads` would slow down matrix products of the whole process.
    """
    # The first call sets this thread's number to that of the process.
    if torch.get_num_threads() == 1:
        return
    for library in _openmp():
        before = library.omp_get_max_threads()
        library.omp_set_num_threads(1)
        if torch.get_num_threads() == 1:
            return
        library.omp_set_num_threads(before)  # it is that of another package


@cache
def _openmp() -> list[ctypes.CDLL]:
    """Return the OpenMP libraries of this process: torch's, and those of other packages."""
    found = {}
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            if any(name in Path(path).name for name in ("libgomp", "libiomp5", "libomp.so")):
                with suppress(OSError):
                    found[path] = ctypes.CDLL(path)
    return [one for one in found.values() if hasattr(one, "omp_set_num_threads")]
