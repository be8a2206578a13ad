"""Zip files as a source: stored in place, deflated through the fallback, hostile ones refused."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

import rankup
from rankup.base.errors import UserError
from rankup.data.containers import Choice, zipped
from rankup.data.errors import BadContainer
from rankup.data.index import Index

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
FILES = {
    "a/1.jpg": b"one",
    "a/2.jpg": b"",
    "b/é.jpg": b"x" * 70_000,
    "b/4.jpg": random.Random(4).randbytes(600_000),
}


def made(path: Path, files: dict[str, bytes], *methods: int) -> Path:
    """A zip whose files are compressed by these methods in turn."""
    with zipfile.ZipFile(path, "w") as archive:
        for row, (name, data) in enumerate(files.items()):
            archive.writestr(name, data, (methods or (STORED,))[row % (len(methods) or 1)])
    return path


def content(index: Index, path: Path, field: str | None = None) -> dict[str, bytes]:
    """Key -> bytes."""
    of, result = index.field(field), {}
    with path.open("rb") as file:
        for row, (offset, length) in enumerate(zip(of.offset, of.length, strict=True)):
            if offset < 0:
                chunks = zipped.fallback(index, path).chunks(of.name, int(~offset))
                data = b"".join(map(bytes, chunks))
            else:
                file.seek(offset)
                data = file.read(length)
            assert len(data) == length
            result[index.keys.text(row)] = data
    return result


def refused(path: Path, match: str) -> None:
    with pytest.raises(BadContainer, match=match):
        zipped.scan(path, Choice())


def changed(path: Path, old: bytes, new: bytes, count: int = -1) -> None:
    """Replace bytes of one length by others."""
    assert len(old) == len(new)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, count))


def entry(path: Path, at: int, form: str, value: int) -> None:
    """Change a value in the first entry of the central directory."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, data.find(b"PK\x01\x02") + at, value)
    path.write_bytes(data)


@pytest.mark.parametrize("methods", [(STORED,), (DEFLATED,), (STORED, DEFLATED)])
def test_files_come_back(tmp_path: Path, methods: tuple[int, ...]) -> None:
    path = made(tmp_path / "x.zip", FILES, *methods)
    index = zipped.scan(path, Choice())
    assert content(index, path) == FILES
    assert index.classes == ("a", "b")
    in_place = (index.fields[0].offset >= 0).tolist()
    assert in_place == [methods[row % len(methods)] == STORED for row in range(4)]


def test_a_zip_written_to_a_pipe_has_its_sums_behind_the_data(tmp_path: Path) -> None:
    program = (
        "import sys, zipfile\n"
        "with zipfile.ZipFile(sys.stdout.buffer, 'w', zipfile.ZIP_DEFLATED) as z:\n"
        "    z.writestr('a/1', b'x' * 5000); z.writestr('a/2', b'y' * 300000)\n"
    )
    path = tmp_path / "x.zip"
    with path.open("wb") as file:
        cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
        subprocess.run([sys.executable, "-c", program], stdout=cat.stdin, check=True, timeout=60)
        assert cat.stdin is not None
        cat.stdin.close()
        assert cat.wait(60) == 0
    data = path.read_bytes()
    assert data[6] & 8
    index = zipped.scan(path, Choice())
    assert content(index, path) == {"a/1": b"x" * 5000, "a/2": b"y" * 300000}
    place = data.find(b"PK\x07\x08")
    path.write_bytes(data[: place + 4] + b"zzzz" + data[place + 8 :])
    with pytest.raises(BadContainer, match="wrong CRC"):
        content(index, path)


def test_members_of_one_stem_and_labels(tmp_path: Path) -> None:
    files = {"0.jpg": b"a", "0.cls": b"1", "1.jpg": b"b", "1.cls": b"0"}
    path = made(tmp_path / "x.zip", files, DEFLATED)
    index = zipped.scan(path, Choice())
    assert content(index, path) == {"0.jpg": b"a", "1.jpg": b"b"}
    assert index.labels is not None
    assert index.labels.tolist() == [1, 0]
    files = {"0.jpg": b"a", "0.txt": b"t" * 99, "1.jpg": b"b", "1.txt": b""}
    path = made(tmp_path / "y.zip", files, DEFLATED, STORED)
    index = zipped.scan(path, Choice())
    assert content(index, path, "txt") == {"0": b"t" * 99, "1": b""}


