"""The one pool of worker processes: a function over many parts, on the cores of this machine."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from ..base.errors import RunFailed
from ..base.processes import die_with, freeze_in_children

Part = TypeVar("Part")
Result = TypeVar("Result")
Watch = Callable[[], None]
_POLL = 0.1  # seconds between two calls of `watch`
_AHEAD = 3  # parts of each worker that are handed out; `wait` looks at all of them

_work: Callable[[Any], Any] | None = None  # of a worker process, set once when it starts


class WorkerFailed(RunFailed):
    """A worker process was killed, or had not enough memory."""


class Interrupted(Exception):  # noqa: N818 - it is what happened
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Let SIGINT and SIGTERM set a flag while the body runs; give what raises once it is set.

    Raises (the function given):
        Interrupted: a signal came.
    """
    came: list[int] = []

    def check() -> None:
        if came:
            raise Interrupted(came[0])

    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cores() -> int:
    """Return how many processes this one may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    work: Callable[[Part], Result],
    parts: Iterable[Part],
    workers: int,
    watch: Watch | None = None,
    *,
    ordered: bool = False,
) -> Iterator[Result]:
    """Yield `work(part)` for each of the parts as they come, from forked processes.

    What `work` refers to is shared by the fork; parts and results travel pickled. When the caller
    stops early, and after an error, the workers are killed.

    Args:
        watch: called here ten times a second; it may raise to stop.
        ordered: results come in the order of the parts; no more than a few wait for an earlier one.

    Raises:
        WorkerFailed: a worker was killed, or had not enough memory.
        Exception: what `work` raises.
    """
    waiting = iter(parts)
    first = list(itertools.islice(waiting, max(1, workers) * _AHEAD))
    if not first:
        return
    freeze_in_children()
    sys.stdout.flush()
    sys.stderr.flush()
    children: list[Any] = []
    pool = ProcessPoolExecutor(
        min(max(1, workers), len(first)),
        _recorded(children),
        initializer=_begin,
        initargs=(work, os.getpid()),
    )
    running: list[Future[Any]] = []
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside other threads. Those there are, numpy's idle ones
            # and the one that renews a lock, hold nothing that a worker uses.
            warnings.simplefilter("ignore", DeprecationWarning)
            running = [pool.submit(_call, part) for part in first]
        while running:
            if watch is not None:
                watch()
            awaited = running[:1] if ordered else running
            done, _ = wait(awaited, None if watch is None else _POLL, FIRST_COMPLETED)
            # In the order of the parts, so that of several errors it is the first part's.
            for future in [future for future in running if future in done]:
                running.remove(future)
                yield future.result()
                running += [pool.submit(_call, part) for part in itertools.islice(waiting, 1)]
        children.clear()
    except BrokenProcessPool:
        pool.shutdown()  # which has joined them all
        if watch is not None:
            watch()  # a signal to the whole group ends workers, too, and is what to say
        raise WorkerFailed(_killed(children)) from None
    except MemoryError:
        raise WorkerFailed(
            "a worker process has not enough memory: take fewer of them, or a job with more"
        ) from None
    finally:
        for child in children:
            if child.pid is not None:  # else the system has no room for another process
                child.kill()
        if children:
            _leave_results(pool)
        pool.shutdown(cancel_futures=True)


def _leave_results(pool: ProcessPoolExecutor) -> None:
    """Close this process's end of the pipe that workers write their results to.

    One that was killed while it wrote leaves a part of a result, for whose rest the pool would wait
    for ever as long as anybody could still write it.
    """
    results = getattr(pool, "_result_queue", None)
    if results is not None:
        results._writer.close()


def _recorded(children: list[Any]) -> BaseContext:
    """Return a context of forked processes that keeps each of them in a list."""
    context = copy.copy(multiprocessing.get_context("fork"))

    def process(*args: Any, **kwargs: Any) -> Any:
        children.append(multiprocessing.get_context("fork").Process(*args, **kwargs))
        return children[-1]

    context.Process = process  # type: ignore[assignment,method-assign,misc]
    return context


def _begin(work: Callable[[Any], Any], parent: int) -> None:
    """Make a forked process a worker."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(parent)
    _work = work


def _call(part: Any) -> Any:
    assert _work is not None
    return _work(part)


def _killed(children: list[Any]) -> str:
    """Return who was killed, and by what; the pool has ended the others with SIGTERM."""
    how = "was ended"
    for child in children:
        code = child.exitcode
        if code not in (None, -signal.SIGTERM):
            by = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            how = f"(process {child.pid}) was ended by {by}"
    return (
        f"a worker {how}: out of memory, or somebody has killed it; see the last lines of dmesg or "
        "of the job"
    )
