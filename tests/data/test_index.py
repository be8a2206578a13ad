"""The index: saved and mapped again, put in order, and never believed without a look."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankup.base.errors import UserError
from rankup.data import indexes, npz
from rankup.data.errors import BadContainer
from rankup.data.index import Field, Index, Split, Strings, ordered
from rankup.data.inspect import show
from rankup.data.keys import split_order
from rankup.data.pack.command import pack as start
from rankup.data.pack.source import Request

from .made import pack, samples


def _index() -> Index:
    return Index(
        "hdf5",
        Strings.of([b""]),
        (Split("train", 0, 2, "tr\udcff"), Split("val", 2, 3)),
        Strings.of([b"b", b"\xff", b"c"]),
        (
            Field(
                "image",
                np.array([8, ~0, 30]),
                np.array([3, -1, 0]),
                hash=np.arange(3, dtype=np.uint64),
            ),
            Field("x", np.arange(3) * 8, np.full(3, 8), np.zeros(3, np.uint32), None, "<f4", (2,)),
        ),
        np.array([0, -1, 1]),
        ("cat", "dög"),
        np.array([99]),
        {"writer": "x", "options": [1, None]},
        np.array([5]),
    )


def _same(one: Index, other: Index) -> None:
    assert (one.container, one.splits, one.classes, one.facts) == (
        other.container,
        other.splits,
        other.classes,
        other.facts,
    )
    assert list(one.keys) == list(other.keys)
    assert list(one.files) == list(other.files)
    pairs = [(one.labels, other.labels), (one.sizes, other.sizes)]
    pairs += [(one.times, other.times)]
    for a, b in zip(one.fields, other.fields, strict=True):
        assert (a.name, a.dtype, a.shape) == (b.name, b.dtype, b.shape)
        pairs += [(getattr(a, c), getattr(b, c)) for c in ("offset", "length", "file", "hash")]
    for left, right in pairs:
        assert (left is None) == (right is None)
        if left is not None:
            np.testing.assert_array_equal(left, right)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "i.npz"
    indexes.save(_index(), path)
    _same(indexes.load(path), _index())
    fields = _index().fields[:1]
    bare = replace(_index(), labels=None, times=None, fields=fields, sizes=np.empty(0, np.int64))
    indexes.save(bare, path)
    _same(indexes.load(path), bare)


def test_samples_are_ordered_by_split_and_bytes_of_the_key() -> None:
    keys = [b"b", b"a\xff", b"a", b"B", b"z", b"\xc3\xbc"]
    index = replace(
        _index(),
        keys=Strings.of(keys),
        labels=np.arange(6),
        fields=(Field("data", np.arange(6) * 10, np.arange(6)),),
        splits=(Split("all", 0, 6),),
    )
    found = ordered(
        index,
        np.array([1, 0, 0, 1, -1, 0]),
        (Split("train", 0, 0), Split("val", 0, 0, "v"), Split("none", 0, 0)),
    )
    assert list(found.keys) == [b"a", b"a\xff", b"\xc3\xbc", b"B", b"b"]
    assert found.labels is not None
    assert found.labels.tolist() == [2, 1, 5, 3, 0]
    assert found.fields[0].offset.tolist() == [20, 10, 50, 30, 0]
    assert found.splits == (Split("train", 0, 3), Split("val", 3, 5, "v"), Split("none", 5, 5))
    assert sorted(["zoo", "test", "val", "train"], key=split_order) == [
        "train",
        "val",
        "test",
        "zoo",
    ]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("labels", np.zeros(2, np.int64), "labels has 2 rows for 3"),
        ("offset_0", np.zeros(4, np.int64), "offset has 4 rows"),
        ("hash_0", np.zeros((3, 1), np.uint64), "hash is uint64 of shape"),
        ("keys_ends", np.array([0, 1, 2, 99]), "past their end"),
        ("sizes", np.zeros((1, 1), np.int64), "sizes is int64 of shape"),
        ("sizes", np.array(["a"]), "sizes is <U1"),
        ("files_ends", np.zeros(0, np.int64), "no index"),
        ("files_ends", np.array([0, -1]), "end before they begin"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, value: np.ndarray, why: str
) -> None:
    path = tmp_path / "i.npz"
    indexes.save(_index(), path)
    npz.save(path, {**npz.load(path), name: value})
    with pytest.raises(BadContainer, match=why):
        indexes.load(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rankup_index": 99}, "version 99"),
        ({"splits": []}, "0 of 3"),
        ({"splits": [{"name": "a", "start": 1, "stop": 3, "folder": ""}]}, "does not begin"),
        ({"fields": [{"name": "a"}]}, "no index|damaged"),
        ({"fields": [{"name": "a", "dtype": "O", "shape": []}]}, "Python objects"),
        ({"facts": None}, "no index"),
        ({"fields": []}, "3 samples have no field"),
        ({"fields": [{"name": "a", "dtype": "(,", "shape": []}]}, "no index"),
        ({"fields": [{"name": "a", "dtype": "<f8", "shape": [2**62, 2**62]}]}, "the shape"),
        ({"fields": [{"name": "a", "dtype": "", "shape": [-1]}]}, "the shape"),
        ({"fields": [{"name": "\ud800", "dtype": "", "shape": []}]}, "no index.*surrogates"),
        ({"fields": [{"name": "a", "dtype": "", "shape": []}] * 2}, "two fields are called 'a'"),
        ({"splits": [{"name": "a", "start": float("inf"), "stop": 3, "folder": ""}]}, "no index"),
        ({"classes": ["cat", "\ud800"]}, "surrogates"),
        (
            {"splits": [{"name": "a", "start": n, "stop": 3, "folder": ""} for n in (0, 3)]},
            "two splits are called 'a'",
        ),
    ],
)
def test_what_it_says_of_itself_is_looked_at(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    path = tmp_path / "i.npz"
    indexes.save(_index(), path)
    arrays = npz.load(path)
    about = {**json.loads(arrays["about"].tobytes()), **change}
    npz.save(path, {**arrays, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    with pytest.raises(BadContainer, match=why):
        indexes.load(path)


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("length", 3, 2**63 - 1),
        ("offset", 3, -(2**63)),
        ("file", 0, 4_000_000_000),
        ("labels", 2, 2**62),
        ("keys_ends", 4, 3),
        ("shape", 0, 2**40),
    ],
)
def test_absurd_values_end_in_the_documented_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, row: int, value: int
) -> None:
    """They are found when they are met, since nobody looks at millions in advance."""
    root = tmp_path / "p"
    index = pack(root, {"train": samples(9)})
    if column == "labels":
        assert index.labels is not None
        index.labels[row] = value
    elif column == "keys_ends":
        index.keys.ends[row] = value
    elif column == "shape":
        field = replace(index.fields[0], dtype="<f8", shape=(value, 2))
        index = replace(index, fields=(field,))
    else:
        getattr(index.fields[0], column)[row] = value
    indexes.save(index, indexes.place(root))
    for options in ({}, {"verify": True}, {"extract": str(tmp_path / "out")}):
        with suppress(UserError):
            assert show(str(root), **options) in (0, 1)  # type: ignore[arg-type]
    with suppress(UserError):
        ordered = indexes.load(indexes.place(root)).take(np.arange(9), index.splits)
        assert len(list(ordered.keys)) == 9
    request = Request(str(root), str(tmp_path / "new.h5"), workers=1)
    assert start(request) in ((0,) if column == "labels" else (1, 2))
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("rounds", [60, pytest.param(800, marks=pytest.mark.slow)])
def test_a_damaged_index_gives_bytes_or_the_documented_error(tmp_path: Path, rounds: int) -> None:
    from rankup.data.opened import open as open_samples

    root = tmp_path / "p"
    pack(root, {"train": samples(20), "val": samples(7, 1)})
    path = indexes.place(root)
    whole = path.read_bytes()
    draw = random.Random(rounds)
    for _ in range(rounds):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.choice([0, 255, draw.randrange(256)])
        path.write_bytes(data)
        try:
            found = open_samples(root, how=draw.choice(["mmap", "pread"]))
        except (UserError, OSError):
            continue
        for row in range(len(found)):
            found.label(row)
            found.path(row)
            with suppress(UserError, OSError):
                bytes(found.read(row))
