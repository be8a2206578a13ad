"""The whole Loader, at several numbers of threads and of processes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from ...base.errors import UserError
from ..index import Int64s
from ..loader import Kind, Loader
from ..reader import PackedDataset
from .measured import Load, Spread

_PREFETCH = 2
_GAIN = 1.05  # what a larger number of workers has to bring
_STALE = 2  # numbers of workers in a row that bring less, until no larger ones are tried
_STRETCHES = 7  # that the time is cut into, so that there are quartiles
_SHARE = 0.5  # of the free memory, for batches


@dataclass(frozen=True)
class Around:
    """An order without an end: the same samples again and again, so that no epoch's end is timed.

    Args:
        rows: int64 (k,), k >= 1.
        samples: of the data set.
    """

    rows: Int64s
    samples: int
    n: int = 1 << 40
    global_batch: int | None = None
    seed: int | None = None
    identity: str = "Around"

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        return self.rows[np.arange(start, stop) % len(self.rows)]


@dataclass(frozen=True)
class Plan:
    """What is tried.

    Attributes:
        counts: numbers of workers, rising.
        batch: samples of a batch, as asked.
        sample: bytes of a sample that is made; 0: not known.
        seconds: that a sample takes one worker.
        each: seconds for each number of workers and each kind.
        room: bytes of memory that are free.
        loose: samples are not put together.
    """

    counts: tuple[int, ...]
    batch: int
    sample: int
    seconds: float
    each: float
    room: int
    loose: bool


def counts(cores: int) -> tuple[int, ...]:
    """Numbers of workers that are tried: powers of two, and all cores."""
    powers = [1 << bits for bits in range(cores.bit_length()) if 1 << bits < cores]
    return (*powers, cores)


def fitting(plan: Plan, workers: int) -> int:
    """Samples of a batch that fit into memory with those made ahead, and into the time.

    A worker should make eight batches in its time, or the figure says nothing.
    """
    ahead = workers * (_PREFETCH + 1) + 2
    fits = plan.room * _SHARE / ahead / plan.sample if plan.sample else plan.batch
    quick = plan.each / 8 / max(plan.seconds, 1e-9)
    return max(1, int(min(plan.batch, fits, quick)))


def measure(
    dataset: PackedDataset, rows: Sequence[int], plan: Plan, say: Callable[[str], None]
) -> tuple[tuple[Load, ...], dict[str, str]]:
    """Samples per second with threads and with processes, until more of them bring no more.

    Returns:
        The loads; and why there are none of one kind, by its name.

    Raises:
        UserError: the Loader takes neither.
    """
    found: list[Load] = []
    refused: dict[str, str] = {}
    for kind in _KINDS:
        best, stale = 0.0, 0
        for workers in plan.counts:
            say(f"the Loader with {workers} {kind}")
            batch = fitting(plan, workers)
            try:
                load = _measured(dataset, rows, plan, kind, workers, batch)
            except UserError as error:  # as a transform that does not want to be in a thread
                refused[kind] = str(error)
                break
            found.append(load)
            stale = stale + 1 if load.rate.median < _GAIN * best else 0
            best = max(best, load.rate.median)
            if stale == _STALE:
                break
    if not found:
        raise UserError("; ".join(refused.values()))
    return tuple(found), refused


def rates(times: Sequence[float], workers: int, batch: int) -> list[float]:
    """Samples per second from when batches came.

    Workers that began together are done together: batches come in bursts of as many as there are
    workers, and whole bursts have a rate. The first ones, made ahead, are left out.

    Args:
        times: seconds, rising; of the start, then of each batch.
    """
    made = len(times) - 1
    first = max(0, min(_PREFETCH * workers, made - workers))
    bursts = (made - first) // workers
    if not bursts:
        return [made * batch / max(times[-1] - times[0], 1e-9)]
    # Few long stretches: of single bursts one waits for what the next one then has ready.
    length = workers * -(-bursts // _STRETCHES)
    pairs = itertools.pairwise(times[first::length])
    return [length * batch / max(late - early, 1e-9) for early, late in pairs]


def _measured(
    dataset: PackedDataset, rows: Sequence[int], plan: Plan, kind: Kind, workers: int, batch: int
) -> Load:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    loader = Loader(
        dataset,
        batch,
        shuffle=Around(np.asarray(rows, np.int64), len(dataset)),
        train=False,
        workers=workers,
        kind=kind,
        collate=list if plan.loose else None,
        prefetch=_PREFETCH,
        rank=0,
        world_size=1,
    )
    try:
        batches = iter(loader)
        times = list(_times(batches, workers, plan.each))
        memory = _unshared(before)
        batches.close()  # type: ignore[attr-defined]
    finally:
        loader.close()
    return Load(kind, workers, batch, Spread.of(rates(times, workers, batch)), memory)


def _times(batches: Iterator[object], workers: int, seconds: float) -> Iterator[float]:
    """When each batch came, for a time that begins once the first ones, made ahead, are gone."""
    begin = steady = time.perf_counter()
    yield begin
    for number, _ in enumerate(batches, 1):
        now = time.perf_counter()
        yield now
        if number <= _PREFETCH * workers:
            steady = now
        elif now - steady > seconds and number >= (_PREFETCH + 3) * workers:
            return
        if now - begin > 4 * seconds and number > workers:
            return


def _unshared(before: set[int]) -> int | None:
    """Bytes that each new worker process has for itself, on average."""
    try:
        new = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
        # A server that forks them is none of the workers.
        sizes = [one.memory_full_info().uss for one in new if not one.children()]
    except psutil.Error:
        return None
    return int(sum(sizes) / len(sizes)) if sizes else None


# Processes first: they are forked, which wants to be done while there are no threads yet.
_KINDS: tuple[Kind, ...] = ("processes", "threads")
