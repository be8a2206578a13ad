"""Damaged and hostile images: refused, without harm and without waiting."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.data.containers import Choice, squashfs
from rankup.data.errors import BadContainer

from .squashfs_made import fill, mksquashfs, odd_files

BLOCK = 4096
# Places of the superblock.
COMPRESSOR, VERSION, ROOT, USED, INODES, DIRECTORIES = 20, 28, 32, 40, 64, 72


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An image whose tables are not compressed, so that they can be changed by hand."""
    folder = tmp_path_factory.mktemp("plain")
    files = {"train/aaaa/one": b"1" * 9000, "train/bbbb/two": b"2" * 20, "val/aaaa/two": b"3"}
    root = fill(folder / "tree", files)
    (root / "train" / "link").symlink_to("aaaa/one")
    options = ("-noI", "-noD", "-noF", "-b", str(BLOCK), "-no-fragments", "-all-root")
    return mksquashfs(root, folder / "i.sqsh", *options).read_bytes()


def number(image: bytes, at: int) -> int:
    (value,) = struct.unpack_from("<Q", image, at)
    return int(value)


def put(image: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(image)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


def tables(image: bytes) -> tuple[int, int]:
    """Where the contents of the inodes' and of the directories' only block begin."""
    return number(image, INODES) + 2, number(image, DIRECTORIES) + 2


def name_at(image: bytes, name: bytes) -> int:
    """Where the entry of a name begins in the table of directories."""
    return image.index(name, tables(image)[1]) - 8


def inode_at(image: bytes, name: bytes) -> int:
    return tables(image)[0] + struct.unpack_from("<H", image, name_at(image, name))[0]


def loop(image: bytes) -> bytes:
    return put(image, name_at(image, b"aaaa"), "<H", number(image, ROOT) & 0xFFFF)


def huge_block_list(image: bytes) -> bytes:
    return put(image, inode_at(image, b"one") + 28, "<I", 0xFFFFFFFF)


def bomb(image: bytes) -> bytes:
    """A block of a table that would unpack to 4 MB."""
    packed = zlib.compress(bytes(4 << 20), 9)
    assert len(packed) < 8192
    start = len(image)
    image += struct.pack("<H", len(packed)) + packed
    image = put(image, INODES, "<Q", start)
    image = put(image, DIRECTORIES, "<Q", len(image))
    return put(image + bytes(10), USED, "<Q", len(image) + 10)


def many_bombs(image: bytes) -> bytes:
    """A table of zeros that is larger than its size in the image allows."""
    packed = zlib.compress(bytes(8192), 9)
    start = len(image)
    image += (struct.pack("<H", len(packed)) + packed) * 12_000
    image = put(image, INODES, "<Q", start)
    image = put(image, DIRECTORIES, "<Q", len(image))
    return put(image + bytes(10), USED, "<Q", len(image) + 10)


def overlapping(image: bytes) -> bytes:
    """A directory that lists what another one lists, and more than there is."""
    return put(image, inode_at(image, b"bbbb") + 24, "<H", 65535)


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no image": (lambda image: b"PK" + image[2:], "is no SquashFS image"),
    "empty": (lambda _: b"", "is no SquashFS image"),
    "head only": (lambda image: image[:95], "is no SquashFS image"),
    "version": (lambda image: put(image, VERSION, "<H", 3), r"SquashFS 3\.0; only 4\.0"),
    "compressor": (lambda image: put(image, COMPRESSOR, "<H", 9), "compressor 9"),
    "block size": (lambda image: put(image, 12, "<I", 1 << 31), "blocks of 2147483648"),
    "block log": (lambda image: put(image, 22, "<H", 40), "blocks of 4096"),
    "cut short": (lambda image: image[: number(image, USED) - 1], "was cut short"),
    "used": (lambda image: put(image, USED, "<Q", 1 << 63), "was cut short"),
    "inodes outside": (lambda image: put(image, INODES, "<Q", 1 << 62), "lie outside of it"),
    "inodes at 0": (lambda image: put(image, INODES, "<Q", 0), "lie outside of it"),
    "directories outside": (
        lambda image: put(image, DIRECTORIES, "<Q", (1 << 64) - 1),
        "lie outside of it",
    ),
    "inodes in the data": (lambda image: put(image, INODES, "<Q", 96), "a table|a block"),
    "root": (lambda image: put(image, ROOT, "<Q", 77 << 16), "its root is no inode"),
    "root far": (lambda image: put(image, ROOT, "<Q", 1 << 63), "its root is no inode"),
    "root is a file": (
        lambda image: put(image, ROOT, "<Q", inode_at(image, b"one") - tables(image)[0]),
        "of another kind",
    ),
    "loop": (loop, r"'train/aaaa' is in it twice, or within itself"),
    "slash": (lambda image: image.replace(b"two", b"t/o"), "the name 't/o'"),
    "nul": (lambda image: image.replace(b"two", b"t\0o"), "a file is named"),
    "unsorted": (lambda image: image.replace(b"bbbb", b"AAAA"), "the name 'AAAA' after 'aaaa'"),
    "twice": (lambda image: image.replace(b"bbbb", b"aaaa"), "the name 'aaaa' after 'aaaa'"),
    "long block list": (huge_block_list, "inodes overlap"),
    "file begins outside": (
        lambda image: put(image, inode_at(image, b"one") + 16, "<I", 0xFFFFFFF0),
        "begins or ends past the end",
    ),
    "file ends outside": (
        lambda image: put(image, inode_at(image, b"one") + 16, "<I", len(image) - 4096),
        "ends past the end",
    ),
    "block too large": (
        lambda image: put(image, inode_at(image, b"one") + 32, "<I", BLOCK + 1),
        "larger than blocks are",
    ),
    "block of odd bits": (
        lambda image: put(image, inode_at(image, b"one") + 32, "<I", 1 << 25),
        "larger than blocks are",
    ),
    "fragment": (
        lambda image: put(image, inode_at(image, b"two") + 20, "<I", 5),
        r"it has 0 fragments, and a file lies in number 5",
    ),
    "kind of inode": (
        lambda image: put(image, inode_at(image, b"one"), "<H", 3),
        "a file's inode is of another kind",
    ),
    "kind of entry": (
        lambda image: put(image, name_at(image, b"one") + 4, "<H", 99),
        "is an entry of kind 99",
    ),
    "bomb": (bomb, "more than 8192 bytes"),
    "many bombs": (many_bombs, "would unpack to more than"),
    "overlapping directories": (overlapping, "a block of a table|overlap|refers to|ends within"),
    "table block too long": (
        lambda image: put(image, tables(image)[0] - 2, "<H", 0x8000 | 8193),
        "a block of a table has 8193 bytes",
    ),
    "table block empty": (
        lambda image: put(image, tables(image)[0] - 2, "<H", 0),
        "a block of a table has 0 bytes",
    ),
    "table block not compressed": (
        lambda image: put(image, tables(image)[0] - 2, "<H", 30),
        "cannot be decompressed",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused(plain: bytes, tmp_path: Path, name: str) -> None:
    change, words = HOSTILE[name]
    image = tmp_path / "i.sqsh"
    image.write_bytes(change(plain))
    with pytest.raises(BadContainer, match=words):
        squashfs.scan(image, Choice())


def test_the_image_that_the_hostile_ones_are_made_of_is_fine(plain: bytes, tmp_path: Path) -> None:
    image = tmp_path / "i.sqsh"
    image.write_bytes(plain)
    assert len(squashfs.scan(image, Choice())) == 3


def test_dot_dot_is_no_name(tmp_path: Path) -> None:
    root = fill(tmp_path / "tree", {"a/xx/one": b"1", "a/yy": b"2"})
    image = mksquashfs(root, tmp_path / "i.sqsh", "-noI", "-noD")
    data = image.read_bytes()
    for name in (b"xx", b"yy"):
        image.write_bytes(data.replace(name, b"..", 1))
        with pytest.raises(BadContainer, match=r"is named|has the name"):
            squashfs.scan(image, Choice())


@pytest.mark.parametrize("compressor", ["gzip", "xz", "zstd", "lz4"])
def test_damaged_blocks_are_found_when_they_are_read(tmp_path: Path, compressor: str) -> None:
    """The scan looks at no data; the fallback says that it cannot be read, and stops."""
    data = b"some text which is packed " * 1000
    root = fill(tmp_path / "tree", {"a/one": data, "a/tail": b"tail of it " * 20})
    image = mksquashfs(root, tmp_path / "i.sqsh", "-comp", compressor, "-b", "4096")
    index = squashfs.scan(image, Choice())
    raw = bytearray(image.read_bytes())
    raw[96:150] = bytes(54)
    image.write_bytes(raw)
    behind = squashfs.fallback(index, image)
    row = index.keys.find(b"a/one")
    assert row is not None
    with pytest.raises(BadContainer, match=r"decompressed|instead of"):
        list(behind.chunks("data", ~int(index.fields[0].offset[row])))
    for wrong in (5, 1 << 20, (1 << 62) - 1):
        with pytest.raises(BadContainer, match="damaged or hostile SquashFS"):
            list(behind.chunks("data", wrong))


@pytest.mark.slow
@pytest.mark.parametrize("options", [["-noI"], ["-comp", "zstd"]])
def test_flipped_bytes_end_with_the_documented_error(tmp_path: Path, options: list[str]) -> None:
    root = fill(tmp_path / "tree", odd_files(BLOCK))
    (root / "train" / "a" / "link").symlink_to("one.bin")
    image = mksquashfs(root, tmp_path / "i.sqsh", "-b", str(BLOCK), *options)
    whole = image.read_bytes()
    inodes = number(whole, INODES)
    draw = random.Random(5)
    outcomes = {"read": 0, "refused": 0}
    for turn in range(200):
        changed = bytearray(whole)
        # Mostly where the structure is: the superblock, and all tables behind the data.
        for _ in range(draw.choice((1, 1, 1, 2, 8))):
            span = draw.choice(((0, 96), (inodes, len(whole)), (inodes, len(whole)), (96, inodes)))
            changed[draw.randrange(*span)] = draw.choice((0, 1, 255, draw.randrange(256)))
        if turn % 10 == 0:
            del changed[draw.randrange(len(changed)) :]
        image.write_bytes(changed)
        outcomes[outcome(image)] += 1
    assert min(outcomes.values()) > 10  # else nothing was tried


def outcome(image: Path) -> str:
    """Read all of an image; anything but the documented errors fails the test."""
    try:
        index = squashfs.scan(image, Choice())
        behind = squashfs.fallback(index, image)
        for offset in index.fields[0].offset.tolist():
            if offset < 0:
                for _ in behind.chunks("data", ~offset):
                    pass
    except UserError:  # of which BadContainer is one
        return "refused"
    return "read"
