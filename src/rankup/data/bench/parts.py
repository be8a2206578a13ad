"""Each part by itself, on one core: read, transform, collate, copy to the device."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ...base.errors import UserError
from ...site import mounts
from .. import transforms
from ..fetch import allocate
from ..reader import PackedDataset
from ..sampled import plain
from ..transforms import Shaped
from .chosen import Raised
from .cold import dropped, reopened
from .measured import Parts, Spread

_SAMPLES = 512  # that are measured with, at most
_ROOM = 256 << 20  # bytes of them, and of what they become
_AT_ONCE = 64  # of them in one repeat of the transform, at most
_REPEATS = 5  # at least, where a repeat is quick
_FEW = 3  # at least, where it is not
_MOST = 50
PATIENCE = 60.0  # seconds for one sample
_COLD = 16  # samples of one repeat
_KEY = transforms.key_of(0, 0)


@dataclass(frozen=True)
class Taken:
    """Samples that can be made, and what they were made of.

    Attributes:
        rows: their numbers.
        data: their bytes or arrays, in memory.
        items: what the transform made of them; a single array of each where it writes in place.
        bad: how many could not be made; `first_bad`: the first one and its error.
        seconds: that a sample took, reading and all.
    """

    rows: list[int]
    data: list[Any]
    items: list[Any]
    bad: int
    first_bad: str
    seconds: float


def take(dataset: PackedDataset, rows: Sequence[int], seconds: float) -> Taken:
    """Read and transform samples once, for as long as there is time, to see what they are.

    Raises:
        Raised: the transform cannot make most of them.
        UserError: most of the samples are damaged.
    """
    good, data, items, failed = [], [], [], []
    begin = time.perf_counter()
    size = 0
    for row in rows[:_SAMPLES]:
        try:
            with _limit():
                value = _value(dataset, row)
                item = _made(dataset, value, row)
        except Exception as why:
            failed.append((row, why))
        else:
            good.append(row)
            data.append(value)
            items.append(item)
            size += bytes_of(value) + bytes_of(item)
        if time.perf_counter() - begin > seconds or size > _ROOM:
            break
    spent = (time.perf_counter() - begin) / (len(good) + len(failed))
    first = ""
    if failed:
        row, error = failed[0]
        first = f"{dataset.samples.path(row)}: {_words(error)}"
        if len(failed) > len(good):
            if isinstance(error, UserError):
                raise UserError(f"most samples cannot be made; the first is {first}") from error
            raise Raised from error
    return Taken(good, data, items, len(failed), first, spent)


@contextmanager
def _limit() -> Iterator[None]:
    """An error where the main thread waits for too long: its traceback says what for."""

    def over(number: int, frame: object) -> None:
        raise TimeoutError(f"it is not done with one sample after {PATIENCE:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def cold(
    dataset: PackedDataset, rows: Sequence[int], storage: str, seconds: float
) -> tuple[Spread | None, str]:
    """Seconds per sample that is not in this node's memory, or None, and what to say of it."""
    if storage in mounts.IN_MEMORY:
        return None, f"it lies in memory ({storage})"
    samples, field = dataset.samples, _field(dataset)
    times, unsure = [], ""
    begin = time.perf_counter()
    for repeat in range(_MOST):
        start = repeat * _COLD % len(rows)
        some = list(rows[start : start + _COLD])
        # Anew each time: what this process has mapped cannot be dropped.
        fresh = reopened(samples)
        if fresh is None:
            return None, "a part of it is staged"
        with fresh:
            gone, why = dropped(fresh, some, field)
            if not gone:
                return None, why
            unsure = unsure or why
            at = time.perf_counter()
            for row in gone:
                bytes(fresh.read(row, field))
            times.append((time.perf_counter() - at) / len(gone))
        if time.perf_counter() - begin > seconds and len(times) >= _FEW:
            break
    return Spread.of(times), unsure


