"""Times of each part by itself, on one core; and of the whole Loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ...base.errors import UserError
from .. import transforms
from ..fetch import allocate
from ..loader import Kind, Loader
from ..reader import PackedDataset, plain
from ..transforms import Shaped
from . import Raised
from .verdict import Load, Parts, Spread

_SAMPLES = 512  # that are measured with, at most
_ROOM = 256 << 20  # bytes of them, and of what they become
_AT_ONCE = 64  # of them in one repeat of the transform, at most
_LEAST, _MOST = 3, 50  # repeats
_KEY = transforms.key_of(0, 0)
_PREFETCH = 2
_EPOCH = 1 << 20  # samples
_SHARE = 0.5  # of the free memory, for batches


@dataclass(frozen=True)
class Taken:
    """Samples that can be made, and what they were made of.

    Attributes:
        rows: their numbers.
        data: their bytes or arrays, in memory.
        items: what the transform made of them; a single array of each where it writes in place.
        first: seconds that each took to be read for the first time.
        bad: how many could not be made; `first_bad`: the first one and its error.
    """

    rows: list[int]
    data: list[Any]
    items: list[Any]
    first: list[float]
    bad: int
    first_bad: str


def take(dataset: PackedDataset, rows: Sequence[int], seconds: float) -> Taken:
    """Read and transform samples once, for as long as there is time, to see what they are.

    Raises:
        Raised: the transform cannot make most of them.
        UserError: most of the samples are damaged.
    """
    taken = Taken([], [], [], [], 0, "")
    failed: list[tuple[int, Exception]] = []
    begin, size = time.perf_counter(), 0
    for row in rows[:_SAMPLES]:
        try:
            at = time.perf_counter()
            value = _value(dataset, row)
            if isinstance(value, memoryview):
                bytes(value)  # which reads what is mapped
            spent = time.perf_counter() - at
            item = plain(value)
            if dataset.transform is not None:
                item = dataset.transform(value, transforms.rng(_KEY, row))
        except Exception as why:
            failed.append((row, why))
        else:
            taken.rows.append(row)
            taken.data.append(value)
            taken.items.append(item)
            taken.first.append(spent)
            size += bytes_of(value) + bytes_of(item)
        if time.perf_counter() - begin > seconds or size > _ROOM:
            break
    if not failed:
        return taken
    row, error = failed[0]
    words = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    first = f"{dataset.samples.path(row)}: {words}"
    if len(failed) > len(taken.rows):
        if isinstance(error, UserError):
            raise UserError(f"most samples cannot be made; the first is {first}") from error
        raise Raised(error) from error
    return replace(taken, bad=len(failed), first_bad=first)


def parts(dataset: PackedDataset, taken: Taken, batch: int, seconds: float) -> tuple[Parts, Any]:
    """Return the times of all parts, and a batch."""
    samples, field, transform = dataset.samples, _field(dataset), dataset.transform

    def read() -> None:
        for row in taken.rows:  # more than a core's caches hold, where there are so many
            bytes(samples.read(row, field))  # a copy touches each page, as a decoder will

    reading = _repeated(read, len(taken.rows), seconds / 6)
    transforming = None
    if transform is not None:
        shaped = transform if isinstance(transform, Shaped) else None
        out = None if shaped is None else np.empty(shaped.shape, shaped.dtype)
        some = list(zip(taken.rows, taken.data, strict=True))[:_AT_ONCE]

        def make() -> None:
            for row, value in some:
                random = transforms.rng(_KEY, row)
                if shaped is not None and out is not None:
                    shaped.into(value, random, out)
                else:
                    transform(value, random)

        transforming = _repeated(make, len(some), seconds / 2)
    collating, whole, loose = _collated(dataset, taken, batch, seconds / 6)
    copying, why = _copied(whole, batch, seconds / 6)
    first = Spread.of(taken.first)
    bad = (taken.bad, taken.first_bad)
    return Parts(first, reading, transforming, collating, loose, copying, why, *bad), whole


def _copied(whole: Any, batch: int, seconds: float) -> tuple[Spread | None, str]:
    """Return seconds per sample from page-locked memory to one GPU, or None, and why."""
    if not torch.cuda.is_available():
        return None, "no GPU here"
    if not isinstance(whole, torch.Tensor):
        return None, "a batch is no tensor"
    locked = whole.pin_memory()

    def copy() -> None:
        locked.to("cuda", non_blocking=True)
        torch.cuda.synchronize()

    copy()  # the first one makes CUDA's context
    return _repeated(copy, batch, seconds), ""


def _collated(
    dataset: PackedDataset, taken: Taken, batch: int, seconds: float
) -> tuple[Spread | None, Any, str]:
    transform = dataset.transform
    if isinstance(transform, Shaped):
        shape = (batch, *transform.shape)
        dtype = torch.from_numpy(taken.items[0]).dtype

        # In place there is nothing to put together; what is left is new memory for each batch,
        # whose pages the kernel hands out one by one as they are first written to.
        spread = _repeated(lambda: allocate(shape, dtype).fill_(1), batch, seconds)
        return spread, allocate(shape, dtype).zero_(), ""
    items = [taken.items[number % len(taken.items)] for number in range(batch)]
    try:
        whole = default_collate(items)
    except (RuntimeError, TypeError) as error:
        return None, items, str(error).split("\n")[0]

    return _repeated(lambda: default_collate(items), batch, seconds), whole, ""


def _repeated(once: Callable[[], object], count: int, seconds: float) -> Spread:
    """Return the seconds per sample of something that does so many samples."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < _LEAST or (len(times) < _MOST and time.perf_counter() - begin < seconds):
        at = time.perf_counter()
        once()
        times.append((time.perf_counter() - at) / count)
    return Spread.of(times)