def test_names_of_other_systems(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/é", b"1")
        archive.writestr("a/x", b"2")
        info = zipfile.ZipInfo("q")
        info.create_system = 0
        info.filename = "a\\w"
        archive.writestr(info, b"3")
    changed(path, b"a/x", b"a/\x81")  # ü on the first PCs
    index = zipped.scan(path, Choice())
    assert list(index.keys) == ["a/é".encode(), "a/ü".encode(), b"a/w"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_written_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for data in (b"old", b"newer"):
            archive.writestr("a/1", data)
    index = zipped.scan(path, Choice())
    assert content(index, path) == {"a/1": b"newer"}


def test_a_member_that_the_index_does_not_know(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", {"a/1": b"z" * 10_000}, DEFLATED)
    index = zipped.scan(path, Choice())
    first = zipped.fallback(index, path)
    number = int(~index.fields[0].offset[0])
    with pytest.raises(BadContainer, match="knows no file"):
        list(first.chunks("data", number + 1))


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/../../b", "C:\\x", "a\\..\\..\\b"])
def test_names_out_of_the_tree_are_refused(tmp_path: Path, name: str) -> None:
    refused(made(tmp_path / "x.zip", {"a/1": b"1", name: b"2"}), "relative path")


def test_links_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("a/link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    refused(path, "'a/link' is a link")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_are_refused(tmp_path: Path, method: int) -> None:
    refused(made(tmp_path / "x.zip", {"a/1": b"1"}, method), "by method")


def test_encrypted_files_are_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", {"a/1": b"1"})
    entry(path, 8, "<H", 1)
    refused(path, "encrypted")


def test_sizes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", {"a/1": b"z" * 100_000}, DEFLATED)
    entry(path, 24, "<I", 1 << 30)
    refused(path, "a bomb")
    path = made(tmp_path / "y.zip", {"a/1": b"z" * 100})
    entry(path, 24, "<I", 101)
    refused(path, "cannot be")


def test_no_more_than_the_size_in_the_directory_is_inflated(tmp_path: Path) -> None:
    whole = made(tmp_path / "x.zip", {"a/1": b"z" * 10_000_000}, DEFLATED).read_bytes()
    path = tmp_path / "y.zip"
    for size in (5, 9_999_999, 10_000_001):
        path.write_bytes(whole)
        entry(path, 24, "<I", size)
        index = zipped.scan(path, Choice())
        got: list[int] = []
        chunks = zipped.fallback(index, path).chunks("data", 0)
        with pytest.raises(BadContainer, match=r"longer than|of 10000001 bytes"):
            got.extend(map(len, chunks))
        assert sum(got) <= size


def test_overlapping_files_are_refused(tmp_path: Path) -> None:
    """The better bomb: many entries of the directory that share one piece of data."""
    path = made(tmp_path / "x.zip", {"a/1": b"z" * 100_000, "a/2": b"y"}, DEFLATED)
    data = bytearray(path.read_bytes())
    second = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, second + 42, 0)
    path.write_bytes(data)
    refused(path, "bomb")


def test_directory_and_header_must_agree(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", FILES)
    changed(path, b"a/1.jpg", b"a/9.jpg", 1)
    refused(path, "listed otherwise")
    path = made(tmp_path / "x.zip", FILES)
    changed(path, b"PK\x03\x04", b"PK\x03\x05", 1)
    refused(path, "no header")


def test_damaged_data_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", {"a/1": bytes(range(256)) * 9}, DEFLATED)
    index = zipped.scan(path, Choice())
    whole = path.read_bytes()
    start = 30 + 3
    for at in range(start, start + 40):
        data = bytearray(whole)
        data[at] ^= 4
        path.write_bytes(data)
        with pytest.raises(BadContainer):
            content(index, path)
    path.write_bytes(whole[: start + 50])
    with pytest.raises(BadContainer, match="cut short"):
        content(index, path)


def test_no_zip(tmp_path: Path) -> None:
    path = made(tmp_path / "x.zip", FILES)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path, "no zip, or a damaged one")
    assert len(zipped.scan(made(tmp_path / "y.zip", {}), Choice())) == 0


@pytest.mark.parametrize("rounds", [150, pytest.param(1_000, marks=pytest.mark.slow)])
def test_damage_of_any_kind_is_refused_or_harmless(tmp_path: Path, rounds: int) -> None:
    draw = random.Random(rounds)
    files = {"a/1.jpg": b"z" * 3000, "a/2.jpg": bytes(range(200)), "b/3.jpg": b"", "b/é": b"q" * 9}
    labelled = {f"{row}.{end}": b"1" for row in range(3) for end in ("jpg", "cls")}
    wholes = [
        made(tmp_path / "a", files, DEFLATED).read_bytes(),
        made(tmp_path / "b", files, STORED, DEFLATED).read_bytes(),
        made(tmp_path / "c", labelled, STORED, DEFLATED).read_bytes(),
    ]
    path = tmp_path / "x.zip"
    for _ in range(rounds):
        data = bytearray(draw.choice(wholes))
        directory = data.find(b"PK\x01\x02")
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(draw.choice([0, directory]), len(data))
            if draw.random() < 0.1:
                del data[at : at + draw.randint(1, 50)]
            else:
                data[at : at + 1] = draw.randbytes(1)
            data = data or bytearray(1)
            directory = min(directory, len(data) - 1)
        path.write_bytes(data)
        try:
            index = zipped.scan(path, Choice())
            for field in index.fields:
                inside = field.offset + field.length <= len(data)
                assert (inside | (field.offset < 0)).all()
            content(index, path)
        except UserError:
            pass


@pytest.mark.slow
def test_more_than_4_gib(tmp_path: Path) -> None:
    """A file over 4 GiB in a zip over 4 GiB, of zeros so that both are small on the disk."""
    size = (4 << 30) + 5
    path = tmp_path / "x.zip"
    crc = 0
    for _ in range(size >> 24):
        crc = zlib.crc32(bytes(1 << 24), crc)
    crc = zlib.crc32(bytes(size & 0xFFFFFF), crc)
    name = b"a/big"
    wide = struct.pack("<HHQQ", 1, 16, size, size)
    with path.open("wb") as file:
        file.write(
            struct.pack("<4s5H3I2H", b"PK\x03\x04", 45, 0, 0, 0, 33, crc, *[2**32 - 1] * 2, 5, 20)
        )
        file.write(name + wide)
        file.truncate(file.tell() + size)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("a/big")
        info.file_size = info.compress_size = size
        info.CRC, info.header_offset = crc, 0
        archive.start_dir = path.stat().st_size
        archive.filelist.append(info)
        archive.NameToInfo["a/big"] = info
        archive.writestr("a/small", b"tiny", DEFLATED)
    index = zipped.scan(path, Choice())
    assert index.fields[0].length.tolist() == [size, 4]
    assert index.fields[0].offset[0] == 30 + 5 + 20
    assert ~index.fields[0].offset[1] > 4 << 30
    number = int(~index.fields[0].offset[1])
    assert b"".join(map(bytes, zipped.fallback(index, path).chunks("data", number))) == b"tiny"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_text_in_front_of_a_zip(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "plain.zip", "w", method) as archive:
        archive.writestr("a/1.txt", b"one " * 100)
        archive.writestr("b/2.txt", b"two " * 100)
    path = tmp_path / "unpacks_itself.zip"
    path.write_bytes(b"#!/bin/sh\nexec unzip $0\n" + (tmp_path / "plain.zip").read_bytes())
    with rankup.data.open(path) as samples:
        assert [bytes(samples.read(row)) for row in range(2)] == [b"one " * 100, b"two " * 100]
