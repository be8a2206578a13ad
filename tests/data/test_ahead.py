"""What the kernel is asked to read ahead: what comes next, and never what nobody needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankup.data import Loader, PackedDataset, open
from rankup.data.orders import Blocks, Ordering, Shuffled
from rankup.site import mounts

from . import made
from .feeding import Digest

COUNT, BATCH, WINDOW, LANES = 4000, 32, 40, 8
ORDER = Blocks(COUNT, 1, BATCH, 10, WINDOW, LANES)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ahead") / "pack"
    made.pack(root, {"train": made.samples(COUNT, most=2000)}, gap=0)
    return root


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the kernel is asked to read: from, to."""
    found = []

    def advised(descriptor: int, start: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        found.append((start, start + length))

    monkeypatch.setattr(os, "posix_fadvise", advised)
    monkeypatch.setattr(mounts, "kind_of", lambda path: "ext4")
    return found


def _loader(path: Path, order: Ordering = ORDER, rank: int = 0, world: int = 1) -> Loader:
    data = PackedDataset(path, transform=Digest())
    return Loader(data, BATCH, shuffle=order, seed=1, workers=0, rank=rank, world_size=world)


@pytest.mark.parametrize("how", ["mmap", "pread"])
@pytest.mark.parametrize("world", [1, 3])
def test_the_next_batches_are_asked_for_and_no_more(
    pack: Path,
    asked: list[tuple[int, int]],
    world: int,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANKUP_READ", how)
    field = open(pack).index.fields[0]
    size = int(field.length.sum())
    in_play = LANES * WINDOW / COUNT * size / world
    rank = world - 1
    have = np.zeros(field.offset.max() + 10_000, bool)
    read = 0
    loader = _loader(pack, rank=rank, world=world)
    for samples, stop in _batches(loader, rank, world):
        while asked:
            start, end = asked.pop()
            have[start:end] = True
            read += end - start
        spans = list(zip(field.offset[samples], field.length[samples], strict=True))
        assert all(have[at : at + n].all() for at, n in spans)
        # What was consumed, the windows in play, a quarter of them ahead, and lanes on borders.
        assert read < stop / COUNT * size / world * 1.1 + 3.0 * in_play
    # Each byte of this rank's part once, but for what is between its pieces.
    assert size / world * 0.95 < read < size / world * 1.1 + in_play


def _batches(loader: Loader, rank: int, world: int) -> Iterator[tuple[np.ndarray, int]]:
    """Samples of each batch of a rank, and where it ends in the epoch."""
    before = 0
    for _ in loader:
        stop = loader.consumed
        whole = ORDER.slice(0, before, stop)
        yield whole[rank * len(whole) // world : (rank + 1) * len(whole) // world], stop
        before = stop


def test_where_nothing_is_asked_for(
    pack: Path, tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    next(iter(_loader(pack, Shuffled(COUNT, 1))))
    (tmp_path / "files").mkdir()
    for name in "abc":
        (tmp_path / "files" / f"{name}.txt").write_text(name)
    next(iter(_loader(tmp_path / "files", Blocks(3, 1, BATCH))))
    monkeypatch.setattr(mounts, "kind_of", lambda path: "tmpfs")
    next(iter(_loader(pack)))
    assert not asked
    monkeypatch.setattr(mounts, "kind_of", lambda path: "ext4")
    next(iter(_loader(pack)))
    assert asked
