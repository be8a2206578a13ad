"""Tar shards of ours: other programs read the same samples from them, and so does `scan`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tarfile
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.containers import Choice, tar
from rankup.data.errors import BadContainer
from rankup.data.index import Index, Split
from rankup.data.keys import safe
from rankup.data.pack.layout import Shape, plan
from tests.data.containers.tar_made import Data, content, source, write

# Names that go wrong in one way or another when they are written as they are.
ODD = [
    *(b"a.jpg", b"a.png", b"b.tar.gz", b"LICENSE", b".hidden", b"trailing.", b"x.cls", b"A.CLS"),
    *("é ü.JPEG".encode(), b"raw\xff.jpg", b"new\nline.jpg", b"n\n/x.jpg", b"%2E.jpg", b"a%.data"),
    *(b"d.ir/x.jpg", b"__meta__/x.jpg", b"__meta__", b"n" * 90 + b"/" + b"x" * 90 + b".jpg"),
    *(b"exactly/" + b"x" * 88 + b".jpg", b"exactly/" + b"y" * 89 + b".jpg", b"case.jpg"),
    *(
        b"case.JPG",
        b"a",
        b"a.data",
        b"..x",
        b"x..y",
        b" ",
        b"sp ace.jpg",
        b"q.weird-ext!",
        b"k.__url__",
    ),
]


def _same(found: Index, index: Index, data: Data, root: Path) -> None:
    """Whether the samples are those of `index`, each under its key."""
    assert [(s.name, s.folder, s.start, s.stop) for s in found.splits] == [
        (s.name, s.folder, s.start, s.stop) for s in index.splits
    ]
    assert list(found.keys) == list(index.keys)
    assert found.classes == index.classes
    if index.labels is None:
        assert found.labels is None
    else:
        assert found.labels is not None
        assert found.labels.tolist() == index.labels.tolist()
    assert [(f.name, f.dtype, f.shape) for f in found.fields] == [
        (f.name, f.dtype, f.shape) for f in index.fields
    ]
    for name, values in data.items():
        assert content(found, root, name) == list(values)


def _round_trip(index: Index, data: Data, root: Path, shard: int = 1 << 30) -> None:
    _same(write(index, data, root, shard).index, index, data, root)


def _bytes(count: int, seed: int = 0, most: int = 2000) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.randbytes(draw.choice([0, 1, 511, 512, 513, most])) for _ in range(count)]


def _read(root: Path) -> list[dict[str, bytes]]:
    """All samples as webdataset gives them, in the order of the shards."""
    shards = [str(path) for path in sorted(root.glob("*.tar"))]
    return [
        {key: value for key, value in one.items() if not key.startswith("__") or key == "__key__"}
        for one in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    ]


@pytest.mark.parametrize(("labelled", "shard"), [(True, 1), (False, 6000), (True, 1 << 30)])
def test_odd_names_round_trip(tmp_path: Path, labelled: bool, shard: int) -> None:
    keys = sorted(ODD)
    data = {"data": _bytes(len(keys))}
    numbers = [row % 3 - 1 for row in range(len(keys))] if labelled else None
    splits = (Split("train", 0, 20, "train"), Split("val", 20, 20), Split("test", 20, len(keys)))
    index = source(keys, data, numbers, splits, ("one", "two") if labelled else ())
    _round_trip(index, data, tmp_path / "out", shard)
    # Without their index the shards are read as anybody's, but for the names in PAX headers.
    found = tar.scan(tmp_path / "out", Choice())
    assert [(one.name, one.start, one.stop) for one in found.splits] == [
        (one.name, one.start, one.stop) for one in splits
    ]
    assert list(found.keys) == keys
    assert content(found, tmp_path / "out") == data["data"]
    if labelled:
        assert found.labels is not None
        assert found.labels.tolist() == numbers
        assert found.classes == ("one", "two")


def test_webdataset_keeps_odd_names_apart(tmp_path: Path) -> None:
    data = {"data": _bytes(len(ODD))}
    index = source(sorted(ODD), data, list(range(len(ODD))))
    write(index, data, tmp_path)
    found = _read(tmp_path)
    assert [int(one["cls"]) for one in found] == list(range(len(ODD)))
    for one, value in zip(found, data["data"], strict=True):
        (field,) = set(one) - {"__key__", "cls"}
        assert one[field] == value
    assert len({one["__key__"] for one in found}) == len(ODD)


def test_usual_names_stay_as_they_are(tmp_path: Path) -> None:
    keys = [b"n01/a.JPEG", b"n01/b.png", b"n02/a.JPEG"]
    data = {"data": [b"1", b"22", b"333"]}
    write(source(keys, data, [0, 0, 1], classes=("tench", "shark")), data, tmp_path)
    done = subprocess.run(
        ["tar", "--list", "-f", tmp_path / "train-000000.tar"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [
        *("n01/a.JPEG", "n01/a.cls", "n01/b.png", "n01/b.cls", "n02/a.JPEG", "n02/a.cls"),
    ]
    assert done.stderr == ""
    assert [sorted(one) for one in _read(tmp_path)] == [
        ["__key__", "cls", "jpeg"],
        ["__key__", "cls", "png"],
        ["__key__", "cls", "jpeg"],
    ]
    assert (tmp_path / "classnames.txt").read_text() == "tench\nshark\n"


def test_gnu_tar_and_tarfile_give_the_bytes_back(tmp_path: Path) -> None:
    keys = sorted(ODD)
    data = {"data": _bytes(len(keys))}
    root, out = tmp_path / "packed", tmp_path / "out"
    layout = write(source(keys, data), data, root)
    out.mkdir()
    shard = root / "train-000000.tar"
    done = subprocess.run(
        ["tar", "--warning=no-unknown-keyword", "-xf", shard, "-C", out],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    with tarfile.open(shard) as archive:
        members = archive.getmembers()
        assert len(members) == len(keys)
        for member, key, value, offset in zip(
            members, keys, data["data"], layout.index.fields[0].offset.tolist(), strict=True
        ):
            assert (member.mode, member.uid, member.gid, member.mtime) == (0o644, 0, 0, 0)
            assert (member.offset_data, member.size) == (offset, len(value))
            assert (out / member.name).read_bytes() == value
            true = member.pax_headers.get("RANKUP.key", member.name)
            assert true.encode("utf-8", "surrogateescape") == key


def test_several_fields_and_arrays(tmp_path: Path) -> None:
    keys = [b"a/0", b"a/1.x", b"b/" + b"2" * 98, "ü".encode()]
    rows = np.arange(24, dtype="<f4").reshape(4, 2, 3)
    data = {
        "jpg": _bytes(4),
        "Depth": [row.tobytes() for row in rows],
        "cap tion": [b"a", b"", b"\xff" * 600, b"d"],
        "seg.png": _bytes(4, 1),
        "flag": [b"\x00", b"\x01", b"\x01", b"\x00"],
    }
    arrays = {"Depth": ("<f4", (2, 3)), "flag": ("|b1", ())}
    index = source(keys, data, [0, -1, 1, 1], classes=("x", "y"), arrays=arrays)
    _round_trip(index, data, tmp_path)
    found = _read(tmp_path)
    assert [one["__key__"] for one in found] == ["a/0", "a/1%2Ex", "b/" + "2" * 98, "ü"]
    decoded = list(
        webdataset.WebDataset(str(tmp_path / "train-000000.tar"), shardshuffle=False).decode()
    )
    for one, row in zip(decoded, rows, strict=True):
        assert one["depth.npy"].tolist() == row.tolist()
    with (tmp_path / "one.npy").open("wb") as file:
        file.write(found[2]["depth.npy"])
    assert np.load(tmp_path / "one.npy", allow_pickle=False).tolist() == rows[2].tolist()


def test_class_names_of_any_number_and_kind(tmp_path: Path) -> None:
    data = {"data": [b"a", b"b"]}
    names = ("new\nline", "tab\tand\u2028line", "\udcff", *map(str, range(99_997)))
    index = source([b"a.x", b"b.x"], data, [99_999, 0], classes=names)
    _round_trip(index, data, tmp_path)
    classes = tar.scan(tmp_path, Choice()).classes
    assert classes == ("new line", *names[1:])


def test_the_index_for_dali_is_what_tarfile_sees(tmp_path: Path) -> None:
    keys = [b"a b.jpg", b"c.JPEG", b"d.e.png", b"x" * 120 + b".jpg"]
    data = {"data": _bytes(4)}
    write(source(keys, data, [0, 10, -1, 2]), data, tmp_path)
    head, *lines = (tmp_path / "train-000000.idx").read_text().splitlines()
    assert head == "v1.2 4"
    with tarfile.open(tmp_path / "train-000000.tar") as archive:
        members = iter(archive.getmembers())
    for line in lines:
        words = line.split(" ")
        assert len(words) % 4 == 0
        for at in range(0, len(words), 4):
            member = next(members)
            name = member.name.replace(" ", "%20")
            extension = name.partition(".")[2]
            assert words[at : at + 4] == [
                *(extension, str(member.offset_data), str(member.size), name),
            ]
    assert next(members, None) is None


def test_info_is_what_timm_reads(tmp_path: Path) -> None:
    data = {"data": [bytes(2000)] * 9}
    keys = [b"%d.bin" % row for row in range(9)]
    splits = (Split("train", 0, 6, "train"), Split("val", 6, 9, "val"))
    write(source(keys, data, splits=splits), data, tmp_path, 10240)
    info = json.loads((tmp_path / "info.json").read_text())
    assert info["splits"]["val"]["filenames"] == ["val-000000.tar"]
    train = info["splits"]["train"]
    assert train["num_samples"] == 6
    assert train["filenames"] == ["train-000000.tar", "train-000001.tar"]
    assert train["shard_lengths"] == [3, 3]


def test_what_cannot_be_written_is_refused() -> None:
    data = {"jpg": [b"1"], "cls": [b"2"]}
    with pytest.raises(UserError, match=r"'cls' would be the second \.cls"):
        plan("tar", source([b"0"], data, [0]), Shape())
    with pytest.raises(UserError, match=r"'JPG' would be the second"):
        plan("tar", source([b"0"], {"jpg": [b"1"], "JPG": [b"2"]}), Shape())
    with pytest.raises(UserError, match="cannot end a file's name"):
        plan("tar", source([b"0"], {"a/b": [b"1"], "c": [b"1"]}), Shape())
    with pytest.raises(UserError, match="WebDataset's own"):
        plan("tar", source([b"0"], {"__key__": [b"1"], "c": [b"1"]}), Shape())
    for name in ("../up", ".x", ""):
        with pytest.raises(UserError, match="cannot begin a file's name"):
            plan("tar", source([b"0"], {"data": [b"1"]}, splits=(Split(name, 0, 1),)), Shape())
    with pytest.raises(BadContainer, match=r"\.\./up"):
        plan("tar", source([b"../up"], {"data": [b"1"]}), Shape())


def test_sizes_from_8_gib_stand_in_a_pax_header(tmp_path: Path) -> None:
    sizes = np.array([8**11 - 1, 8**11, 5 << 30, 3])
    keys = [b"a.bin", b"b.bin", b"c.bin", b"d.bin"]
    index = source(keys, {"data": [b""] * 4}, [0, 1, 2, 3])
    index.fields[0].length[:] = sizes
    layout = plan("tar", index, Shape(1 << 50)).begin(tmp_path)  # sparse: it has no blocks
    path = tmp_path / "train-000000.tar"
    with path.open("r+b") as file:
        for start, stop in zip(layout.units[:-1], layout.units[1:], strict=True):
            for piece in layout.before(int(start), int(stop)):
                os.pwrite(file.fileno(), piece.data, piece.offset)
    with tarfile.open(path) as archive:
        members = [one for one in archive.getmembers() if one.name.endswith(".bin")]
    assert [one.size for one in members] == sizes.tolist()
    assert [one.offset_data for one in members] == layout.index.fields[0].offset.tolist()
    found = tar.scan(path, Choice())
    assert found.fields[0].length.tolist() == sizes.tolist()
    assert found.fields[0].offset.tolist() == layout.index.fields[0].offset.tolist()
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 3]


_character = st.sampled_from([*b"a.%/_\n \\\xff\xc3\xa9Z-~", *b"cls"])
_key = st.lists(_character, min_size=1, max_size=12).map(bytes) | st.binary(
    min_size=95, max_size=105
)


def _round_trip_of(keys: set[bytes], labelled: bool, seed: int, shard: int) -> None:
    kept = sorted(key for key in keys if safe(key))
    data = {"data": _bytes(len(kept), seed)}
    draw = random.Random(seed)
    numbers = [draw.randint(-1, 10**9) for _ in kept] if labelled else None
    cut = draw.randint(0, len(kept))
    splits = (Split("train", 0, cut, "train"), Split("dev", cut, len(kept), "x"))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder)
        _round_trip(source(kept, data, numbers, splits), data, root, shard)
        found = _read(root)
        assert len(found) == len(kept)
        assert all(len(one) == 2 + ("cls" in one) for one in found)


@given(st.sets(_key, max_size=8), st.booleans(), st.integers(0, 99), st.sampled_from([1, 9000]))
def test_any_names_round_trip(keys: set[bytes], labelled: bool, seed: int, shard: int) -> None:
    _round_trip_of(keys, labelled, seed, shard)


@pytest.mark.slow
@given(st.sets(_key, max_size=12), st.booleans(), st.integers(0, 99), st.sampled_from([1, 9000]))
@settings(max_examples=100)
def test_any_names_round_trip_often(
    keys: set[bytes], labelled: bool, seed: int, shard: int
) -> None:
    _round_trip_of(keys, labelled, seed, shard)


@pytest.mark.parametrize("size", [0, 513, 8**11 - 1, 8**11])
@pytest.mark.parametrize("key", [None, b"a.b.jpg", b"\xff"])
def test_headers_are_those_of_tarfile(size: int, key: bytes | None) -> None:
    """Of odd names too, which are made here since tarfile takes ten times as long."""
    names = [b"a" * length for length in (1, 99, 100, 101, 988, 989, 990)]
    names += ["ü/日本.jpg".encode(), b"\xff.jpg", "ü".encode() * 70, b"a\nb"]
    found = tar.headers(
        names, np.full(len(names), size), dict.fromkeys(range(len(names)), key) if key else {}
    )
    for name, header in zip(names, found, strict=True):
        info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        info.size = size
        if key:
            info.pax_headers = {"RANKUP.key": key.decode("utf-8", "surrogateescape")}
        wanted = bytearray(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if len(wanted) == 512:  # devices, where tarfile has nothing, and the sum with them
            assert header[:148] == wanted[:148]
        else:
            assert header == wanted
        assert tar.length(name, size, key) == len(header)
