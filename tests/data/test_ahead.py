"""What is read ahead: what comes next, a bounded part of it, and never what nobody needs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankup.data import Loader, PackedDataset, ahead, open
from rankup.data.ahead import Reader, along, pieces
from rankup.data.draw import Draw, draws
from rankup.data.orders import Blocks, Shuffled
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


def reader_of(pack: Path, rank: int, world: int, forget: bool = False, **share: int) -> Reader:
    plan = ahead._Plan(
        ORDER, PackedDataset(pack), rank, world, **{"share": 0, "shares": 1, **share}
    )
    return Reader(plan, next(rank_draws(rank, world)), forget)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_next_batches_are_read_and_no_more(
    pack: Path, touched: list[tuple[int, int]], world: int
) -> None:
    field = open(pack).index.fields[0]
    size = int(field.length.sum())
    in_play = LANES * WINDOW / COUNT * size / world
    reader = reader_of(pack, world - 1, world)
    try:
        for draw in rank_draws(world - 1, world):
            reader.at(draw.stop - draw.total)
            reader.wait()
            start, length = field.offset[draw.samples], field.length[draw.samples]
            have = _spread(touched)
            assert all(have[at : at + n].all() for at, n in zip(start, length, strict=True))
            # What was consumed, the windows in play, and a quarter of them ahead; and borders.
            share = draw.stop / COUNT * size / world
            assert reader.read < share * 1.1 + 2.0 * in_play
    finally:
        reader.close()
    # Each byte of this rank's part once, but for what is between its pieces.
    assert size / world * 0.95 < reader.read < size / world * 1.1 + in_play
    assert not reader._thread.is_alive()


def _spread(touched: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
    have = np.zeros(max(stop for _, stop in touched) + 1, bool)
    for start, stop in touched:
        have[start:stop] = True
    return have


def test_of_mapped_files_the_kernel_is_asked(
    pack: Path, touched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setenv("RANKUP_READ", "mmap")
    monkeypatch.setattr(os, "posix_fadvise", lambda *call: asked.append(call[1:]))
    reader = reader_of(pack, 0, 1)
    reader.wait()
    reader.close()
    assert {how for _, _, how in asked} == {os.POSIX_FADV_WILLNEED}
    assert sum(length for _, length, _ in asked) == reader.read > 0
    assert not touched


def test_processes_share_the_reading(pack: Path) -> None:
    read = []
    for share in range(3):
        reader = reader_of(pack, 0, 1, share=share, shares=3)
        for draw in rank_draws():
            reader.at(draw.stop - draw.total)
            reader.wait()
        reader.close()
        read.append(reader.read)
    whole = int(open(pack).index.fields[0].length.sum())
    assert whole * 0.95 < sum(read) < whole * 1.3
    assert max(read) < whole / 2


def test_what_is_done_is_forgotten_where_data_is_large(
    pack: Path, touched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, start, length, how: dropped.append((start, length, how))
    )
    for forget in (False, True):
        reader = reader_of(pack, 0, 1, forget)
        field = open(pack).index.fields[0]
        for draw in rank_draws():
            gone = np.zeros(1 << 23, bool)
            for start, length, how in dropped:
                assert how == os.POSIX_FADV_DONTNEED
                gone[start : start + length] = True
            begins, lengths = field.offset[draw.samples], field.length[draw.samples]
            # Nothing that is still to be read: pages are forgotten a while after their window.
            assert not any(gone[at : at + n].any() for at, n in zip(begins, lengths, strict=True))
            reader.at(draw.stop - draw.total)
            reader.wait()
        reader.close()
        assert reader.forgotten == sum(length for _, length, _ in dropped)
        assert (reader.forgotten > reader.read / 2) == forget
        assert reader.forgotten <= reader.read


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


def test_a_file_that_is_gone_is_for_the_reader_to_say(
    pack: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "pack"
    made.pack(root, {"train": made.samples(COUNT, most=20)})
    data = PackedDataset(root)
    (root / "train.bin").unlink()
    reader = Reader(ahead._Plan(ORDER, data, 0, 1, 0, 1), next(rank_draws()), False)
    reader.wait()
    reader.close()
    assert capfd.readouterr().err == ""


def test_pieces_are_large() -> None:
    """Samples beside each other are one read, whatever order they are named in."""

    class Data:
        _start = 100

        def rows(self, samples: Any) -> Any:
            return samples

        class Field:
            file = np.zeros(200, np.uint32)
            offset = np.arange(200, dtype=np.int64) * 1000
            length = np.full(200, 900, np.int64)

        _fields = (Field, Field)

    found = pieces(Data(), np.array([5, 3, 4, 90, 91]))  # type: ignore[arg-type]
    assert found == [(0, 103_000, 105_900), (0, 190_000, 191_900)]
    Data.Field.offset[104] = -7  # not in one piece: left to the container's own reader
    Data.Field.file[191] = 1
    found = pieces(Data(), np.array([3, 4, 90, 91]))  # type: ignore[arg-type]
    assert found == [(0, 103_000, 103_900), (0, 190_000, 190_900), (1, 191_000, 191_900)]


def test_a_fork_has_no_thread_to_wait_for(pack: Path) -> None:
    reader = reader_of(pack, 0, 1)
    with reader._changed:  # held by nobody in the child
        child = os.fork()
        if not child:
            reader.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    reader.close()
