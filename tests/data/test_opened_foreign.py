"""Data of others is opened too: scanned once, and again when it has changed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rankup
from rankup.data import finding, indexes
from rankup.data.containers import Choice
from rankup.data.index import Field, Index, Split, Strings
from rankup.data.opened import Samples

from .made import samples


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("RANKUP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rankup" / "indexes"


class _Scans:
    """A format that counts how often it is asked: each line of the file is a sample."""

    def __init__(self) -> None:
        self.count = 0

    def scan(self, path: Path, choice: Choice) -> Index:
        self.count += 1
        words = path.read_bytes().split(b"\n")[1:-1]
        ends = np.cumsum([len(word) + 1 for word in words]) + 512
        length = np.array([len(word) for word in words])
        field = Field("data", ends - length - 1, length)
        keys = Strings.of(b"%d" % row for row in range(len(words)))
        return Index(
            "tar", Strings.of([b""]), (Split(choice.split, 0, len(words)),), keys, (field,)
        )


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> _Scans:
    fake = _Scans()
    monkeypatch.setattr(finding, "module", lambda name: fake)
    return fake


def _foreign(path: Path, *words: bytes, age: float = 100) -> None:
    """Something that looks like a tar, of the given age in seconds."""
    head = bytearray(511)
    head[148:156] = b"%06o\0 " % (8 * 32 + 10)
    path.write_bytes(bytes(head) + b"\n" + b"".join(word + b"\n" for word in words))
    os.utime(path, (time.time() - age,) * 2)


def test_a_foreign_file_is_scanned_once(cache: Path, scans: _Scans, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    _foreign(path, b"one", b"three")
    for _ in range(3):
        found = rankup.data.open(path)
        assert [bytes(found.read(row)) for row in range(2)] == [b"one", b"three"]
    assert scans.count == 1
    assert len(pickle.dumps(found)) < 1000
    assert bytes(pickle.loads(pickle.dumps(found)).read(1)) == b"three"
    assert scans.count == 1
    assert rankup.data.open(path, choice=Choice(split="val")).splits == ("val",)
    assert scans.count == 2
    _foreign(path, b"one", b"seven", age=50)  # of the same size
    assert bytes(rankup.data.open(path).read(1)) == b"seven"
    assert scans.count == 3
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_entry_is_made_anew(cache: Path, scans: _Scans, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    _foreign(path, b"one")
    rankup.data.open(path)
    (entry,) = cache.iterdir()
    for damage in (b"", b"PK\x03\x04", entry.read_bytes()[:-30]):
        entry.write_bytes(damage)
        assert bytes(rankup.data.open(path).read(0)) == b"one"
    assert scans.count == 4
    rankup.data.open(path)
    assert scans.count == 4


def test_without_a_cache_the_index_travels(cache: Path, scans: _Scans, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    _foreign(path, b"one", b"two", age=0)  # too new to tell whether it changes again
    found = pickle.loads(pickle.dumps(rankup.data.open(path)))
    assert bytes(found.read(1)) == b"two"
    assert scans.count == 1
    assert not cache.exists()
    _foreign(path, b"one", b"two")
    cache.parent.mkdir(parents=True)
    cache.write_text("a file in the place of the folder")
    found = pickle.loads(pickle.dumps(rankup.data.open(path)))
    assert bytes(found.read(1)) == b"two"
    assert scans.count == 2


def test_the_cache_is_bounded(cache: Path, scans: _Scans, tmp_path: Path) -> None:
    for row in range(80):
        _foreign(tmp_path / f"{row}.tar", b"%d" % row)
        rankup.data.open(tmp_path / f"{row}.tar")
    assert len(list(cache.iterdir())) < 80
    rankup.data.open(tmp_path / "79.tar")
    assert scans.count == 80


def test_a_folder_that_changed_is_scanned_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[Path] = []

    def scan(path: Path, choice: Choice) -> Index:
        counts.append(path)
        names = sorted(os.path.relpath(p, path).encode() for p in path.rglob("*") if p.is_file())
        n = len(names)
        field = Field(
            "data", np.zeros(n, np.int64), np.ones(n, np.int64), np.arange(n, dtype=np.uint32)
        )
        return Index(
            "files", Strings.of(names), (Split("train", 0, n),), Strings.of(names), (field,)
        )

    fake = type("Fake", (), {"scan": staticmethod(scan)})
    monkeypatch.setattr(finding, "module", lambda name: fake)
    root = tmp_path / "tree"
    (root / "cat" / "deep").mkdir(parents=True)
    (root / "cat" / "a").write_bytes(b"a")

    def settle() -> None:
        for path in (root, *root.rglob("*")):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))

    settle()
    for _ in range(2):
        assert len(rankup.data.open(root)) == 1
    assert len(counts) == 1
    (root / "cat" / "deep" / "b").write_bytes(b"b")
    settle()
    assert len(rankup.data.open(root)) == 2
    (root / "cat" / "a").write_bytes(b"changed")
    rankup.data.open(root)
    assert len(counts) == 3


@pytest.mark.parametrize("change", ["elsewhere", "up", "container"])
def test_an_entry_that_leads_elsewhere_is_not_believed(
    cache: Path, scans: _Scans, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "x.tar"
    _foreign(path, b"one")
    rankup.data.open(path)
    (entry,) = cache.iterdir()
    index = indexes.load(entry)
    if change == "container":
        index = replace(index, container="zip")
    else:
        index = replace(index, files=Strings.of([b"/etc/passwd" if change != "up" else b"../x"]))
    indexes.save(index, entry)
    assert bytes(rankup.data.open(path).read(0)) == b"one"
    assert scans.count == 2


def test_photos_in_class_folders_are_opened_as_they_are(
    cache: Path, tmp_path: Path, data_root: Path | None
) -> None:
    root = tmp_path / "photos"
    if data_root is not None:
        root = data_root / "imagenet-sample"
    for key, data, _ in samples(30) if data_root is None else []:
        path = root / str(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with rankup.data.open(root) as found:
        before = len(os.listdir("/proc/self/fd"))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        assert [found.key(row) for row in range(len(found))] == [
            str(path.relative_to(root)) for path in files
        ]
        for row, path in enumerate(files):
            assert bytes(found.read(row)) == path.read_bytes()
            assert found.class_name(found.label(row) or 0) == path.parent.name
        assert len(os.listdir("/proc/self/fd")) == before  # each is opened for itself


def _compressed(path: Path, made: list[bytes]) -> None:
    """A file of a format, by its name, in which samples do not lie in one piece."""
    rows = np.stack([np.frombuffer(one, np.uint8) for one in made])
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for row, data in enumerate(made):
                archive.writestr(f"{row:02d}", data)
    elif path.suffix == ".npz":
        np.savez_compressed(path, data=rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"data": made}), path, row_group_size=16)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=rows, compression="gzip", chunks=(7, 1000))


@pytest.mark.parametrize("name", ["x.zip", "x.npz", "x.parquet", "x.h5"])
def test_what_is_decompressed_is_read_by_many(cache: Path, tmp_path: Path, name: str) -> None:
    """A handle of a library that came over a fork is not used, nor one of another thread."""
    made = [bytes([row]) * 1000 for row in range(50)]
    _compressed(tmp_path / name, made)
    with rankup.data.open(tmp_path / name) as foreign:
        assert bytes(foreign.read(7)) == made[7]
        assert (foreign.index.fields[0].offset < 0).all()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            jobs = [pool.apply_async(_bytes, (foreign, row)) for row in range(50)]
            assert [job.get(200) for job in jobs] == made
        child = os.fork()
        if not child:
            try:
                os._exit(int([bytes(foreign.read(row)) for row in range(50)] != made))
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda row: bytes(foreign.read(row)), range(50))) == made


def _bytes(opened: Samples, row: int) -> bytes:
    return bytes(opened.read(row))
