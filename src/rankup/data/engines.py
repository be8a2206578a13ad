"""The engines that make batches: in the loop itself, or ahead in threads or processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch

from ..base.errors import UserError
from ..site.gpus import usable_cores
from .batches import BatchRequest
from .fetch import ALLOCATOR, Allocator, BufferPool, Fetch, Made, allocate_pinned
from .processes import Processes, late
from .transforms import Shaped, own_generators

_LOOKED_AT = 4096
_GRACE = 5.0  # seconds in which threads may finish the batches that they are at

_Jobs = SimpleQueue[tuple[BatchRequest, "Future[Made]"] | None]


class Engine(Protocol):
    """Makes batches, in the order of their requests."""

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Made]: ...

    def close(self) -> None: ...


def engine(
    fetch: Fetch,
    workers: int | None = None,
    kind: str = "auto",
    *,
    prefetch: int = 2,
    context: str | None = None,
    timeout: float = 1800.0,
    pin_memory: bool = False,
) -> Engine:
    """Return the engine that was asked for, or that suits the data set; options as of `Loader`.

    Raises:
        UserError: no such kind or context, or numbers below the least.
    """
    if kind not in ("auto", "threads", "processes"):
        raise UserError(f"kind={kind!r} is not known: auto, threads or processes")
    known = multiprocessing.get_all_start_methods()
    if context is not None and context not in known:
        raise UserError(f"context={context!r} is not known: {', '.join(known)}")
    count = default_workers() if workers is None else workers
    for name, number, least in (
        ("workers", count, 0),
        ("timeout", timeout, 0),
        ("prefetch", prefetch, 1),
    ):
        if not number >= least:
            raise UserError(f"{name}={number} is below {least}, the least that makes sense")
    if count == 0:
        return Inline(fetch)
    if kind == "threads" or (kind == "auto" and suits_threads(fetch)):
        return Threads(fetch, count, prefetch, timeout, pin_memory)
    return Processes(fetch, count, prefetch, context, timeout)


def default_workers() -> int:
    """The cores of this rank minus one, which the training loop itself needs; at least one."""
    usable = parent = usable_cores()
    with suppress(OSError):
        parent = max(usable, len(os.sched_getaffinity(os.getppid())))
    return max(1, cores_of_rank(os.environ, usable, parent) - 1)


def cores_of_rank(environment: Mapping[str, str], usable: int, parent: int) -> int:
    """Cores that are this rank's own, not those that it shares with other ranks of its node.

    A launcher may have bound each rank to cores of its own, or have left all of them to all.

    Args:
        usable: cores that this process may run on.
        parent: those that its parent may, which is torchrun where that has started it.
    """

    def number(name: str) -> int:
        with suppress(ValueError):
            return max(0, int(environment.get(name, "")))
        return 0

    if "LOCAL_WORLD_SIZE" in environment:
        return min(usable, max(1, parent // (number("LOCAL_WORLD_SIZE") or 1)))
    tasks = number("SLURM_STEP_NUM_TASKS")
    if tasks < 2:  # as `setup` sees whether this is a rank of srun's
        return usable
    here = -(-tasks // (number("SLURM_STEP_NUM_NODES") or 1))
    own = number("SLURM_CPUS_PER_TASK") or (number("SLURM_CPUS_ON_NODE") or usable) // here
    return min(usable, max(1, own))


def suits_threads(fetch: Fetch) -> bool:
    """Return True where neither the transform nor reading holds threads up."""
    if getattr(fetch.dataset, "releases_gil", False) and fetch.collate is None:
        return True  # it says so itself
    transform = getattr(fetch.dataset, "transform", None)
    if not (isinstance(transform, Shaped) and transform.releases_gil) or fetch.collate is not None:
        return False
    samples = getattr(fetch.dataset, "samples", None)
    for field in samples.index.fields if samples is not None else ():
        # A negative offset is read by Python code; a look at all would read the whole index.
        step = max(1, len(field.offset) // _LOOKED_AT)
        if np.any(field.offset[::step] < 0):
            return False
    return True


class Inline:
    """In the loop itself, when it asks."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Made]:
        for request in requests:
            with own_generators():
                made = self._fetch(request)
            yield made

    def close(self) -> None:
        pass


class Threads:
    """Threads, for transforms that spend their time outside the interpreter's lock.

    Nothing travels between processes: a batch is written where the training loop reads it.
    """

    def __init__(
        self, fetch: Fetch, workers: int, prefetch: int, timeout: float, pin_memory: bool
    ) -> None:
        self._fetch, self._count = fetch, workers
        self._ahead, self._timeout = workers * prefetch, timeout
        self._pin = pin_memory
        self._jobs: _Jobs | None = None
        self._pid = 0
        self._end: weakref.finalize[Any, Any] | None = None

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Made]:
        # In a forked child the threads are not there.
        jobs = self._jobs if self._pid == os.getpid() else None
        if jobs is None:
            jobs = self._start()
        waiting: deque[Future[Made]] = deque()
        try:
            for request in requests:
                future: Future[Made] = Future()
                waiting.append(future)
                jobs.put((request, future))
                if len(waiting) > self._ahead:
                    yield self._first(waiting)
            while waiting:
                yield self._first(waiting)
        finally:
            for future in waiting:
                future.cancel()

    def _first(self, waiting: deque[Future[Made]]) -> Made:
        try:
            waiting[0].exception(self._timeout or None)
        except FutureTimeout:
            self.close()  # should anybody go on, others take over
            raise late(self._timeout) from None
        return waiting.popleft().result()

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


def _end(jobs: _Jobs, threads: list[threading.Thread], pid: int) -> None:
    """Take back what nobody waits for any more, and let the threads end."""
    if pid != os.getpid():
        return
    with suppress(Empty):
        while True:
            job = jobs.get_nowait()
            if job is not None:
                job[1].cancel()
    for _ in threads:
        jobs.put(None)
    until = time.monotonic() + _GRACE
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


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
