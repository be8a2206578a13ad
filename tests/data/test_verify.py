"""`inspect --verify`: any byte that changes is found and named, around the samples too."""

from __future__ import annotations

import json
import os
import random
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankup.data import indexes, verified
from rankup.data.index import Field, Index, Split, Strings
from rankup.data.inspect import show
from rankup.data.verified import Blocks

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
    assert "all bytes around them" in said
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


@pytest.mark.parametrize("count", [4, pytest.param(15, marks=pytest.mark.slow)])
def test_a_flipped_byte_anywhere_is_found(
    root: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    draw = random.Random(count)
    for _ in range(count):
        path = root / draw.choice(["train.bin", "val.bin"])
        at = draw.randrange(path.stat().st_size)
        _flip(path, at)
        assert _damage(root, capsys), f"byte {at} of {path}"
        _flip(path, at)


def test_between_samples_the_ones_around_are_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _flip(root / "train.bin", int(indexes.load(indexes.place(root)).fields[0].offset[40]) - 1)
    assert show(str(root), verify=True) == 1
    said = capsys.readouterr().out
    assert "bytes of no sample in train.bin" in said
    assert "train/c0/00000.bin to train/c2/00059.bin" in said


def test_a_pack_of_the_first_version(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its hashes of the bytes around the samples are of another kind: what to do is said."""
    index = indexes.load(indexes.place(root))
    indexes.save(replace(index, blocks=None), indexes.place(root))
    assert show(str(root), verify=True) == 0
    said = capsys.readouterr().out
    assert "is sound: 69 samples" in said
    assert "rankup pack OLD NEW" in said
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
    assert str(indexes.place(root)) in [one["what"] for one in _damage(root, capsys)]


def test_a_shard_of_somebody_else_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "notes.txt").write_text("mine")
    assert _damage(root, capsys) == []
    (root / "train-2.bin").write_bytes(b"")
    (one,) = _damage(root, capsys)
    assert one["what"] == str(root / "train-2.bin")
    assert "none of this container's files" in one["why"]
    assert _damage(root, capsys, split="val") == []


def test_files_beside_the_data_are_looked_at(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "classes.txt").write_text("c0\n")
    index = indexes.load(indexes.place(root))
    index = replace(index, facts={**index.facts, "beside": verified.beside(root, index)})
    indexes.save(index, indexes.place(root))
    assert _damage(root, capsys) == []
    (root / "classes.txt").write_text("c1\n")
    assert [one["what"] for one in _damage(root, capsys)] == [str(root / "classes.txt")]
    (root / "classes.txt").unlink()
    assert [one["why"] for one in _damage(root, capsys)] == ["it is not there"]
    hostile = replace(index, facts={**index.facts, "beside": {"../../x": "0"}})
    indexes.save(hostile, indexes.place(root))
    assert "no file of a pack" in _damage(root, capsys)[0]["why"]


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


def _index(spans: list[tuple[int, int, int]], sizes: list[int], fields: int = 1) -> Index:
    """Return an index of (file, offset, length) of each sample, given to the fields in turn."""
    n = len(spans) // fields
    columns = np.array(spans[: n * fields], np.int64).reshape(n, fields, 3)
    return Index(
        "flat",
        Strings.of([b"%d" % number for number in range(len(sizes))]),
        (Split("train", 0, n),),
        Strings.of([b"%d" % row for row in range(n)]),
        tuple(
            Field(
                f"f{number}",
                columns[:, number, 1].copy(),
                columns[:, number, 2].copy(),
                columns[:, number, 0].astype(np.uint32),
            )
            for number in range(fields)
        ),
        sizes=np.array(sizes, np.int64),
    )


@pytest.mark.parametrize("seed", range(12))
def test_each_byte_of_no_sample_is_in_one_block(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(verified, "BLOCK", draw.choice([7, 16, 1000]))
    files, fields = draw.randint(1, 3), draw.randint(1, 2)
    spans, sizes = [], [draw.randint(0, 5) for _ in range(files)]
    for _ in range(draw.choice([0, 1, 7, 60])):
        file, length = draw.randrange(files), draw.choice([0, 0, 1, 5, 40])
        spans.append((file, sizes[file], length))
        sizes[file] += length + draw.choice([0, 0, 3])
    draw.shuffle(spans)
    index = _index(spans, sizes, fields)
    for file, size in enumerate(sizes):
        (tmp_path / str(file)).write_bytes(draw.randbytes(size))
    taken = [np.zeros(size, np.bool_) for size in sizes]
    for field in index.fields:
        assert field.file is not None
        for file, offset, length in zip(field.file, field.offset, field.length, strict=True):
            taken[file][offset : offset + length] = True
    of = Blocks(index, tmp_path)
    assert len(of) == sum(-(-size // verified.BLOCK) for size in sizes)
    before = of.hashes(0, len(of))
    first = 0
    for file, size in enumerate(sizes):
        path = tmp_path / str(file)
        data = bytearray(path.read_bytes())
        for at in range(size):
            data[at] ^= 1
            path.write_bytes(data)
            data[at] ^= 1
            changed = np.flatnonzero(of.hashes(0, len(of)) != before).tolist()
            assert changed == ([] if taken[file][at] else [first + at // verified.BLOCK])
        path.write_bytes(data)
        first += -(-size // verified.BLOCK)


def test_samples_may_share_bytes_and_a_block_names_those_in_it(tmp_path: Path) -> None:
    index = _index([(0, 4, 6), (0, 4, 6), (0, 5, 2), (0, 12, 0)], [20])
    (tmp_path / "0").write_bytes(bytes(range(20)))
    of = Blocks(index, tmp_path)
    before = of.hashes(0, 1)
    (tmp_path / "0").write_bytes(bytes([*range(4), *[0] * 6, *range(10, 20)]))
    assert of.hashes(0, 1) == before
    assert of.name(0) == ("bytes of no sample in 0 between 0 and 20, around train/0 to train/3")
    alone = Blocks(replace(index, fields=()), tmp_path)
    assert alone.name(0) == "bytes of no sample in 0 between 0 and 20"
