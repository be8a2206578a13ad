"""`inspect --verify`: any byte of a sample that changes is found and named."""

from __future__ import annotations

import json
import os
import random
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rankup
from rankup.data import indexes, npz
from rankup.data.index import Strings
from rankup.data.inspect import show

from .made import pack, samples

TRAIN, VAL = samples(60), samples(9, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pack(tmp_path / "p", {"train": TRAIN, "val": VAL})
    return tmp_path / "p"


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def _damage(root: Path, capsys: pytest.CaptureFixture[str], **options: str) -> list[dict[str, str]]:
    code = show(str(root), verify=True, as_json=True, **options)  # type: ignore[arg-type]
    told = json.loads(capsys.readouterr().out)["verify"]["damaged"]
    assert code == bool(told)
    return list(told)


def test_a_deflated_zip_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train/a/0.txt", "hello" * 30)
    assert show(str(tmp_path / "x.zip"), verify=True) == 0
    assert "can be read" in capsys.readouterr().out


def test_a_sound_pack_is_sound(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(str(root), verify=True) == 0
    said = capsys.readouterr().out
    assert "is sound: 69 samples" in said
    assert show(str(root), verify=True, split="val") == 0
    assert "is sound: 9 samples" in capsys.readouterr().out


def test_a_flipped_byte_of_a_sample_names_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = indexes.load(indexes.place(root))
    draw = random.Random(6)
    for row in (1, 30, 59):
        at = int(index.fields[0].offset[row]) + draw.randrange(len(TRAIN[row][1]))
        _flip(root / "train.bin", at)
        found = _damage(root, capsys)
        assert {one["what"] for one in found} - {str(root)} == {f"train/{TRAIN[row][0]}"}
        assert _damage(root, capsys, split="val") == []
        _flip(root / "train.bin", at)


def test_a_pack_of_0_2_opens_and_verifies(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its index has hashes of the bytes around the samples, and of files beside them."""
    path = indexes.place(root)
    index = indexes.load(path)
    facts = {**index.facts, "beside": {"classes.txt": "0123456789abcdef"}}
    indexes.save(replace(index, facts=facts), path)
    npz.save(path, {**npz.load(path), "blocks": np.arange(2, dtype=np.uint64)})
    assert show(str(root), verify=True) == 0
    assert "is sound: 69 samples" in capsys.readouterr().out
    with rankup.data.open(root) as found:
        assert [bytes(found.read(row)) for row in range(60)] == [data for _, data, _ in TRAIN]
    _flip(root / "train.bin", int(index.fields[0].offset[40]))
    assert [one["what"] for one in _damage(root, capsys)] == [f"train/{TRAIN[40][0]}"]


def test_a_pack_that_was_cut_short_names_what_is_missing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(root / "val.bin", (root / "val.bin").stat().st_size // 2)
    found = _damage(root, capsys)
    assert found[0]["what"] == str(root)
    assert "val.bin has" in found[0]["why"]
    missing = [one["what"] for one in found if one["what"].startswith("val/")]
    assert missing[-1] == f"val/{VAL[-1][0]}"
    assert all(not one["what"].startswith("train/") for one in found)
    (root / "val.bin").unlink()
    names = {one["what"] for one in _damage(root, capsys)}
    assert {f"val/{key}" for key, _, _ in VAL} <= names


def test_a_damaged_index_is_damage(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = indexes.place(root)
    whole = path.read_bytes()
    labels = indexes.load(path).labels
    assert labels is not None
    _flip(path, whole.index(labels.tobytes()) + 8)
    (one,) = _damage(root, capsys)
    assert one["what"] == str(path)
    assert "'labels' has changed" in one["why"]
    for at in (8, len(whole) - 500, len(whole) - 1):  # zipfile looks at none of these
        path.write_bytes(whole)
        _flip(path, at)
        (one,) = _damage(root, capsys)
        assert one["what"] == str(path)
    path.write_bytes(whole[:-40])
    (one,) = _damage(root, capsys)
    assert one["what"] == str(path)
    assert show(str(root), verify=True) == 1
    assert "is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("size", [-1, 1 << 62])
def test_sizes_that_cannot_be_are_named(
    root: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    index = indexes.load(indexes.place(root))
    indexes.save(replace(index, sizes=np.full(2, size)), indexes.place(root))
    found = _damage(root, capsys)
    assert {one["what"] for one in found} & {str(root), str(indexes.place(root))}
    assert f"{size}" in found[0]["why"]


def test_a_shard_of_somebody_else_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "notes.txt").write_text("mine")
    assert _damage(root, capsys) == []
    (root / "train-2.bin").write_bytes(b"")
    (one,) = _damage(root, capsys)
    assert one["what"] == str(root / "train-2.bin")
    assert "none of this container's files" in one["why"]
    assert _damage(root, capsys, split="val") == []


@pytest.mark.parametrize("name", [b"a\0b", b"../../etc/passwd"])
def test_names_that_are_none_of_a_pack_are_damage(
    root: Path, capsys: pytest.CaptureFixture[str], name: bytes
) -> None:
    path = indexes.place(root)
    index = indexes.load(path)
    names = [name, *list(index.files)[1:]]
    indexes.save(replace(index, files=Strings.of(names)), path)
    (one,) = _damage(root, capsys)
    assert one["what"] == str(path)
    assert "none of a pack" in one["why"]


@pytest.mark.parametrize("key", [b"../x", b"/tmp/x", b"a\0b", b""])
def test_names_that_readers_refuse_are_damage(
    root: Path, capsys: pytest.CaptureFixture[str], key: bytes
) -> None:
    path = indexes.place(root)
    index = indexes.load(path)
    names = list(index.keys)
    indexes.save(replace(index, keys=Strings.of([key, *names[1:]])), path)
    (one,) = _damage(root, capsys)
    assert one["what"] == str(path)
    assert "a name must be a relative path" in one["why"]
    assert _damage(root, capsys, split="val") == []
    splits = (replace(index.splits[0], folder="../up"), *index.splits[1:])
    indexes.save(replace(index, splits=splits), path)
    assert "(as a split)" in _damage(root, capsys)[0]["why"]


def test_a_name_that_is_there_twice_is_damage(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = indexes.place(root)
    index = indexes.load(path)
    names = list(index.keys)
    indexes.save(replace(index, keys=Strings.of([names[1], *names[1:]])), path)
    (one,) = _damage(root, capsys)
    assert one == {"what": str(path), "why": "two samples of train have one name"}
    assert _damage(root, capsys, split="val") == []
