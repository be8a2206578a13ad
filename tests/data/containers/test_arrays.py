"""Arrays of numpy as a container."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.containers import Choice, arrays
from rankup.data.errors import BadContainer
from rankup.data.index import Index
from rankup.data.spans import Spans
from rankup.data.stage import memory

Array = npt.NDArray[Any]


def rows(index: Index, path: Path, name: str | None = None) -> Array:
    """A field of all samples, read through the index."""
    field = index.field(name)
    spans = Spans(path, index.files, index.sizes, "pread")
    back = arrays.fallback(index, path)
    parts = [
        bytes(spans.read(0, offset, length))
        if offset >= 0
        else b"".join(back.chunks(field.name, ~offset))
        for offset, length in zip(field.offset.tolist(), field.length.tolist(), strict=True)
    ]
    assert list(map(len, parts)) == field.length.tolist()
    return np.frombuffer(b"".join(parts), field.dtype).reshape(len(index), *field.shape)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *(("<f4", (5,)), (">i2", (4, 3)), ("|u1", (0, 3)), ("<c8", (1, 2, 3, 4))),
        *(("|b1", (4, 3)), ("<U3", (5,)), ("|S2", (4, 3)), ("<M8[ns]", (5,))),
    ],
)
def test_npy(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype("<i8").astype(dtype)
    path = tmp_path / "a.npy"
    np.save(path, array)
    index = arrays.scan(path, Choice())
    assert index.field().name == "data"
    assert (index.field().dtype, index.field().shape) == (array.dtype.str, shape[1:])
    assert list(index.keys) == [b"%08d" % row for row in range(shape[0])]
    assert np.array_equal(rows(index, path), array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_as_mnist(tmp_path: Path, save: Any) -> None:
    draw = np.random.default_rng(0)
    parts = {
        "x_test": draw.integers(0, 256, (3, 4, 4), np.uint8),
        "x_train": draw.integers(0, 256, (7, 4, 4), np.uint8),
        "y_train": draw.integers(0, 10, 7),
        "y_test": draw.integers(0, 10, 3).astype(np.uint8),
    }
    path = tmp_path / "mnist.npz"
    save(path, **parts)
    index = arrays.scan(path, Choice())
    assert [(s.name, s.start, s.stop) for s in index.splits] == [("train", 0, 7), ("test", 7, 10)]
    assert (index.field().offset < 0).all() == (save is np.savez_compressed)
    both = np.concatenate([parts["x_train"], parts["x_test"]])
    assert np.array_equal(rows(index, path), both)
    assert index.labels is not None
    assert index.labels.tolist() == [*parts["y_train"], *parts["y_test"]]
    assert index.path(8) == "test/00000001"
    # Samples may be taken in another order.
    order = np.array([9, 0, 5])
    some = index.take(order, (index.splits[0].__class__("some", 0, 3),))
    assert np.array_equal(rows(some, path), both[order])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_fields_of_several_arrays(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    image, mask, kind = (
        np.ones((4, 2, 2), "f4"),
        np.arange(4.0),
        np.array([["b"], ["a"], ["b"], [""]]),
    )
    save(path, image=image, mask=mask, label=kind)
    index = arrays.scan(path, Choice())
    assert [one.name for one in index.fields] == ["image", "mask"]
    assert np.array_equal(rows(index, path, "mask"), mask)
    assert index.classes == ("a", "b")
    assert index.labels is not None
    assert index.labels.tolist() == [1, 0, 1, -1]
    assert arrays.scan(path, Choice(fields=("mask",))).field().name == "data"
    with pytest.raises(UserError, match=r"no array 'imag'.*did you mean image"):
        arrays.scan(path, Choice(fields=("imag",)))
    with pytest.raises(UserError, match="'mask' has no labels"):
        arrays.scan(path, Choice(label="mask"))
    save(path, image=image, y=np.arange(4))
    index = arrays.scan(path, Choice(fields=("image", "y")))  # asked for as a field, no label
    assert ([one.name for one in index.fields], index.labels) == (["image", "y"], None)


def test_names_of_samples_are_keys_where_all_splits_have_them(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    parts = {"x_train": np.ones(2), "id_train": np.array(["b", "a/ü"]), "x_test": np.ones(1)}
    np.savez(path, **parts, id_test=np.array([b"c"]))
    assert list(arrays.scan(path, Choice()).keys) == [b"b", "a/ü".encode(), b"c"]
    np.savez(path, **parts, id_test=np.array(["../c"]))
    with pytest.raises(UserError, match="'id' cannot be keys"):
        arrays.scan(path, Choice(key="id"))
    index = arrays.scan(path, Choice(fields=("x",)))
    assert list(index.keys) == [b"00000000", b"00000001", b"00000000"]


def saved(**parts: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **parts)
    return out.getvalue()


def one(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (one(np.array([{}, 1], object)), "Python objects"),
        (saved(a=np.array([{}, 1], object)), "Python objects"),
        (one(np.asfortranarray(np.ones((3, 2)))), "ascontiguousarray"),
        (one(np.float64(3)), "single number"),
        (one(np.ones((3, 0))), "without any values"),
        (one(np.zeros(2, [("x", "i4"), ("y", "f4")])), "one array per column"),
        (saved(a=np.ones(3), b=np.ones(4)), r"different numbers of rows.* a 3, b 4"),
        (saved(x=np.ones(3), y=[0, 1, -7]), "labels from -7 to 1"),
        (saved(x_train=np.ones((3, 2)), x_test=np.ones((3, 4))), "different columns"),
        (saved(x_train=np.ones(3), z_test=np.ones(3)), r"x .* in train, z .* in test"),
        (saved(y=[1], labels=[1]), None),
    ],
)
def test_what_cannot_be_samples_is_said(tmp_path: Path, data: bytes, message: str | None) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    if message is None:
        assert arrays.scan(path, Choice()).labels is not None
        return
    with pytest.raises(UserError, match=message):
        arrays.scan(path, Choice())


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("/dev/shm/rankup_was_here").touch, ())


def _bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", one(np.zeros(1000)))
    data = bytearray(out.getvalue())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = (1 << 31).to_bytes(4, "little")
    return bytes(data)


def _header(shape: str, descr: str = "'<f8'", fortran: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(80)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        b"no array at all",
        pickle.dumps(_Code()),
        one(np.ones(10))[:-1],
        one(np.ones(10)) + b"x",
        saved(a=np.ones(10))[:-30],
        _header("(11,)"),
        _header("(-10, -1)"),
        _header("(1000000000000000000000,)"),
        _header("(10, " + "9" * 400 + ")"),
        _header("(0, " + "9" * 20 + ")")[:-80],
        _header("(0, 2147483648, 2147483648)")[:-80],
        _header("(0, " + "9" * 20 + ", 0)")[:-80],
        _header("(10,)", "'|V0'"),
        _header("(10,)", "__import__('os')"),
        _header("(10,)", "(" * 300 + ")" * 300),
        _header("(10.0,)"),
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        _bomb(),
    ],
)
def test_hostile_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with pytest.raises((BadContainer, UserError)):
        arrays.scan(path, Choice())
    assert not Path("/dev/shm/rankup_was_here").exists()


def test_a_damaged_compressed_member_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.random.default_rng(0).integers(0, 256, 5000, np.uint8))
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    index = arrays.scan(path, Choice())
    with pytest.raises(BadContainer, match="the array a is damaged"):
        rows(index, path)


def _fuzzed(data: st.DataObject, tmp: Path) -> None:
    base = data.draw(st.sampled_from(_BASES))
    broken = bytearray(base)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(base) - 1))] = data.draw(st.integers(0, 255))
    path = tmp / "a.npz"
    path.write_bytes(
        broken[: data.draw(st.integers(0, len(base)))] if data.draw(st.booleans()) else broken
    )
    try:
        index = arrays.scan(path, Choice())
        for field in index.fields:
            rows(index, path, field.name)
    except UserError:
        pass


_BASES = [saved(x=np.ones((3, 2)), y=np.arange(3)), one(np.ones((3, 2)))]
_OUT = io.BytesIO()
np.savez_compressed(_OUT, x=np.ones((3, 2)), y=np.arange(3))
_BASES.append(_OUT.getvalue())


@given(st.data())
def test_damage_ends_with_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _fuzzed(data, tmp_path_factory.getbasetemp())


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_much_damage_ends_with_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _fuzzed(data, tmp_path_factory.getbasetemp())


def test_rows_without_memory_for_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.npy"
    np.save(path, np.zeros(0, np.uint8))
    header = path.read_bytes().replace(b"(0,), }" + b" " * 10, b"(20000000,), }" + b" " * 3)
    path.write_bytes(header)
    os.truncate(path, len(header) + 20_000_000)
    few = [memory.Limit("a limit", 900_000_000, 0)]
    monkeypatch.setattr(memory, "limits", lambda environment, ours: few)
    with pytest.raises(UserError, match=r"20000000 rows.* 960 MB, and 900 MB are left.*Tokens"):
        arrays.scan(path, Choice())
