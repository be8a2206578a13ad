"""What all contestants of `loader.py` have in common: their batches, their order, and the clock."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import pack

BATCH = 64
SIZE = 160
WORKERS = 2
HDF5 = Path("hdf5", pack.name("hdf5"))
_LAST = 1 << 40  # positions in an epoch so long that no slice meets its end
_UNCOUNTED = 5  # batches of a slice before the clock starts: what was made ahead is gone then

Slice = Callable[[float], tuple[float, float]]  # seconds -> samples/s, CPU seconds per sample


class Endless:
    """Orders of `count` samples one after another, as one epoch: an `Ordering`, and a sampler."""

    def __init__(self, count: int) -> None:
        from rankup.data.orders import Shuffled

        self.n, self.global_batch = _LAST, None
        self._count, self._order = count, Shuffled(count)
        self.samples, self.seed, self.identity = count, None, "Endless"

    def slice(self, epoch: int, start: int, stop: int) -> Any:
        first, last = start // self._count, (stop - 1) // self._count
        if first == last:
            at = first * self._count
            return self._order.slice(first, start - at, stop - at)
        middle = last * self._count
        return np.concatenate([self.slice(0, start, middle), self.slice(0, middle, stop)])

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for start in itertools.count(0, BATCH):
            yield from self.slice(0, start, start + BATCH).tolist()


def paced(batches: Iterator[tuple[Any, Any]]) -> Slice:
    """A slice of a loader, from one batch's arrival to another's; the first one is looked at."""
    images, labels = next(batches)
    shapes = [(BATCH, 3, SIZE, SIZE), (BATCH, SIZE, SIZE, 3)]
    if tuple(images.shape) not in shapes or images.dtype != torch.uint8 or len(labels) != BATCH:
        sys.exit(f"a batch is {images.dtype} of shape {tuple(images.shape)}, {len(labels)} labels")
    del images, labels

    def slice(seconds: float) -> tuple[float, float]:
        for _ in range(_UNCOUNTED):
            next(batches)
        before, done, start = spent(), 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            next(batches)
            done += BATCH
        return done / passed, (spent() - before) / done

    return slice


def spent() -> float:
    """CPU seconds of this process and its workers, which others on the machine do not lengthen."""
    here = psutil.Process()
    times = [one.cpu_times() for one in (here, *here.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def random_crop(scaled: bool = True) -> Any:
    from rankup.data import photos

    return photos.RandomResizedCrop(SIZE, scaled=scaled)


def whole(scaled: bool = False) -> Any:
    from rankup.data import photos

    return photos.Resize(SIZE, scaled=scaled)