def _field(dataset: PackedDataset) -> str | None:
    assert not isinstance(dataset.field, tuple)
    return dataset.field


def _value(dataset: PackedDataset, row: int) -> Any:
    """Read a sample as a PackedDataset does."""
    samples, field = dataset.samples, _field(dataset)
    is_array = samples.index.field(field).dtype
    return samples.array(row, field) if is_array else samples.read(row, field)


def bytes_of(made: Any) -> int:
    """Return the bytes of a sample or a batch; 0 where nobody knows."""
    if isinstance(made, torch.Tensor):
        return made.numel() * made.element_size()
    if isinstance(made, memoryview | np.ndarray):
        return made.nbytes
    if isinstance(made, bytes):
        return len(made)
    values = made.values() if isinstance(made, dict) else made
    return sum(map(bytes_of, values)) if isinstance(made, dict | list | tuple) else 0


def fitting(workers: int, batch: int, seconds: float, parts: Parts, sample: int, room: int) -> int:
    """Return the samples of a batch that fit into memory with those made ahead, and into the time.

    A worker should make eight batches in its time, or the figure says nothing.

    Args:
        sample: bytes of a sample that is made; 0: not known.
        room: bytes of memory that are free.
    """
    works = (parts.read, parts.transform, parts.collate)
    work = sum(spread.median for spread in works if spread is not None)
    ahead = workers * (_PREFETCH + 1) + 2
    fits = room * _SHARE / ahead / sample if sample else batch
    return max(1, int(min(batch, fits, seconds / 8 / max(work, 1e-9))))


def loads(
    dataset: PackedDataset,
    rows: Sequence[int],
    workers: int,
    batch: int,
    seconds: float,
    loose: bool,
) -> tuple[tuple[Load, ...], dict[str, str]]:
    """Return samples per second with processes and with threads; why there are none of a kind.

    Args:
        seconds: for each kind.
        loose: samples are not put together.

    Raises:
        UserError: the Loader takes neither.
    """
    found: list[Load] = []
    refused: dict[str, str] = {}
    # Long epochs of the same samples again and again, so that the time of an epoch's end is none.
    repeated = dataset.subset(np.resize(rows, max(_EPOCH, _PREFETCH * workers * batch)))
    # Processes first: they are forked, which wants to be done while there are no threads yet.
    kinds: tuple[Kind, ...] = ("processes", "threads")
    for kind in kinds:
        options: dict[str, Any] = {"workers": workers, "kind": kind, "prefetch": _PREFETCH}
        options |= {"rank": 0, "world_size": 1, "quiet": True, "shuffle": False, "drop_last": True}
        try:
            loader = Loader(repeated, batch, collate=list if loose else None, **options)
            with closing(loader):
                batches = chain.from_iterable(repeat(loader))
                for _ in range(_PREFETCH * workers):  # those that are made ahead
                    next(batches)
                begin, count = time.perf_counter(), 0
                # Workers that began together are done together: whole bursts have a rate.
                while not count or time.perf_counter() - begin < seconds:
                    for _ in range(workers):
                        next(batches)
                    count += workers * batch
                rate = count / max(time.perf_counter() - begin, 1e-9)
                found.append(Load(kind, workers, batch, rate))
        except UserError as error:  # as of a transform that is not for threads
            refused[kind] = str(error)
    if not found:
        raise UserError("; ".join(refused.values()))
    return tuple(found), refused
