"""The engines that make batches: in the loop itself, or ahead in threads or processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Protocol

import numpy as np

from ..base.errors import UserError
from ..site.gpus import usable_cores
from .batches import BatchRequest
from .fetch import ALLOCATOR, Answer, Fetch, allocate_pinned
from .processes import Processes
from .threads import Threads
from .transforms import Shaped, own_generators

_LOOKED_AT = 4096


class Engine(Protocol):
    """Makes batches, in the order of their requests."""

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Answer]: ...

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
        return Inline(fetch, pin_memory)
    if kind == "threads" or (kind == "auto" and suits_threads(fetch)):
        return Threads(fetch, count, prefetch, timeout, pin_memory)
    return Processes(fetch, count, prefetch, context, timeout)


def default_workers() -> int:
    """The cores of this rank minus one, which the training loop itself needs; at least one."""
    return max(1, cores_of_rank(os.environ, usable_cores(), _cores_of_parent()) - 1)


def cores_of_rank(environment: Mapping[str, str], usable: int, parent: int) -> int:
    """Cores that are this rank's own, not those that it shares with other ranks of its node.

    A launcher may have bound each rank to cores of its own, or have left all of them to all.

    Args:
        usable: cores that this process may run on.
        parent: those that its parent may, which is torchrun where that has started it.
    """

    def number(name: str, default: int) -> int:
        with suppress(ValueError):
            return max(1, int(environment.get(name, "")))
        return default

    if "LOCAL_WORLD_SIZE" in environment:
        return min(usable, max(1, parent // number("LOCAL_WORLD_SIZE", 1)))
    if number("SLURM_STEP_NUM_TASKS", 1) > 1:  # as `setup` sees whether this is a rank of srun's
        if "SLURM_CPUS_PER_TASK" in environment:
            return min(usable, number("SLURM_CPUS_PER_TASK", usable))
        nodes, tasks = number("SLURM_STEP_NUM_NODES", 1), number("SLURM_STEP_NUM_TASKS", 1)
        return min(usable, max(1, number("SLURM_CPUS_ON_NODE", usable) // -(-tasks // nodes)))
    return usable


def _cores_of_parent() -> int:
    with suppress(OSError):
        return max(usable_cores(), len(os.sched_getaffinity(os.getppid())))
    return usable_cores()


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

    def __init__(self, fetch: Fetch, pin: bool = False) -> None:
        self._fetch, self._pin = fetch, pin

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Answer]:
        for request in requests:
            token = ALLOCATOR.set(allocate_pinned if self._pin else None)
            try:
                with own_generators():
                    made = self._fetch(request)
            finally:
                ALLOCATOR.reset(token)
            yield request, made

    def close(self) -> None:
        pass
