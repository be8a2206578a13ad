"""The HDF5 files that we write: every byte in place, and h5py reads them as any other."""

from __future__ import annotations

import itertools
import pickle
import random
import time
from pathlib import Path
from urllib.parse import unquote

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data import indexes
from rankup.data.containers import Choice, hdf5
from rankup.data.containers.hdf5_layout import link, plan
from rankup.data.errors import BadContainer
from rankup.data.index import Field, Index
from rankup.data.keys import safe
from rankup.data.pack.layout import Shape

from .made import Values, fill, index_of, pack, raw, values


def check_round_trip(root: Path, source: Index, fields: dict[str, Values]) -> Index:
    """Pack, and compare what h5py finds and what lies at the places of the index."""
    index = pack("hdf5", root, source, fields).index
    assert indexes.inconsistency(index) == ""
    with h5py.File(root) as file:
        for split in source.splits:
            group, rows = file[link(split.name)], range(split.start, split.stop)
            keys, ends = group["keys"][:].tobytes(), group["key_offsets"][:].tolist()
            found = [keys[a:b] for a, b in itertools.pairwise(ends)]
            assert found == [source.keys[row] for row in rows]
            if source.labels is not None:
                assert group["labels"][:].tolist() == source.labels[rows].tolist()
    for one, other in zip(index.fields, source.fields, strict=True):
        assert (one.name, one.dtype, one.shape) == (other.name, other.dtype, other.shape)
        assert values(root, index, one.name) == list(raw(fields[one.name]))
    assert index.sizes.tolist() == [root.stat().st_size]
    return index


def photos(data_root: Path | None, count: int) -> list[bytes]:
    """Real photos, or bytes of about their sizes."""
    if data_root is not None:
        paths = sorted((data_root / "imagenet-sample").rglob("*.JPEG"))[:count]
        if len(paths) == count:
            return [path.read_bytes() for path in paths]
    draw = random.Random(0)
    return [b"\xff\xd8\xff" + draw.randbytes(draw.randrange(200_000)) for _ in range(count)]


def test_photos_come_back_and_h5py_reads_them(tmp_path: Path, data_root: Path | None) -> None:
    made = photos(data_root, 40)
    root = tmp_path / "x.h5"
    source = index_of(
        {"data": made},
        {"train": 30, "val": 10},
        keys=[b"n0144/%04d.JPEG" % row for row in range(40)],
        labels=[row % 2 for row in range(40)],
        classes=["tench", "Zürich"],
    )
    check_round_trip(root, source, {"data": made})
    with h5py.File(root) as file:
        train, val = file["train"], file["val"]
        offsets = val["offsets"][:]
        for row in range(10):
            a, b = offsets[row], offsets[row + 1]
            assert file["val/data"][a:b].tobytes() == made[30 + row]
        assert train["labels"][:].tolist() == [row % 2 for row in range(30)]
        assert file["classes"].asstr()[:].tolist() == ["tench", "Zürich"]
        assert all(one.chunks is None for one in (train["data"], train["keys"], train["hashes"]))


def test_several_fields_arrays_and_names_that_hdf5_cannot_have(tmp_path: Path) -> None:
    fields: dict[str, Values] = {
        "jpg": [b"a", b"", b"ccc"],
        "labels": np.arange(18, dtype=">f4").reshape(3, 2, 3),
        "data": [b"", b"", b""],
        "a/b%.": np.array([True, False, True]),
        ".": np.array([1 + 2j, 0, 3], np.complex64),
        "when": np.array(["2020-01-01", "2021-01-01", "2022-01-01"], "M8[D]"),
        "name": np.array(["ab", "ü", ""]),
        "none": np.zeros((3, 0, 4), np.int16),
        "caf\udce9": np.arange(3, dtype=np.uint8),
    }
    source = index_of(fields, {"hashes": 2, "val/ü": 1}, keys=[b"a\xff/b", "ü".encode(), b"k"])
    root = tmp_path / "x.h5"
    check_round_trip(root, source, fields)
    with h5py.File(root) as file:
        assert file[link("hashes")]["jpg/data"][:].tobytes() == b"a"
        assert file[link("hashes")][link("labels")][1].tolist() == [[6, 7, 8], [9, 10, 11]]
        assert file[link("hashes")]["when"][0] == np.datetime64("2020-01-01")


def test_one_long_name_among_many_costs_its_own_bytes(tmp_path: Path) -> None:
    keys = [b"%05d" % row for row in range(20_000)] + [b"x" * 4000]
    made = [b""] * len(keys)
    root = tmp_path / "x.h5"
    check_round_trip(root, index_of({"data": made}, {"train": len(keys)}, keys), {"data": made})
    assert root.stat().st_size < 1 << 20


