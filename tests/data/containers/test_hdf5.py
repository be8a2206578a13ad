"""HDF5 files of others: the course's, arrays, and those that mean harm."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rankup
from rankup.base.errors import UserError
from rankup.data import indexes
from rankup.data.containers import Choice, hdf5
from rankup.data.errors import BadContainer
from rankup.data.index import Index

from .fuzz import fuzz
from .made import course, raw, values
from .test_hdf5_layout import photos


def scanned(path: Path, choice: Choice | None = None) -> Index:
    """The index, after it was written and read as the child process does."""
    beside = path.with_name("scanned.npz")
    indexes.save(hdf5.scan(path, choice or Choice()), beside)
    return indexes.load(beside)


def labels(index: Index) -> list[int]:
    """As a list."""
    assert index.labels is not None
    return [int(label) for label in index.labels]


def test_the_courses_file(tmp_path: Path, data_root: Path | None) -> None:
    made = [*photos(data_root, 12), b"", b"short", b"\xff\xd8\xff" + bytes(300)]
    path = tmp_path / "imagenet.h5"
    pairs = [(data, row * 66) for row, data in enumerate(made)]
    course(path, {"val": pairs[11:], "train": pairs[:11]})
    index = scanned(path)
    assert [(s.name, s.start, s.stop, s.folder) for s in index.splits] == [
        ("train", 0, 11, "train"),
        ("val", 11, 15, "val"),
    ]
    assert labels(index) == [row * 66 for row in range(15)]
    assert [one.name for one in index.fields] == ["data"]
    assert index.keys[0] == b"00.jpg"
    assert index.fields[0].length.tolist() == [len(data) for data in made]
    assert values(path, index) == made
    # In another order, as after `index.ordered`, and as a part.
    order = np.array([14, 3, 12, 0])
    assert values(path, index.take(order, ())) == [made[row] for row in order]


def test_arrays_of_others(tmp_path: Path) -> None:
    """In one piece they are read where they lie; compressed ones row by row."""
    path = tmp_path / "x.h5"
    draw = np.random.default_rng(0)
    plain = draw.normal(size=(100, 4, 3))
    swapped = np.arange(100, dtype=">i4")
    packed = draw.integers(0, 255, (100, 8, 8), np.uint8)
    with h5py.File(path, "w", userblock_size=512) as file:
        group = file.create_group("run/signals")
        group["plain"] = plain
        group["swapped"] = swapped
        group["flag"] = swapped % 2 == 0
        group.create_dataset("packed", data=packed, chunks=(7, 8, 3), compression="gzip")
        group.create_dataset("text", data=[f"text {row} ü" for row in range(100)])
        group["Target"] = (np.arange(100) % 3).reshape(100, 1).astype(np.uint8)
        file["class_names"] = ["a", "b", "c"]
        file.attrs["note"] = "of another program"
    index = scanned(path)
    assert [(s.name, s.stop, s.folder) for s in index.splits] == [("train", 100, "")]
    assert index.classes == ("a", "b", "c")
    assert labels(index) == [row % 3 for row in range(100)]
    assert index.keys[42] == b"42"
    about = {one.name: (one.dtype, one.shape, int(one.offset[0]) >= 0) for one in index.fields}
    assert about == {
        "plain": ("<f8", (4, 3), True),
        "swapped": (">i4", (), True),
        "flag": ("|b1", (), True),
        "packed": ("|u1", (8, 8), False),
        "text": ("", (), False),
    }
    assert values(path, index, "plain") == raw(plain)
    assert values(path, index, "swapped") == raw(swapped)
    assert values(path, index, "packed") == raw(packed)
    assert values(path, index, "text")[99] == "text 99 ü".encode()
    assert b"".join(values(path, index, "flag")) == (swapped % 2 == 0).tobytes()
    shuffled = index.take(np.array([99, 0, 50, 13]), ())
    assert values(path, shuffled, "packed") == [packed[row].tobytes() for row in (99, 0, 50, 13)]


def test_vlen_in_chunks_and_text_as_labels_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    made = [bytes([65 + row]) * row for row in range(9)]
    with h5py.File(path, "w") as file:
        for split, first, last in (("train", 0, 5), ("test", 5, 9)):
            group = file.create_group(split)
            kind = h5py.vlen_dtype(np.dtype("int8"))
            images = group.create_dataset("img", (last - first,), kind, maxshape=(None,))
            for row in range(first, last):
                images[row - first] = np.frombuffer(made[row], np.int8)
            group["path"] = [f"dir/{row}.png" for row in range(first, last)]
            if split == "train":
                group["label"] = ["dog", "cat", "dog", "ä", "cat"]
    index = scanned(path)
    assert [split.name for split in index.splits] == ["train", "test"]
    assert index.classes == ("cat", "dog", "ä")
    assert labels(index) == [1, 0, 1, 2, 0, -1, -1, -1, -1]
    assert index.keys[8] == b"dir/8.png"
    assert values(path, index) == made


def test_what_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.zeros((4, 2))
        file["b"] = np.zeros((3, 2))
        file["c"] = np.arange(4)
        file["y"] = np.arange(4)
        file["structured"] = np.zeros(4, [("u", "i4"), ("v", "f4")])
        file["soft"] = h5py.SoftLink("/a")
    with pytest.raises(UserError, match=r"a 4, b 3.*--fields, or put each split into a group"):
        scanned(path, Choice(fields=("a", "b")))
    index = scanned(path, Choice(fields=("a", "y"), label="c", split="val"))
    assert [one.name for one in index.fields] == ["a", "y"]
    assert labels(index) == [0, 1, 2, 3]
    assert index.splits[0].name == "val"
    index = scanned(path, Choice(fields=("a", "y")))  # what is asked for as a field is no label
    assert ([one.name for one in index.fields], index.labels) == (["a", "y"], None)
    with pytest.raises(UserError, match=r"no data set 'd'.*known are"):
        scanned(path, Choice(fields=("a",), label="d"))
    with pytest.raises(UserError, match="has no labels"):
        scanned(path, Choice(fields=("c",), label="a"))
    with pytest.raises(UserError, match="'c' cannot be keys"):
        scanned(path, Choice(fields=("a",), key="c"))
    index = scanned(path, Choice(fields=("a", "u")))  # a member of a table is a data set, too
    assert [one.name for one in index.fields] == ["a", "u"]
    with pytest.raises(UserError, match="nothing but labels"):
        scanned(path, Choice(fields=("c",), label="c"))


@pytest.mark.parametrize("how", [{}, {"chunks": (2,), "compression": "gzip"}])
def test_members_of_a_table_are_columns(tmp_path: Path, how: dict[str, Any]) -> None:
    path = tmp_path / "x.h5"
    kinds = [("a", "<f4"), ("b", ">i4"), ("v", "<f8", 2), ("x", "u1"), ("label", "i8"),
             ("t", h5py.string_dtype())]  # fmt: skip
    rows = np.array(
        [(row / 2, row, (row, -row), row, row % 2, "t" * row) for row in range(5)], kinds
    )
    with h5py.File(path, "w") as file:
        file.create_dataset("table", data=rows, **how)
        file["x"] = np.arange(5) + 7
    index = scanned(path)
    assert {one.name for one in index.fields} == {"a", "b", "v", "x", "table.x", "t"}
    assert labels(index) == [0, 1, 0, 1, 0]
    for name in ("a", "b", "v"):
        assert b"".join(values(path, index, name)) == rows[name].tobytes()
    assert b"".join(values(path, index, "table.x")) == bytes(range(5))
    assert values(path, index, "t") == [b"t" * row for row in range(5)]
    with h5py.File(path, "w") as file:
        file["table"] = np.zeros(4, [("inner", [("u", "i4")]), ("v", "f4")])
    with pytest.raises(UserError, match=r"the member /table.inner is .* no number and no text"):
        scanned(path)


def test_a_record_beside_a_table_hides_none_of_its_members(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["about"] = np.array((9, 9.0), [("a", "u1"), ("b", "f4")])
        file["table"] = np.array([(row, row / 2) for row in range(5)], [("a", "u1"), ("b", "f4")])
    index = scanned(path)
    assert b"".join(values(path, index, "a")) == bytes(range(5))


def test_what_is_not_taken_may_have_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for split in ("train", "val"):
            file[f"{split}/id"] = np.arange(7.0)  # numbers are no keys, and nobody asked for them
            rows = np.arange(8, dtype=np.uint8).reshape(4, 2)
            file.create_dataset(f"{split}/x", data=rows, compression="gzip")
    index = scanned(path, Choice(fields=("x",)))
    assert [(one.name, one.stop) for one in index.splits] == [("train", 4), ("val", 8)]
    assert b"".join(values(path, index, "x")) == bytes(range(8)) * 2


def _again(name: str, **how: object) -> Callable[[h5py.File], None]:
    """Replace a data set by another."""

    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, **how)

    return change


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((7,), "u1")
    layout[:] = h5py.VirtualSource("/etc/hostname", "data", (7,))
    file.create_virtual_dataset("x", layout)


FOREIGN: dict[str, Callable[[h5py.File], None]] = {
    "references": _again("x", shape=(3,), dtype=h5py.ref_dtype),
    "region references": _again("x", shape=(3,), dtype=h5py.regionref_dtype),
    "never written": _again("x", shape=(1 << 50, 7), dtype="f8"),
    "chunks never written": _again("x", shape=(1 << 40, 7), dtype="f8", chunks=(1 << 10, 7)),
    "huge chunks": _again("x", shape=(1 << 31,), dtype="f8", chunks=(1 << 28,)),
    "many rows of nothing": _again("x", shape=(1 << 50, 0), dtype="f8"),
    "link into another file": lambda file: file.__setitem__("x", h5py.ExternalLink("y.h5", "/x")),
    "storage elsewhere": _again("x", shape=(9,), dtype="u1", external=[("/etc/hostname", 0, 9)]),
    "virtual": _virtual,
    "huge": _again("x", shape=(1 << 60,), dtype="u1"),
    "huge text": _again("path", shape=(1 << 50,), dtype="S100"),
    "huge text in chunks": _again("path", shape=(1 << 50,), dtype="S100", chunks=(1 << 20,)),
    "a version in words": lambda file: file.attrs.__setitem__("rankup_hdf5", "one"),
    "vlen never written": _again("x", shape=(1 << 50,), dtype=h5py.vlen_dtype(np.uint8)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_that_lie_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        FOREIGN[name](file)
    with pytest.raises(BadContainer, match=r"x\.h5"):
        scanned(path)


def test_splits_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["train/x"], file["val/x"] = np.zeros((3, 2)), np.zeros((3, 4))
    with pytest.raises(UserError, match=r"different columns: x .*train.*val"):
        scanned(path)
    kind = h5py.vlen_dtype(np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("train/images", (1,), kind)[0] = np.arange(3, dtype=np.uint8)
        file.create_dataset("val/photos", (1,), kind)[0] = np.arange(3, dtype=np.uint8)
    with pytest.raises(UserError, match=r"images .* in train, photos .* in val; rename"):
        scanned(path)


@pytest.mark.slow
def test_one_data_set_per_sample(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(10_001):
            file[str(number)] = 1
    with pytest.raises(BadContainer, match="one data set per sample"):
        scanned(tmp_path / "x.h5")


def test_lengths_that_lie(tmp_path: Path) -> None:
    """A row of variable length that says to be longer than the file."""
    path = tmp_path / "x.h5"
    course(path, {"train": [(b"abc", 0), (b"defg", 1)]})
    with h5py.File(path) as file:
        at = file["train/images"].id.get_offset()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff\xff\xff\x7f")
    with pytest.raises(BadContainer, match="longer together than the file"):
        scanned(path)
    # One that only does not fit is found when it is read.
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\x03\0\0\0" + b"\xff" * 8)
    index = scanned(path)
    with pytest.raises(BadContainer, match="row 0 of data"):
        values(path, index)


@pytest.mark.slow
def test_rows_in_heaps_of_every_size(tmp_path: Path) -> None:
    """Many in one heap, one in several pieces, behind a block of the user; h5py agrees."""
    path = tmp_path / "x.h5"
    draw = random.Random(3)
    made = [draw.randbytes(draw.randrange(60)) for _ in range(2000)]
    made[7:9] = [draw.randbytes(3 << 20), draw.randbytes(5000)]
    with h5py.File(path, "w", userblock_size=1024) as file:
        kind = h5py.vlen_dtype(np.uint8)
        for split, rows in (("val", made[:900]), ("train", made[900:])):
            images = file.create_dataset(f"{split}/images", (len(rows),), kind)
            for row, data in enumerate(rows):
                images[row] = np.frombuffer(data, np.uint8)
    index = scanned(path)
    assert values(path, index) == made[900:] + made[:900]
    with h5py.File(path) as file:
        assert [row.tobytes() for row in file["val/images"][:20]] == made[:20]


def test_a_heap_without_end_ends(tmp_path: Path) -> None:
    """An object of no size, at which libhdf5 stays for ever."""
    path = tmp_path / "x.h5"
    course(path, {"train": [(b"a" * 20, 0), (b"b" * 20, 1), (b"c" * 20, 2)]})
    with h5py.File(path, "r+") as file:
        file["train/label"] = ["x", "y", "z"]
        del file["train/targets"]
    whole = path.read_bytes()
    heaps = [found.start() for found in re.finditer(b"GCOL", whole)]
    for at, value in ((16, 65_000), (24, 0), (24, 1 << 63), (24, (1 << 64) - 8), (8, 16), (8, 0)):
        damaged = bytearray(whole)
        for heap in heaps:
            damaged[heap + at : heap + at + 8] = value.to_bytes(8, "little")
        path.write_bytes(damaged)
        try:
            index = scanned(path)
        except BadContainer:
            continue
        with pytest.raises(BadContainer, match=r"x\.h5: row 0 of data"):
            values(path, index)


def test_what_is_no_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(b"PK\x03\x04" * 1000)
    with pytest.raises(BadContainer, match=r"x\.h5 is no HDF5"):
        scanned(path)
    path.write_bytes(b"")
    with pytest.raises(BadContainer):
        scanned(path)
    with pytest.raises(FileNotFoundError):
        scanned(tmp_path / "none.h5")
    with h5py.File(path, "w"):
        pass
    with pytest.raises(UserError, match="no data set"):
        scanned(path)


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "cut.h5"
    course(path, {"train": [(b"abc", 0), (b"h" * 100, 1)], "val": [(b"defg", 2)]})
    whole = path.read_bytes()
    for size in range(0, len(whole), 397):
        path.write_bytes(whole[:size])
        with pytest.raises(BadContainer):
            scanned(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["course", "arrays"])
def test_flipped_bytes_find_only_the_documented_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.h5"
    if kind == "course":
        course(path, {"train": [(b"abc" * 50, 0), (b"defg", 1)], "val": [(b"h" * 5000, 2)]})
    else:
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(30.0).reshape(10, 3)
            file.create_dataset(
                "z", data=np.arange(40).reshape(10, 4), chunks=(3, 4), compression=4
            )
            file["label"] = [f"c{row % 3}" for row in range(10)]
    found = fuzz("hdf5", path, 150)
    assert found["refused"] > 10
    assert found["read"] > 10


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_this_process_has_open_in_h5py_is_read(tmp_path: Path, mode: str) -> None:
    values = np.arange(40.0).reshape(10, 4)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(2, 4), compression="gzip")
    with h5py.File(tmp_path / "x.h5", mode), rankup.data.open(tmp_path / "x.h5") as samples:
        assert samples.array(3, samples.fields[0]).tolist() == values[3].tolist()


def test_axes_are_no_columns_unless_asked_for(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["temp"] = np.arange(40.0).reshape(5, 8)
        file["time"] = np.arange(5.0)
        for name, length in (("time", 5), ("x", 8)):
            axis = file.require_dataset(name, (length,), "f8")  # x is declared and never written
            axis.make_scale(name)
    index = hdf5.scan(tmp_path / "x.nc", Choice())
    assert [one.name for one in index.fields] == ["temp"]
    assert len(index) == 5
    index = hdf5.scan(tmp_path / "x.nc", Choice(fields=("temp", "time")))
    assert [one.name for one in index.fields] == ["temp", "time"]
