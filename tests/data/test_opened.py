"""`rankup.data.open`: samples of a pack and of other people's data, in any kind of worker."""

from __future__ import annotations

import errno
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankup
from rankup.base.errors import UserError
from rankup.data import indexes, stamp
from rankup.data.containers import Choice
from rankup.data.errors import BadContainer
from rankup.data.index import Strings
from rankup.data.opened import Samples

from .made import pack, samples

WAYS = ["mmap", "pread"]
TRAIN, VAL = samples(40), samples(9, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pack(tmp_path / "p", {"train": TRAIN, "val": VAL})
    return tmp_path / "p"


def _equal(found: Samples, expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for row, (key, data, label) in enumerate(expected):
        assert bytes(found.read(row)) == data
        assert b"".join(found.chunks(row)) == data
        assert bytes(found.span(row, None, 3, 9)) == data[3:9]
        assert found.key(row) == key
        assert found.label(row) == label


@pytest.mark.parametrize("how", WAYS)
def test_samples_are_what_was_packed(root: Path, how: Any) -> None:
    with rankup.data.open(str(root), how=how) as found:
        assert found.how == how
        assert (found.splits, found.fields) == (("train", "val"), ("data",))
        _equal(found, TRAIN + VAL)
        _equal(found.split("val"), VAL)
        assert found.path(41) == found.split("val").path(1) == "val/c1/00001.bin"
        assert found.class_name(2) == "c2"
        for label in (-1, 3, 77):
            with pytest.raises(IndexError, match="there are 3"):
                found.class_name(label)
        assert repr(found) == f"<49 samples in {str(root)!r} (tar): train 40, val 9>"
        assert repr(found.split("val")) == f"<9 samples of split 'val' in {str(root)!r} (tar)>"
        assert isinstance(found.read(5), memoryview if how == "mmap" else bytes)


def test_what_is_not_there_is_said(root: Path) -> None:
    found = rankup.data.open(root)
    val = found.split("val")
    for read in (val.read, val.key, val.label, val.path, lambda row: list(val.chunks(row))):
        for row in (-1, 9, 2**70):
            with pytest.raises(IndexError, match="9"):
                read(row)
    with pytest.raises(UserError, match="it has data"):
        found.read(0, "other")
    with pytest.raises(UserError, match="train, val"):
        found.split("test")
    with pytest.raises(UserError, match="'val' alone"):
        val.split("train")
    with pytest.raises(UserError, match="no array"):
        found.array(0)
    with pytest.raises(UserError, match="data of others"):
        rankup.data.open(root, choice=Choice(label="y"))


# A program of its own: a fork server lives as long as who has started it.
READERS = """
import multiprocessing, random, sys
import rankup

def read(found, rows, out):
    out.put([bytes(found.read(row)) for row in rows])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[3])
    found = rankup.data.open(sys.argv[1], how=sys.argv[2]).split("train")
    rows = [random.randrange(len(found)) for _ in range(300)]
    expected = [bytes(found.read(row)) for row in rows]
    queue = context.Queue()
    workers = [context.Process(target=read, args=(found, rows, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    print([queue.get(timeout=60) == expected for _ in workers])
    for worker in workers:
        worker.join(60)
    print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize(
    ("how", "start"),
    [("mmap", "fork"), pytest.param("pread", "spawn", marks=pytest.mark.slow)],
)
def test_workers_of_any_kind_read_at_once(root: Path, tmp_path: Path, how: str, start: str) -> None:
    (tmp_path / "readers.py").write_text(READERS)
    done = subprocess.run(
        [sys.executable, tmp_path / "readers.py", root, how, start],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[True, True]\n[0, 0]\n", "")


def test_pickled_only_the_path_travels(root: Path) -> None:
    found = rankup.data.open(root)
    for part, expected in ((found, TRAIN + VAL), (found.split("val"), VAL)):
        packed = pickle.dumps(part)
        assert len(packed) < 1000
        _equal(pickle.loads(packed), expected)
    packed = pickle.dumps(found)
    for name in ("index.npz", "train.bin", "val.bin"):
        (root / name).unlink()
    root.rmdir()
    pack(root, {"train": TRAIN, "val": VAL[:3]})
    with pytest.raises(BadContainer, match="changed while it was in use"):
        pickle.loads(packed)


def test_data_that_does_not_fit_its_index_is_refused(root: Path) -> None:
    data, index = (root / "val.bin").read_bytes(), indexes.place(root).read_bytes()
    for changed in (data[:-1], data + b"x", b"H" + data[1:], data[:-1] + b"z"):
        (root / "val.bin").write_bytes(changed)
        with pytest.raises(
            BadContainer, match=r"not what its index describes.*val\.bin.*index\.npz"
        ):
            rankup.data.open(root)
    (root / "val.bin").unlink()
    with pytest.raises(BadContainer, match=r"val\.bin is not there, and .*put it back") as error:
        rankup.data.open(root)
    assert "remove" not in str(error.value)
    shutil.rmtree(root)
    (root.parent / "p.index.npz").write_bytes(index)
    with pytest.raises(BadContainer, match="is not there, only its index"):
        rankup.data.open(root)


def test_a_pack_that_may_not_be_read_is_not_called_damaged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(stamp, "ends", denied)  # root may read everything
    with pytest.raises(UserError, match=r"train\.bin cannot be read: Permission denied$") as error:
        rankup.data.open(root)
    assert not isinstance(error.value, BadContainer)


@pytest.mark.parametrize("change", ["ends", "sizes"])
def test_a_pack_says_how_its_files_begin_and_end(root: Path, change: str) -> None:
    """Else a link in it, to any file of who opens it, would be read for a sample."""
    index = indexes.load(indexes.place(root))
    none = np.empty(0, np.int64)
    index = replace(index, facts={}) if change == "ends" else replace(index, sizes=none)
    indexes.save(index, indexes.place(root))
    with pytest.raises(BadContainer, match="has not the sizes and ends of its 2 files"):
        rankup.data.open(root)


@pytest.mark.parametrize("name", [b"/etc/passwd", b"../p/val.bin", b"a/../../x", b"", b"a\0b"])
def test_a_pack_has_no_files_elsewhere(root: Path, name: bytes) -> None:
    index = replace(indexes.load(indexes.place(root)), files=Strings.of([b"train.bin", name]))
    indexes.save(index, indexes.place(root))
    with pytest.raises(BadContainer, match="names a file"):
        rankup.data.open(root)


def test_nothing_slow_is_imported(root: Path) -> None:
    program = (
        "import sys, rankup; found = rankup.data.open(sys.argv[1]); found.read(3)\n"
        "print([name for name in ('torch', 'h5py', 'pyarrow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, root],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
