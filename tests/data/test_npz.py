"""Arrays in one mapped .npz: what numpy reads, and what is refused."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xxhash

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
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]


def test_a_flip_of_any_byte_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    """Headers, padding, dates, checksums too: some of it zipfile passes over, or cannot read."""
    path = tmp_path / "a.npz"
    npz.save(path, {"a": np.arange(3), "b": np.zeros(0, np.uint8)})
    whole = path.read_bytes()
    for at, byte in enumerate(whole):
        path.write_bytes(whole[:at] + bytes([byte ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(BadContainer):
            npz.load(path)
    for data in (whole[:-1], whole[:-30], whole + b"x", whole + bytes(100)):
        path.write_bytes(data)
        with pytest.raises(BadContainer, match=r"end as it should|no \.npz"):
            npz.load(path)


def test_the_array_that_has_changed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    npz.save(path, ARRAYS)
    data = bytearray(path.read_bytes())
    data[data.index(ARRAYS["grid"].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadContainer, match="its array 'grid' has changed"):
        npz.load(path)


def test_foreign_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(5))
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


def test_an_archive_with_the_right_hash_may_still_be_hostile(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for compression, array, why in (
        (zipfile.ZIP_DEFLATED, np.arange(5), "compressed"),
        (zipfile.ZIP_STORED, np.array([{}], dtype=object), "object"),
        (zipfile.ZIP_STORED, np.asfortranarray(np.zeros((2, 3))), "cannot be mapped"),
    ):
        with zipfile.ZipFile(path, "w", compression) as archive, archive.open("a.npy", "w") as file:
            np.lib.format.write_array(file, array)
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = b"xxh3 of all before: " + bytes(16)
        data = path.read_bytes()[:-16]
        path.write_bytes(data + xxhash.xxh3_64_hexdigest(data).encode())
        with pytest.raises(BadContainer, match=why):
            npz.load(path)


@pytest.mark.parametrize("rounds", [150, pytest.param(1500, marks=pytest.mark.slow)])
def test_whatever_happens_to_a_file_it_is_refused(tmp_path: Path, rounds: int) -> None:
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
        if data == whole:
            continue
        with pytest.raises(BadContainer):
            npz.load(path)


def _npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> io.BytesIO:
    file = io.BytesIO(b"before")
    file.seek(0, io.SEEK_END)
    np.lib.format.write_array(file, array, version)
    file.seek(len(b"before"))
    return file


@pytest.mark.parametrize("times", [1, 3])
def test_pythons_parser_trips_over_another_thread(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    read = np.lib.format.read_array_header_1_0
    tries = 0

    def tripping(file: io.BytesIO) -> object:
        nonlocal tries
        tries += 1
        found = read(file)
        if tries <= times:
            raise SystemError("AST constructor recursion depth mismatch (before=51, after=50)")
        return found

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", tripping)
    file = _npy(np.zeros((2, 3), np.int16))
    assert npz.header(file)[1] == (2, 3)
    assert len(file.read()) == 12
