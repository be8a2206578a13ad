"""The time to the first batch, and a worker's own memory, with data sets of millions of samples.

Each figure is of a new process (`_loader_first.py`). Ours has an index of so many samples over one
small file of photos, in which each photo stands for thousands. The peer is torch's DataLoader over
a pickled list of as many (path, label), as the course keeps it: the paths are those of a few
photos, each time as a string of its own.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import _loader_turns
import _photos
import common

LIST = "list.pickle"
_FEW = 100  # photos that stand for all
_FIRST = Path(__file__).with_name("_loader_first.py")
_MILLION = 1_000_000
_TURNS = 3


def show(quick: bool) -> None:
    """Measure and print both tables."""
    sizes = [_MILLION, 10 * _MILLION, *([] if quick else [100 * _MILLION])]
    contestants = [
        ("rankup, threads", "threads", sizes),
        ("rankup, processes", "processes", sizes),
        ("DataLoader, list of paths", "list", sizes[: 1 if quick else 2]),
        ("torch's RandomSampler alone", "sampler", sizes),
    ]
    rows: dict[str, list[str]] = {name: [name] for name, _, _ in contestants}
    memory: list[list[str]] = []
    # On disk: the largest index has more than 4 GB, which memory may not have to spare.
    with tempfile.TemporaryDirectory(prefix="rankup-bench-") as name:
        folder = Path(name)
        for size in sizes:
            _write(folder, size, with_list=size in contestants[2][2])
            for label, what, its in contestants:
                if size not in its:
                    rows[label].append("-")
                    continue
                found = [_run(what, folder, size)["seconds"] for _ in range(_TURNS)]
                rows[label].append(f"{common.median(found):.2f} s")
            if size == _MILLION:
                memory = _memory(folder, size // 5 if quick else size)
            for path in folder.iterdir():
                path.unlink()
    print("seconds to the first batch of 64, without imports; the files are in the page cache")
    common.table(["samples", *(f"{size // _MILLION} million" for size in sizes)], [*rows.values()])
    print("memory of its own, MB, after an epoch in which nothing was decoded")
    common.table(["", "samples", "each worker", "training process, more"], memory)


def _memory(folder: Path, count: int) -> list[list[str]]:
    """Rows of the table of memory: what is in a process and shared with no other."""
    rows = []
    for label, what in (
        ("rankup, threads", "epoch threads"),
        ("rankup, processes", "epoch processes"),
        ("DataLoader, list of paths", "epoch list"),
    ):
        found = _run(what, folder, count)
        workers = [f"{one:.0f}" for one in found["workers"]]
        rows.append([label, str(count), ", ".join(workers) or "-", f"{found['own']:.0f}"])
    return rows


def _run(what: str, folder: Path, count: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, _FIRST, what, str(folder), str(count)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **_loader_turns.one_thread()},
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stderr[-4000:]}\nbench: {what} of {count} samples failed")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _write(folder: Path, count: int, with_list: bool) -> None:
    """An index of `count` samples over a small file, and the list of paths."""
    import numpy as np

    from rankup.data import indexes, stamp
    from rankup.data.index import Field, Index, Split
    from rankup.data.strings import Strings

    root = _photos.data_root()
    assert root is not None
    photos = sorted((root / "imagenet-sample").rglob("*.JPEG"))[:_FEW]
    data = [path.read_bytes() for path in photos]
    (folder / "train.bin").write_bytes(b"".join(data))
    sizes = np.array([len(one) for one in data], np.int64)
    which = np.arange(count, dtype=np.int64) % len(data)
    width = 8  # of a key: its number
    places = np.arange(count, dtype=np.int64)
    digits = np.empty((count, width), np.uint8)
    for column in range(width):
        digits[:, width - 1 - column] = places // 10**column % 10 + ord("0")
    index = Index(
        "tar",
        Strings.of([b"train.bin"]),
        (Split("train", 0, count, "train"),),
        Strings(digits.reshape(-1), np.arange(count + 1, dtype=np.int64) * width),
        (Field("jpg", (np.cumsum(sizes) - sizes)[which], sizes[which]),),
        which % 10,
        tuple(f"c{k}" for k in range(10)),
        np.array([sizes.sum()], np.int64),
    )
    facts = {"ends": stamp.all_ends(index, folder), "writer": "bench"}
    indexes.save(replace(index, facts=facts), indexes.place(folder))
    if with_list:  # strings that are equal, and yet each an object of its own, as those of a scan
        where = str(photos[0].parents[1])
        names = [f"{path.parent.name}/{path.name}" for path in photos]
        listed = [(f"{where}/{names[k]}", k % 10) for k in which.tolist()]
        with (folder / LIST).open("wb") as file:
            pickle.dump(listed, file, pickle.HIGHEST_PROTOCOL)
