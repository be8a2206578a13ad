"""Every kind of source into every container, and names and sizes of all kinds."""

from __future__ import annotations

import csv
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data import indexes, keys, opened
from rankup.data.errors import BadContainer
from rankup.data.index import Index, Split, Strings
from rankup.data.pack import source as sources

from .made import ALL, files, made, request, run, same_samples, tree


def _tar(tree: Path, out: Path) -> Path:
    with tarfile.open(out, "w") as archive:
        archive.add(tree, ".")
    return out


def _zip(tree: Path, out: Path) -> Path:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files(tree).items():
            archive.writestr(name, data)
    return out


def _list(tree: Path, out: Path) -> Path:
    with out.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("path", "label", "split"))
        for name in files(tree):
            split, label, _ = name.split("/")
            lines.writerow((tree / name, label, split))
    return out


@pytest.mark.parametrize(
    ("kind", "container"),
    [("tar", "hdf5"), ("zip", "tar"), ("zip", "squashfs"), ("csv", "arrow")],
)
def test_the_same_whatever_it_came_in(tmp_path: Path, kind: str, container: str) -> None:
    folder = tree(tmp_path / "tree", 40)
    make = {"tar": _tar, "zip": _zip, "csv": _list}[kind]
    packed = make(folder, tmp_path / f"source.{kind}")
    asked = request(packed, tmp_path, container)
    assert run(asked) == 0
    wanted = request(folder, tmp_path / "folder", container)
    assert run(wanted) == 0
    one, other = opened.open(asked.out), opened.open(wanted.out)
    assert len(one) == len(other) == 40
    assert one.index.classes == other.index.classes
    for row in range(40):
        assert one.index.path(row).endswith(other.index.path(row).rpartition("/")[2])
        assert bytes(one.read(row)) == bytes(other.read(row))
        assert one.label(row) == other.label(row)


@pytest.mark.parametrize("container", ALL)
def test_arrays(tmp_path: Path, container: str) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.random((50, 3, 2), np.float32), draw.integers(0, 5, 50)
    np.savez(tmp_path / "source.npz", x_train=x, y_train=y)
    asked = request(tmp_path / "source.npz", tmp_path, container)
    assert run(asked) == 0
    samples = opened.open(asked.out)
    [field] = samples.index.fields
    found = np.stack([samples.array(row, field.name) for row in range(50)])
    assert (found == x).all()
    assert [samples.label(row) for row in range(50)] == y.tolist()


@pytest.mark.parametrize("container", ["hdf5", "arrow", "tar"])
def test_names_that_are_no_utf8(tmp_path: Path, container: str) -> None:
    folder = tmp_path / "source" / "train" / "a"
    folder.mkdir(parents=True)
    for name in (b"\xff\xfe.bin", b"caf\xe9", "café".encode()):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(name)
    asked = request(tmp_path / "source", tmp_path, container)
    assert run(asked) == 0
    samples = opened.open(asked.out)
    assert [bytes(samples.read(row)) for row in range(3)] == sorted(
        [b"\xff\xfe.bin", b"caf\xe9", "café".encode()]
    )


def test_names_that_are_there_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = Index(
        "files",
        Strings.of([b"a"]),
        (Split("val", 0, 2), Split("train", 2, 4)),
        Strings.of([b"x", b"x", b"c", b"b"]),
        (),
    )
    ordered = sources.sorted_(index)
    assert [ordered.path(row) for row in range(4)] == ["train/b", "train/c", "val/x", "val/x"]
    with pytest.raises(UserError, match="1 samples of val have a name that another one has"):
        sources.check_names(ordered, tmp_path)
    listed = tmp_path / "list.csv"
    (tmp_path / "a.txt").write_text("a")
    listed.write_text("path,label\na.txt,x\na.txt,y\n")
    assert run(request(listed, tmp_path, "hdf5")) == 2
    assert "a.txt" in capsys.readouterr().err
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("out", ".out"))]


