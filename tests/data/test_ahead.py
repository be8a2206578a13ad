"""What is read ahead: what comes next, a bounded part of it, and never what nobody needs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankup.data import Loader, PackedDataset, open
from rankup.data.ahead import along
from rankup.data.draw import Draw, draws
from rankup.data.orders import Blocks, Shuffled
from rankup.site import mounts

from . import made
from .feeding import Digest, within

COUNT, BATCH, WINDOW, LANES = 4000, 32, 40, 8
ORDER = Blocks(COUNT, 1, BATCH, 10, WINDOW, LANES)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ahead") / "pack"
    made.pack(root, {"train": made.samples(COUNT, most=2000)}, gap=0)
    return root


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "kind_of", lambda path: "ext4")
    monkeypatch.setenv("RANKUP_READ", "pread")


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is read ahead: from, to."""
    found = []
    read = os.preadv

    def noted(descriptor: int, buffers: Any, offset: int) -> int:
        count = read(descriptor, buffers, offset)
        found.append((offset, offset + count))
        return count

    monkeypatch.setattr(os, "preadv", noted)
    return found


def rank_draws(rank: int = 0, world: int = 1, consumed: int = 0) -> Iterator[Draw]:
    return draws(ORDER, BATCH, 1, 0, consumed, rank=rank, world_size=world, train=True)


@pytest.mark.parametrize("world", [1, 3])
def test_the_next_batches_are_read_and_no_more(
    pack: Path, touched: list[tuple[int, int]], world: int
) -> None:
    data = PackedDataset(pack)
    field = open(pack).index.fields[0]
    size = int(field.length.sum())
    in_play = LANES * WINDOW / COUNT * size / world
    rank = world - 1
    have = np.zeros(field.offset.max() + 10_000, bool)
    read = 0
    for draw in along(rank_draws(rank, world), ORDER, data, rank=rank, world_size=world):
        spans = list(zip(field.offset[draw.samples], field.length[draw.samples], strict=True))
        for _ in within(120):
            while touched:
                start, stop = touched.pop()
                have[start:stop] = True
                read += stop - start
            if all(have[at : at + n].all() for at, n in spans):
                break
        else:
            raise AssertionError("it was not read ahead")
        # What was consumed, the windows in play, and a quarter of them ahead; and borders.
        assert read < draw.stop / COUNT * size / world * 1.1 + 2.0 * in_play
    # Each byte of this rank's part once, but for what is between its pieces.
    assert size / world * 0.95 < read < size / world * 1.1 + in_play


def test_of_mapped_files_the_kernel_is_asked(
    pack: Path, touched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setenv("RANKUP_READ", "mmap")
    monkeypatch.setattr(os, "posix_fadvise", lambda *call: asked.append(call[3]))
    found = along(rank_draws(), ORDER, PackedDataset(pack), rank=0, world_size=1)
    next(found)
    for _ in within(120):
        if asked:
            break
    found.close()  # type: ignore[attr-defined]
    assert set(asked) == {os.POSIX_FADV_WILLNEED}
    assert not touched


def test_a_loader_reads_ahead_and_ends_its_thread(
    pack: Path, touched: list[tuple[int, int]]
) -> None:
    photos = PackedDataset(pack, transform=Digest())
    loader = Loader(photos, BATCH, shuffle=ORDER, seed=1, workers=0, rank=0, world_size=1)
    for _ in loader:
        assert [one.name for one in threading.enumerate()].count("rankup-ahead") == 1
        break
    assert "rankup-ahead" not in [one.name for one in threading.enumerate()]
    assert sum(len(labels) for _, labels in loader) == COUNT
    assert touched
    assert "rankup-ahead" not in [one.name for one in threading.enumerate()]


def test_where_there_is_nothing_to_read_ahead(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = PackedDataset(pack)
    own = rank_draws()

    def same(order: Any, dataset: Any) -> bool:
        return along(own, order, dataset, rank=0, world_size=1) is own

    assert not same(ORDER, data)
    assert same(Shuffled(COUNT), data)
    assert same(ORDER, list(range(COUNT)))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a")
    assert same(ORDER, PackedDataset(tmp_path / "files"))
    monkeypatch.setattr(mounts, "kind_of", lambda path: "tmpfs")
    assert same(ORDER, data)
