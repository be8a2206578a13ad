"""Arrays in one mapped .npz: what numpy reads, what is refused, and that damage is found."""

from __future__ import annotations

import random
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rankup.data import npz
from rankup.data.errors import BadContainer

ARRAYS = {
    "numbers": np.arange(1000, dtype=np.int64),
    "empty": np.empty(0, np.uint32),
    "grid": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bytes": np.frombuffer(b"abc", np.uint8),
}


def test_numpy_reads_what_was_saved_and_so_do_we(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    npz.save(path, ARRAYS)
    with np.load(path) as theirs:
        loaded = npz.load(path)
        assert list(loaded) == list(theirs) == list(ARRAYS)
        for name, array in ARRAYS.items():
            for read in (theirs[name], loaded[name]):
                assert read.dtype == array.dtype
                np.testing.assert_array_equal(read, array)
            assert not loaded[name].flags.writeable
            assert not array.size or loaded[name].ctypes.data % array.itemsize == 0
    assert npz.damaged(path) == []
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]


def test_so_is_one_of_any_byte(tmp_path: Path) -> None:
    """Headers, padding, dates, checksums too: some of it zipfile passes over, or cannot read."""
    path = tmp_path / "a.npz"
    npz.save(path, {"a": np.arange(3), "b": np.zeros(0, np.uint8)})
    whole = path.read_bytes()
    for at, byte in enumerate(whole):
        path.write_bytes(whole[:at] + bytes([byte ^ (1 << at % 8)]) + whole[at + 1 :])
        _is_damaged(path)
    for data in (whole[:-1], whole[:-30], whole + b"x", whole + bytes(100)):
        path.write_bytes(data)
        _is_damaged(path)
        with pytest.raises(BadContainer, match=r"end as it should|no \.npz"):
            npz.load(path)


def _is_damaged(path: Path) -> None:
    with suppress(BadContainer):
        assert npz.damaged(path) != []


def test_foreign_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(5))
    with pytest.raises(BadContainer, match="compressed"):
        npz.load(path)
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(BadContainer, match="object"):
        npz.load(path)
    np.savez(path, a=np.arange(5))
    with pytest.raises(BadContainer, match="end as it should"):
        npz.load(path)
    for data in (b"", b"PK\x03\x04 and no more", b"text"):
        path.write_bytes(data)
        with pytest.raises(BadContainer, match=r"a\.npz"):
            npz.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00\x76\x00{'descr': 'broken")
    with pytest.raises(BadContainer):
        npz.load(path)


@pytest.mark.parametrize("rounds", [150, pytest.param(1500, marks=pytest.mark.slow)])
def test_whatever_happens_to_a_file_it_is_read_or_refused(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "a.npz"
    npz.save(path, ARRAYS)
    whole = path.read_bytes()
    draw = random.Random(rounds)
    for _ in range(rounds):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            for array in npz.load(path).values():
                array.sum()
        except BadContainer:
            pass