def test_real_photos(tmp_path: Path, data_root: Path | None) -> None:
    """Round trip through all containers, one after the other, of the shared data's photos."""
    if data_root is None:
        source = tree(tmp_path / "source", 60, largest=100_000)
    else:
        source = tmp_path / "source"
        photos = sorted((data_root / "imagenet-sample").rglob("*.JPEG"))[::10]
        for number, photo in enumerate(photos):
            path = source / "train" / f"c{number % 7}" / photo.name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photo, path)
    at = source
    for container in ALL:
        asked = request(at, tmp_path / container, container)
        assert run(asked) == 0
        at = Path(asked.out)
        same_samples(at, source)
    again = request(at, tmp_path / "again", "hdf5")
    assert run(again) == 0
    assert made(Path(again.out))["out.h5"] == made(tmp_path / "hdf5" / "out.h5")["out.h5"]


@given(
    names=st.lists(
        st.lists(
            st.sampled_from([b"a", b".", b"..", b"", b"b.c", b"\0", b"\\", b"..."]), max_size=4
        ).map(b"/".join),
        min_size=1,
        max_size=4,
        unique=True,
    )
)
def test_unsafe_names_are_refused(names: list[bytes]) -> None:
    """The quick look at all names at once lets nothing through that the slow one refuses."""
    index = Index(
        "files",
        Strings.of([b"a"]),
        (Split("train", 0, len(names)),),
        Strings.of(sorted(names)),
        (),
    )
    if all(keys.safe(name) for name in names):
        sources.check_names(index, Path("x"))
    else:
        with pytest.raises(BadContainer):
            sources.check_names(index, Path("x"))


def _changed(index: Index, column: str, value: int) -> Index:
    [field] = index.fields
    values = np.full(len(index), value)
    kind = np.uint32 if column == "file" else np.int64
    return replace(index, fields=(replace(field, **{column: values.astype(kind)}),))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda index: _changed(index, "file", 4_000_000_000), "4000000000"),
        (lambda index: _changed(index, "length", -(2**63)), "bytes"),
        (lambda index: _changed(index, "length", 2**63 - 1), "past the end"),
        (lambda index: _changed(index, "offset", 2**63 - 1), "past the end"),
        (
            lambda index: replace(
                index, keys=Strings(index.keys.data, index.keys.ends[[0, 2, 1, *range(3, 11)]])
            ),
            "ends before it begins",
        ),
        (lambda index: replace(index, facts={}), "is not what its index describes"),
        (lambda index: replace(index, files=Strings.of([b"/etc/passwd"])), "/etc/passwd"),
    ],
)
def test_the_index_of_a_pack_is_not_believed(
    tmp_path: Path,
    wrong: Callable[[Index], Index],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pack from elsewhere: nothing in its index leads to another file, or to a traceback."""
    source = tree(tmp_path / "source", 10)
    first = request(source, tmp_path, "hdf5")
    assert run(first) == 0
    place = indexes.place(Path(first.out))
    indexes.save(wrong(indexes.load(place)), place)
    second = request(Path(first.out), tmp_path / "next", "tar")
    assert run(second) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not Path(second.out).exists()


def test_a_pack_of_many_files_is_looked_at_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its files may be a link to what only the reader has."""
    monkeypatch.setattr("rankup.data.stamp.LOOKED_AT", 2)
    source = tree(tmp_path / "source", 40, largest=200_000)
    first = request(source, tmp_path, "tar")
    monkeypatch.setattr("rankup.data.pack.journal.bytes_of", lambda *_: 300_000)
    assert run(first) == 0
    victim = Path(first.out) / "train-000002.tar"
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(victim.stat().st_size))
    victim.unlink()
    victim.symlink_to(secret)
    second = request(Path(first.out), tmp_path / "next", "hdf5")
    assert run(second) == 2
    assert "is not what its index describes" in capsys.readouterr().err


def test_a_split_that_would_be_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tree(tmp_path / "source", 10)
    assert run(request(source, tmp_path, "hdf5", split="all")) == 2
    assert "here all do: train, val" in capsys.readouterr().err
