"""Data sets and transforms that show which samples a batch has, and what they have drawn."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

from rankup.data import Loader, PackedDataset

from . import made
from .pack.made import ALL, request, run, tree

CONTAINERS = (*ALL, "files", "zip", "parquet")


def digest(data: bytes | memoryview, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Eight bytes of the sample's hash and eight that it draws."""
    own = np.frombuffer(xxhash.xxh3_64_digest(data), np.uint8)
    return np.concatenate([own, np.frombuffer(rng.bytes(8), np.uint8)])


@dataclass(frozen=True)
class Digest:
    """`digest` as a transform that writes into the batch."""

    releases_gil: bool = True
    channels_last: bool = False
    shape: tuple[int, ...] = (16,)
    dtype: npt.DTypeLike = np.uint8

    def into(
        self, data: bytes | memoryview, rng: np.random.Generator, out: npt.NDArray[Any]
    ) -> None:
        if bytes(data[:3]) == b"BAD":
            raise ValueError(f"{len(data)} bytes are no sample")
        out[:] = digest(data, rng)

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> npt.NDArray[Any]:
        out = np.empty(self.shape, np.uint8)
        self.into(data, rng, out)
        return out


@dataclass(frozen=True)
class Large(Digest):
    """Large enough to lie in shared memory."""

    shape: tuple[int, ...] = (70_000,)

    def into(
        self, data: bytes | memoryview, rng: np.random.Generator, out: npt.NDArray[Any]
    ) -> None:
        out[:] = np.resize(digest(data, rng), self.shape)


def small(folder: Path, count: int, bad: Iterable[int] = ()) -> Path:
    """A pack of one split; samples of `bad` begin with what `Digest` refuses."""
    samples = made.samples(count, most=300)
    for row in bad:
        key, _, label = samples[row]
        samples[row] = (key, b"BAD" + bytes(row), label)
    root = folder / f"pack{count}"
    made.pack(root, {"train": samples})
    return root


def contained(folder: Path, container: str, count: int = 60) -> Path:
    """Samples in any container; those of zip and parquet are of other makers."""
    source = tree(folder / "source", count, largest=900)
    if container == "files":
        return source
    if container == "zip":
        with zipfile.ZipFile(folder / "out.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(source.rglob("*.txt")):
                archive.write(path, path.relative_to(source))
        return folder / "out.zip"
    if container == "parquet":
        paths = sorted((source / "train").rglob("*.txt"))
        table = {
            "image": [path.read_bytes() for path in paths],
            "label": [int(path.parent.name[-1]) for path in paths],
        }
        pq.write_table(pa.table(table), folder / "out.parquet", row_group_size=10)
        return folder / "out.parquet"
    asked = request(source, folder, container)
    assert run(asked) == 0
    return Path(asked.out)


def flat(batch: Any) -> bytes:
    """A batch's bytes, labels behind each sample."""
    inputs, labels = batch if isinstance(batch, tuple | list) else (batch, None)
    rows = [bytes(row.numpy()) for row in inputs]
    if labels is not None:
        rows = [row + bytes([label]) for row, label in zip(rows, labels.tolist(), strict=True)]
    return b"".join(rows)


def epochs(loader: Loader, count: int = 1) -> list[bytes]:
    """The batches of some epochs."""
    return [flat(batch) for _ in range(count) for batch in loader]


def loader(dataset: PackedDataset, batch: int = 8, **options: Any) -> Loader:
    """A loader of one rank, without workers unless asked for."""
    chosen = {"workers": 0, "rank": 0, "world_size": 1, "seed": 3, "timeout": 250.0, **options}
    return Loader(dataset, batch, **chosen)


def options(engine: str) -> dict[str, Any]:
    if engine == "none":
        return {"workers": 0}
    if engine == "threads":
        return {"workers": 2, "kind": "threads"}
    return {"workers": 2, "kind": "processes", "context": engine}


def workers() -> list[psutil.Process]:
    return [psutil.Process(child.pid) for child in children()]


def children() -> list[BaseProcess]:
    """Data workers: the ranks of other tests are children too."""
    return [one for one in multiprocessing.active_children() if one.name.startswith("rankup-data")]


@pytest.fixture(autouse=True)
def nobody_is_left() -> Any:
    before = set(threading.enumerate())
    gc.freeze()  # to look through what was there before would take half a second a test
    yield
    gc.collect()
    gc.unfreeze()
    for _ in within(60):
        left, threads = children(), set(threading.enumerate()) - before
        if not (left or threads):
            return
    for child in left:
        child.kill()
    raise AssertionError(f"left: {left}, {threads}")


# What goes wrong in workers.


@dataclass(frozen=True)
class Killed:
    """Ends its worker by a signal."""

    number: int

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> torch.Tensor:
        faulthandler.disable()  # that of pytest would print a page
        os.kill(os.getpid(), self.number)
        raise AssertionError


def mistaken(data: bytes | memoryview, rng: np.random.Generator) -> torch.Tensor:
    return data + 1  # type: ignore[return-value,operator]


def failing(data: bytes | memoryview, rng: np.random.Generator) -> torch.Tensor:
    raise RuntimeError("no luck with this one")


def wordy(data: bytes | memoryview, rng: np.random.Generator) -> torch.Tensor:
    raise ValueError("x" * 3_000_000)


class Awkward(Exception):  # noqa: N818
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def awkward(items: list[Any]) -> Any:
    raise Awkward(1, 2)


def within(seconds: float) -> Iterator[float]:
    """The time now, again and again, until it is up."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        yield now
        time.sleep(0.02)
