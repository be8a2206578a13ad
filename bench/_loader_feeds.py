"""Contestants of `loader.py`: batches of photos with two workers, by rankup and by others.

As a program, `_loader_feeds.py NAME FOLDER`: makes batches by one of `FEEDS` for as many seconds as
each line on its input says, and answers with samples/s.

All make the same: 64 photos of all sizes become uint8 of 3 x 160 x 160, with their labels, in a
random order that has no end, so that no epoch's beginning is counted. The random crop has 0.08 to
all of the area, a ratio of 3/4 to 4/3, an antialiased bilinear resize, and is flipped half the
time. Photos are decoded by Pillow where a peer leaves that to its user, as theirs do. Ours decodes
at 1/2, 1/4 or 1/8 where more pixels than needed are left, unless it is said to decode in full.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import _loader_peers as peers
from _loader_peers import (
    BATCH,
    HDF5,
    SIZE,
    WORKERS,
    Endless,
    Slice,
    paced,
    random_crop,
    spent,
    whole,
)


def ours(where: str | Path, kind: str, transform: Callable[[], Any], folder: Path) -> Slice:
    """Iterate over a `Loader` with a pack."""
    from rankup.data import Loader, PackedDataset

    data = PackedDataset(folder / where, "train", transform())
    loader = Loader(
        data,
        BATCH,
        shuffle=Endless(len(data)),
        workers=WORKERS,
        kind=kind,  # type: ignore[arg-type]
        rank=0,
        world_size=1,
    )
    return paced(iter(loader))


def bare(transform: Callable[[], Any], folder: Path) -> Slice:
    """Run the transform in a loop, in two processes that only count."""
    context = multiprocessing.get_context("fork")
    counts = context.RawArray(ctypes.c_longlong, WORKERS)
    for number in range(WORKERS):
        words = (transform, folder, counts, number)
        context.Process(target=_bare_loop, args=words, daemon=True).start()
    while not all(counts):
        time.sleep(0.01)

    def slice(seconds: float) -> tuple[float, float]:
        time.sleep(0.1)
        cpu, before, start = spent(), sum(counts), time.perf_counter()
        time.sleep(seconds)
        done, passed = sum(counts) - before, time.perf_counter() - start
        return done / passed, (spent() - cpu) / done

    return slice


def _bare_loop(transform: Callable[[], Any], folder: Path, counts: Any, number: int) -> None:
    import rankup

    samples = rankup.data.open(folder / HDF5)
    field = samples.index.field()
    places = list(zip(field.offset.tolist(), field.length.tolist(), strict=True))
    random.Random(number).shuffle(places)
    with (folder / HDF5).open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    made, rng = transform(), np.random.default_rng(number)
    out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
    parent = os.getppid()
    for done in itertools.count():
        if os.getppid() != parent:
            return
        offset, length = places[done % len(places)]
        made.into(data[offset : offset + length], rng, out[done % BATCH])
        counts[number] = done + 1


def _our(where: str | Path, kind: str, transform: Callable[[], Any]) -> Callable[[Path], Slice]:
    return lambda folder: ours(where, kind, transform, folder)


CROP, FULL, WHOLE = "rankup", "rankup, decoded in full", "rankup, whole photo in full"
SCALED = "rankup, whole photo"
BARE, COURSE = "limit: bare loop", "the course's, whole photo"
DALI = ("DALI, its reader", "DALI, bytes by rankup")
FEEDS: dict[str, Callable[[Path], Slice]] = {
    CROP: _our(HDF5, "auto", random_crop),
    "rankup, processes": _our(HDF5, "processes", random_crop),
    BARE: lambda folder: bare(random_crop, folder),
    FULL: _our(HDF5, "auto", partial(random_crop, False)),
    DALI[0]: peers.dali_reader,
    DALI[1]: peers.dali_ours,
    WHOLE: _our(HDF5, "auto", whole),
    SCALED: _our(HDF5, "auto", partial(whole, True)),
    COURSE: peers.course,
    "DataLoader, files": peers.files_pillow,
    "HF datasets": peers.hugging_face,
    "WebDataset": peers.web_dataset,
}


def main() -> None:
    _, name, folder = sys.argv
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what contestants print goes to the log
    torch.set_num_threads(1)
    slice = FEEDS[name](Path(folder))
    slice(0.2)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(*slice(float(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
