"""A process that begins with a data set of millions: how long, and how much memory it takes.

As a program, `_loader_first.py WHAT FOLDER COUNT`: does one of `WHAT` and prints a JSON object.
Imports are not counted; everything that grows with the data set is.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from _loader_batches import BATCH, SIZE, WORKERS
from _loader_peers import opened
from _loader_start import LIST
from rankup.data import Loader, PackedDataset, photos

_ROWS = 4096  # a batch where nothing is decoded


def first_batch(make: Callable[[], Iterable[Any]]) -> dict[str, Any]:
    """Seconds until there is one, from nothing but modules."""
    start = time.perf_counter()
    next(iter(make()))
    return {"seconds": time.perf_counter() - start}


def epoch(make: Callable[[], Iterable[Any]]) -> dict[str, Any]:
    """Unshared MB of each worker process, and what this one has more than before it began."""
    import psutil

    here = psutil.Process()
    before = here.memory_full_info().uss
    workers: list[int] = []
    loader = make()  # stays, with all that it holds, until this process has been measured
    for number, _ in enumerate(loader):
        if number % 20 == 0:  # workers are gone with the last batch
            workers = [one.memory_full_info().uss for one in here.children()] or workers
    getattr(loader, "close", int)()  # what it shares with workers would not count as its own
    own = here.memory_full_info().uss - before
    return {"workers": sorted(one / 1e6 for one in workers), "own": own / 1e6}


def ours(kind: str, folder: Path, count: int, decode: bool) -> Iterable[Any]:
    transform = photos.RandomResizedCrop(SIZE) if decode else _length
    data = PackedDataset(folder, "train", transform)
    assert len(data) >= count
    if len(data) > count:
        data = data.subset(range(count))
    return Loader(
        data,
        BATCH if decode else _ROWS,
        workers=WORKERS,
        kind=kind,  # type: ignore[arg-type]
        rank=0,
        world_size=1,
    )


def _length(data: Any, rng: object) -> int:
    return len(data)


class Listed(Dataset[Any]):
    """What most scripts have: paths and labels in a Python list."""

    def __init__(self, folder: Path, count: int, decode: bool) -> None:
        self._listed = pickle.loads((folder / LIST).read_bytes())[:count]
        self._decode = decode

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, row: int) -> Any:
        path, label = self._listed[row]
        return (opened(Path(path)) if self._decode else len(path)), label


def listed(folder: Path, count: int, decode: bool) -> Iterable[Any]:
    size = BATCH if decode else _ROWS
    data = Listed(folder, count, decode)
    return DataLoader(data, size, shuffle=True, num_workers=WORKERS)


def sampler(folder: Path, count: int, decode: bool) -> Iterable[int]:
    return RandomSampler(range(count))


WHAT: dict[str, Callable[[Path, int, bool], Iterable[Any]]] = {
    "threads": partial(ours, "threads"),
    "processes": partial(ours, "processes"),
    "list": listed,
    "sampler": sampler,
}


def main() -> None:
    _, what, folder, count = sys.argv
    torch.set_num_threads(1)
    make = partial(WHAT[what.removeprefix("epoch ")], Path(folder), int(count))
    found = (
        epoch(partial(make, False))
        if what.startswith("epoch")
        else first_batch(partial(make, True))
    )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
