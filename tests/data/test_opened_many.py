"""Ten million samples: quickly there, and shared by all workers."""

from __future__ import annotations

import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import rankup
from rankup.data import indexes, stamp
from rankup.data.index import Field, Index, Split, Strings
from rankup.data.opened import Samples

MANY = 10_000_000


def _read_at_random(found: Samples, out: Any, both: Any) -> None:
    draw = random.Random(os.getpid())
    for _ in range(5_000):
        row = draw.randrange(MANY)
        found.read(row)
        found.label(row)
        found.key(row)
    out.put("read")
    both.wait(200)  # what only one of them has mapped by now would be its own
    out.put(psutil.Process().memory_full_info().uss)
    both.wait(200)


@pytest.mark.slow
def test_ten_million_samples_cost_a_worker_nothing_of_its_own(tmp_path: Path) -> None:
    """Less than 50 MB of unshared memory (USS) more than an idle worker has."""
    root = tmp_path / "p"
    root.mkdir()
    (root / "a").write_bytes(bytes(1000))
    rows = np.arange(MANY, dtype=np.int64)
    keys = Strings(np.full(MANY * 12, ord("x"), np.uint8), np.arange(MANY + 1, dtype=np.int64) * 12)
    field = Field("data", rows % 900, np.full(MANY, 100), hash=np.zeros(MANY, np.uint64))
    index = Index(
        "tar",
        Strings.of([b"a"]),
        (Split("train", 0, MANY),),
        keys,
        (field,),
        rows % 1000,
        sizes=np.array([1000]),
        facts={"ends": [stamp.ends(root / "a")]},
    )
    indexes.save(index, indexes.place(root))
    del index, field, keys, rows
    found = rankup.data.open(root)
    context = multiprocessing.get_context("spawn")
    idle = _uss_of_an_idle_worker(context)
    queue, both = context.Queue(), context.Barrier(2)
    given = (found, queue, both)
    workers = [context.Process(target=_read_at_random, args=given) for _ in range(2)]
    for worker in workers:
        worker.start()
    told = [queue.get(timeout=200) for _ in range(4)]
    for worker in workers:
        worker.join(200)
    used = [value for value in told if value != "read"]
    assert [round((value - idle) / 1e6) for value in used if value - idle >= 50e6] == []


def _uss_of_an_idle_worker(context: Any) -> int:
    queue = context.Queue()
    worker = context.Process(target=_idle, args=(queue,))
    worker.start()
    used = int(queue.get(timeout=200))
    worker.join(200)
    return used


def _idle(out: Any) -> None:
    out.put(psutil.Process().memory_full_info().uss)