def test_a_lone_array_is_an_ordinary_data_set(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    root = tmp_path / "x.h5"
    check_round_trip(root, index_of({"data": values}, {"train": 5}), {"data": values})
    with h5py.File(root) as file:
        assert np.array_equal(file["train/data"][:], values)
    # Under another name it stays what it was called.
    check_round_trip(root, index_of({"x": values}, {"train": 5}), {"x": values})
    with h5py.File(root) as file:
        assert np.array_equal(file["train/x"][:], values)


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=50), st.integers(-1, 5)),
        max_size=12,
    ),
    st.lists(st.integers(0, 5), max_size=3),
    st.booleans(),
)
def test_any_samples_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[bytes, bytes, int]],
    sizes: list[int],
    lone: bool,
) -> None:
    rows = [row for row in rows if safe(row[0])]
    cut = [min(size, len(rows) - min(sum(sizes[:n]), len(rows))) for n, size in enumerate(sizes)]
    splits = {f"s{number}": size for number, size in enumerate(cut)}
    rest = len(rows) - sum(cut)
    splits["rest"] = rest
    fields: dict[str, Values] = {"data": [row[1] for row in rows]}
    if not lone:
        fields["n"] = np.array([row[2] for row in rows], np.int32)
    source = index_of(fields, splits, [row[0] for row in rows], [row[2] for row in rows])
    check_round_trip(tmp_path_factory.mktemp("any") / "x.h5", source, fields)


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    """In any order of units, from any process, whenever."""
    draw = random.Random(1)
    made = [draw.randbytes(draw.randrange(60)) for _ in range(20_000)]
    source = index_of({"data": made}, {"train": 17_000, "val": 3_000}, labels=[0] * len(made))
    first, second = tmp_path / "a.h5", tmp_path / "b.h5"
    layout = pack("hdf5", first, source, {"data": made})
    assert layout.units.tolist() == [0, 8192, 16_384, 17_000, 20_000]
    plan(source, Shape()).begin(second)
    other = pickle.loads(pickle.dumps(plan(source, Shape()))).attach(second)
    fill(other, second, {"data": made}, [3, 0, 2, 1])
    other.finish(second, np.zeros((1, len(made)), np.uint64))
    other.finish(second, np.zeros((1, len(made)), np.uint64))  # a second time, after a kill
    assert first.read_bytes() == second.read_bytes()


def test_no_time_stands_in_a_file(tmp_path: Path) -> None:
    """Else two of them are the same only if they are made in the same second."""
    begun = int(time.time())
    pack("hdf5", tmp_path / "x.h5", index_of({"data": [b"abc"]}, {"train": 1}), {"data": [b"abc"]})
    data = (tmp_path / "x.h5").read_bytes()
    assert not [
        one for one in range(begun, int(time.time()) + 1) if one.to_bytes(4, "little") in data
    ]


def test_an_unfinished_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "x.h5"
    source = index_of({"data": [b"abc"]}, {"train": 1})
    plan(source, Shape()).begin(root)
    with pytest.raises(BadContainer, match="interrupted"):
        hdf5.scan(root, Choice())
    pack("hdf5", root, source, {"data": [b"abc"]})  # whole, and its index is not beside it
    with pytest.raises(BadContainer, match=r"its index x\.h5\.index\.npz is missing"):
        hdf5.scan(root, Choice())


def test_a_sample_over_4_gib(tmp_path: Path) -> None:
    """Sparse: only its ends are written."""
    huge = (4 << 30) + 12345
    source = index_of({"data": [b"a", b"", b"c"]}, {"train": 3})
    length = np.array([100, huge, 7], np.int64)
    source = Index(
        *(source.container, source.files, source.splits, source.keys),
        (Field("data", source.fields[0].offset, length),),
    )
    root = tmp_path / "x.h5"
    layout = plan(source, Shape()).begin(root)
    assert layout.units.tolist() == [0, 2, 3]
    at = layout.index.fields[0].offset
    with root.open("r+b") as file:
        file.seek(int(at[1]) + huge - 3)
        file.write(b"end" + b"seventh")
    layout.finish(root, np.zeros((1, 3), np.uint64))
    assert root.stat().st_blocks * 512 < 10 << 20
    with h5py.File(root) as file:
        a, b = file["train/offsets"][1:3]
        assert b - a == huge
        assert file["train/data"][b - 3 : b + 7].tobytes() == b"endseventh"


@pytest.mark.parametrize("name", ["train", "a/b", "%", "%41", ".", "..", "labels", "ü\udce9", "\0"])
def test_names_that_hdf5_cannot_have_are_written_as_in_an_url(name: str) -> None:
    assert unquote(link(name), errors="surrogateescape") == name
    assert "/" not in link(name)
    assert link(name).strip(".")
    assert link(name) not in ("labels", "keys", "hashes", "offsets", "classes")


def test_what_hdf5_cannot_hold_is_named() -> None:
    good = index_of({"data": [b"abc"]}, {"train": 1})

    def refused(source: Index, match: str) -> None:
        with pytest.raises(UserError, match=match):
            plan(source, Shape())

    refused(index_of({"data": [b"abc"]}, {"": 1}), "no name for a split")
    refused(index_of({"\ud800": [b"abc"]}, {"train": 1}), "no name for a field")
    refused(index_of({"data": [b"abc"]}, {"train": 1}, classes=["a\0"]), "no name for a class")
    structured = np.zeros(1, [("a", "<i4"), ("b", "<i4")])
    refused(index_of({"x": structured}, {"train": 1}), "leave it out")
    uneven = index_of({"x": np.zeros((1, 3))}, {"train": 1})
    uneven.fields[0].length[0] = 23
    refused(uneven, "23 bytes, not the 24")
    unknown = index_of({"data": [b"abc"]}, {"train": 1})
    unknown.fields[0].length[0] = -1
    refused(unknown, "not known")
    twice = Index(*("files", good.files, good.splits, good.keys, (good.fields[0], good.fields[0])))
    refused(twice, "two fields")
