"""`inspect --extract`: the files as they were, below a new folder and nowhere else."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from rankup.base.errors import UserError
from rankup.data import indexes
from rankup.data.errors import BadContainer
from rankup.data.index import Field, Index, Split, Strings
from rankup.data.inspect import show

from .made import finished, pack, samples

TRAIN, VAL = samples(60), samples(9, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pack(tmp_path / "p", {"train": TRAIN, "val": VAL})
    return tmp_path / "p"


def _tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


EVERYTHING = {
    f"{split}/{key}": data
    for split, part in (("train", TRAIN), ("val", VAL))
    for key, data, _ in part
}


def test_the_files_are_as_they_were(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = root.parent / "out"
    assert show(str(root), extract=str(out)) == 0
    assert "69 samples" in capsys.readouterr().out
    assert _tree(out) == EVERYTHING
    mask = os.umask(0)
    os.umask(mask)
    assert out.stat().st_mode & 0o777 == 0o777 & ~mask
    assert (out / "val" / str(VAL[1][0])).stat().st_mode & 0o777 == 0o666 & ~mask
    assert not (root.parent / "out.part").exists()


def test_only_a_new_folder_will_do(root: Path, tmp_path: Path) -> None:
    def refused(out: Path, why: str) -> None:
        with pytest.raises(UserError, match=why):
            show(str(root), extract=str(out))

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    refused(tmp_path / "full", "no empty folder")
    refused(tmp_path / "full" / "mine", "no empty folder")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused(tmp_path / "link", "no empty folder")
    refused(tmp_path / "none" / "out", "make it first")
    refused(Path("/proc"), "as a whole")
    (tmp_path / "out.part").mkdir()
    refused(tmp_path / "out", r"out\.part is there.*rm -r")
    assert _tree(tmp_path / "full") == {"mine": b"mine"}


@pytest.mark.parametrize("key", [b"../x", b"/tmp/x", b"a/../../x", b"a\0b", b"", b"a//b"])
def test_a_name_that_would_leave_the_folder_is_refused(tmp_path: Path, key: bytes) -> None:
    pack(tmp_path / "p", {"train": [("a", b"1", 0), (key, b"2", 0)]})
    with pytest.raises(BadContainer):
        show(str(tmp_path / "p"), extract=str(tmp_path / "deep" / "out"))
    with pytest.raises(BadContainer):
        show(str(tmp_path / "p"), extract=str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


@pytest.mark.parametrize("change", ["folder", "field"])
def test_so_is_one_of_a_split_or_a_field(tmp_path: Path, change: str) -> None:
    root = tmp_path / "p"
    index = pack(root, {"train": samples(3)})
    if change == "folder":
        index = replace(index, splits=(replace(index.splits[0], folder="../up"),))
    else:
        index = replace(
            index, fields=(replace(index.fields[0], name="a/../../../x"), *index.fields)
        )
    indexes.save(index, indexes.place(root))
    with pytest.raises(BadContainer, match="sample named"):
        show(str(root), extract=str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_two_of_one_name_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = [("a/b", b"1", 0), ("a/b", b"2", 0), ("c", b"3", 0), ("c/d", b"4", 0)]
    pack(tmp_path / "p", {"train": [*members, ("x" * 300, b"5", 0), ("e", b"6", 0)]})
    assert show(str(tmp_path / "p"), extract=str(tmp_path / "out"), as_json=True) == 1
    damaged = json.loads(capsys.readouterr().out)["extract"]["damaged"]
    assert [one["what"][:9] for one in damaged] == ["train/a/b", "train/c", "train/xxx"]
    assert "another sample has its name" in damaged[0]["why"]
    assert "File name too long" in damaged[2]["why"]
    assert not (tmp_path / "out").exists()
    assert _tree(tmp_path / "out.part")["train/e"] == b"6"


def test_damage_is_named_and_does_not_look_complete(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = int(indexes.load(indexes.place(root)).fields[0].offset[30])
    with (root / "train.bin").open("r+b") as file:
        file.seek(at)
        file.write(b"\xee\xee")
    out = root.parent / "out"
    assert show(str(root), extract=str(out)) == 1
    said = capsys.readouterr().out
    assert f"train/{TRAIN[30][0]}: its bytes are not those that were packed" in said
    assert "out.part" in said
    assert not out.exists()
    wrong = {
        name for name, data in _tree(root.parent / "out.part").items() if data != EVERYTHING[name]
    }
    assert wrong == {f"train/{TRAIN[30][0]}"}
    assert show(str(root), verify=True, extract=str(root.parent / "other")) == 1
    assert not (root.parent / "other.part").exists()  # what is not sound is not extracted


def test_names_that_are_no_text_come_back(tmp_path: Path) -> None:
    keys = [b"\xff\xfe/\xc3\xbc.bin", "日本/ü.jpg".encode(), b"a\nb", b"-rf"]
    pack(tmp_path / "p", {"train": [(key, b"%d" % row, -1) for row, key in enumerate(keys)]})
    assert show(str(tmp_path / "p"), extract=str(tmp_path / "out")) == 0
    for row, key in enumerate(keys):
        path = os.path.join(os.fsencode(tmp_path), b"out/train", key)
        with open(path, "rb") as file:
            assert file.read() == b"%d" % row


def _arrays(root: Path, splits: tuple[Split, ...], labels: bool) -> dict[str, np.ndarray]:
    """A pack of two array fields and one of bytes."""
    draw = np.random.default_rng(0)
    arrays = {
        "x": draw.normal(size=(50, 3, 4)).astype("<f4"),
        "weight": draw.integers(0, 99, 50).astype(">i2"),
    }
    root.mkdir()
    fields, data = [], b""
    for name, array in arrays.items():
        item = array[0].nbytes
        digest = [xxhash.xxh3_64_intdigest(array[row : row + 1].tobytes()) for row in range(50)]
        offset = len(data) + np.arange(50) * item
        fields.append(
            Field(
                name,
                offset,
                np.full(50, item),
                hash=np.array(digest, np.uint64),
                dtype=array.dtype.str,
                shape=array.shape[1:],
            )
        )
        data += array.tobytes()
    (root / "data").write_bytes(data)
    keys = Strings.of(b"%02d" % row for row in range(50))
    index = Index(
        "tar",
        Strings.of([b"data"]),
        splits,
        keys,
        tuple(fields),
        np.arange(50) % 7 if labels else None,
        sizes=np.array([len(data)]),
    )
    finished(index, root)
    return arrays


def test_arrays_come_back_as_numpy_saves_them(tmp_path: Path) -> None:
    splits = (Split("train", 0, 40, "train"), Split("val", 40, 50), Split("test", 50, 50, "t"))
    arrays = _arrays(tmp_path / "p", splits, labels=True)
    assert show(str(tmp_path / "p"), verify=True, extract=str(tmp_path / "out")) == 0
    found = _tree(tmp_path / "out")
    arrays["labels"] = np.arange(50) % 7
    expected = {}
    for split in splits:
        for name, array in arrays.items():
            np.save(tmp_path / "one.npy", array[split.start : split.stop])
            expected[os.path.join(split.folder, f"{name}.npy")] = (
                tmp_path / "one.npy"
            ).read_bytes()
    assert found == expected


@pytest.fixture
def full(root: Path) -> Iterator[Path]:
    """The pack; new files of this process end at 1000 bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield root
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_nothing_that_looks_complete(full: Path) -> None:
    with pytest.raises(OSError, match=r"File too large.*out\.part.*rm -r"):
        show(str(full), extract=str(full.parent / "out"))
    assert not (full.parent / "out").exists()
    assert (full.parent / "out.part").exists()


def test_what_cannot_fit_or_be_written_is_refused_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = root.parent / "out"
    small = os.statvfs_result((1, 1000, 9, 9, 3, *list(os.statvfs(root))[5:10]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: small)
        with pytest.raises(UserError, match=r"out needs .*has 3 kB free.*kB too little"):
            show(str(root), extract=str(out))

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)  # root may write everywhere
    with pytest.raises(UserError, match=r"cannot be written to .Permission denied.: name a folder"):
        show(str(root), extract=str(out))
    assert sorted(path.name for path in root.parent.iterdir()) == ["p"]