def measure(
    dataset: PackedDataset, taken: Taken, batch: int, seconds: float
) -> tuple[Parts, Any, bool]:
    """The times of all parts but of cold reading.

    Returns:
        The parts, a batch, and whether its samples can be put together to tensors.
    """
    rows = taken.rows
    most = max(1, int(seconds / 2 / _REPEATS / max(taken.seconds, 1e-9)))
    some = min(len(rows), most, _AT_ONCE)
    samples, field = dataset.samples, _field(dataset)

    def read() -> int:
        for row in rows:  # more than a core's caches hold, where there are so many
            bytes(samples.read(row, field))  # a copy touches each page, as a decoder will
        return len(rows)

    reading = _repeated(read, seconds / 6)
    transforming = None
    if dataset.transform is not None:
        shaped = dataset.transform if isinstance(dataset.transform, Shaped) else None
        out = None if shaped is None else np.empty(shaped.shape, shaped.dtype)

        def transform() -> int:
            for row, value in zip(rows[:some], taken.data, strict=False):
                random = transforms.rng(_KEY, row)
                if shaped is not None and out is not None:
                    shaped.into(value, random, out)
                elif dataset.transform is not None:
                    dataset.transform(value, random)
            return some

        transforming = _repeated(transform, seconds / 2)
    collating, whole, loose = _collated(dataset, taken, batch, seconds / 6)
    copying, why = copied(whole, batch, seconds / 6)
    parts = Parts(
        reading,
        transforming,
        collating,
        copy=copying,
        why_not_copy=why,
        loose=loose,
        bad=taken.bad,
        first_bad=taken.first_bad,
    )
    return parts, whole, not loose


def copied(whole: Any, batch: int, seconds: float) -> tuple[Spread | None, str]:
    """Seconds per sample from page-locked memory to one GPU, or None, and why."""
    if not torch.cuda.is_available():
        return None, "no GPU here"
    if not isinstance(whole, torch.Tensor):
        return None, "a batch is no tensor"
    locked = whole.pin_memory()

    def copy() -> int:
        locked.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        return batch

    copy()  # the first one makes CUDA's context
    return _repeated(copy, seconds), ""


def _collated(
    dataset: PackedDataset, taken: Taken, batch: int, seconds: float
) -> tuple[Spread | None, Any, str]:
    transform = dataset.transform
    if isinstance(transform, Shaped):
        shape = (batch, *transform.shape)
        dtype = torch.from_numpy(taken.items[0]).dtype

        # In place there is nothing to put together; what is left is new memory for each batch,
        # whose pages the kernel hands out one by one as they are first written to.
        def allocated() -> int:
            allocate(shape, dtype).fill_(1)
            return batch

        whole = allocate(shape, dtype).zero_()
        return _repeated(allocated, seconds), whole, ""
    items = [taken.items[number % len(taken.items)] for number in range(batch)]
    try:
        whole = default_collate(items)
    except (RuntimeError, TypeError) as error:
        return None, items, str(error).split("\n")[0]

    def collate() -> int:
        default_collate(items)
        return batch

    return _repeated(collate, seconds), whole, ""


def _repeated(once: Callable[[], int], seconds: float) -> Spread:
    """Seconds per sample of something that does a number of samples."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < _MOST:
        at = time.perf_counter()
        count = once()
        now = time.perf_counter()
        times.append((now - at) / count)
        spent = now - begin
        if spent > seconds and len(times) >= (_FEW if spent > 3 * seconds else _REPEATS):
            break
    return Spread.of(times)


def _field(dataset: PackedDataset) -> str | None:
    assert not isinstance(dataset.field, tuple)
    return dataset.field


def _value(dataset: PackedDataset, row: int) -> Any:
    """As a PackedDataset reads it."""
    samples, field = dataset.samples, _field(dataset)
    is_array = samples.index.field(field).dtype
    return samples.array(row, field) if is_array else samples.read(row, field)


def _made(dataset: PackedDataset, value: Any, row: int) -> Any:
    if dataset.transform is None:
        return plain(value)
    return dataset.transform(value, transforms.rng(_KEY, row))


def bytes_of(made: Any) -> int:
    """Bytes of a sample or a batch; 0 where nobody knows."""
    if isinstance(made, torch.Tensor):
        return made.numel() * made.element_size()
    if isinstance(made, memoryview | np.ndarray):
        return made.nbytes
    if isinstance(made, bytes):
        return len(made)
    values = made.values() if isinstance(made, dict) else made
    return sum(map(bytes_of, values)) if isinstance(made, dict | list | tuple) else 0


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
