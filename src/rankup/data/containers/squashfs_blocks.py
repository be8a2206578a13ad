"""SquashFS 4.0 from below: the superblock, compressed blocks, and the blocks of its tables.

After the kernel's description of the format (Documentation/filesystems/squashfs.rst). All numbers
are little-endian. Nothing here trusts a number of the image before it was compared with its size.
"""

from __future__ import annotations

import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ...base.errors import UserError
from ..errors import BadContainer

MAGIC = b"hsqs"
NONE = 0xFFFFFFFF  # as a fragment: there is none
METADATA = 8192  # bytes that a block of a table has at most, before and after compression
STORED = 1 << 24  # set in the size of a data block that is not compressed
_STORED_METADATA = 1 << 15
_SUPER = struct.Struct("<4s4I6H8Q")
_ABSENT = (1 << 64) - 1
COMPRESSORS = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
_LZMA_MEMORY = 256 << 20
# Tables may unpack to this, and to this many times their size in the image: inodes of a million
# files shrink to a third, and the block list of a sparse file to nearly nothing.
_TABLE_FLOOR, _TABLE_RATIO = 64 << 20, 64

# What decoders raise on damaged data.
_DAMAGE = (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError)

Decoder = Callable[[bytes, int], bytes]


@dataclass(frozen=True)
class Super:
    """The superblock; tables are places in the image."""

    inodes: int
    made: int
    block: int
    fragments: int
    compressor: int
    root: int
    used: int
    inode_table: int
    directory_table: int
    fragment_table: int


@dataclass(frozen=True)
class Image:
    """An open SquashFS image. Reads by position, so that forked children may share it."""

    path: Path
    descriptor: int
    super: Super
    decode: Decoder

    def bad(self, what: str) -> NoReturn:
        """Refuse the image.

        Raises:
            BadContainer: always.
        """
        raise BadContainer(
            f"{self.path} is a damaged or hostile SquashFS image: {what}; get it anew, or pack it "
            "again"
        )

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes.

        Raises:
            BadContainer: the image ends before.
        """
        if offset < 0 or length < 0 or offset + length > self.super.used:
            self.bad(f"it has {self.super.used} bytes and refers to {length} at {offset}")
        data = os.pread(self.descriptor, length, offset)
        while len(data) < length:
            more = os.pread(self.descriptor, length - len(data), offset + len(data))
            if not more:
                self.bad("it was cut short while it was read")
            data += more
        return data

    def unpacked(self, data: bytes, most: int) -> bytes:
        """Decompress one block.

        Raises:
            BadContainer: it is damaged, or has more than `most` bytes.
        """
        try:
            return self.decode(data, most)
        except _DAMAGE as error:
            self.bad(f"a block cannot be decompressed ({error})")

    def metadata(self, at: int) -> tuple[bytes, int]:
        """A block of a table, and where the next one begins."""
        (word,) = struct.unpack("<H", self.read(at, 2))
        size = word & (_STORED_METADATA - 1)
        if not 0 < size <= METADATA:
            self.bad(f"a block of a table has {size} bytes")
        data = self.read(at + 2, size)
        if not word & _STORED_METADATA:
            data = self.unpacked(data, METADATA)
        if not data:
            self.bad("a block of a table is empty")
        return data, at + 2 + size

    def most(self, start: int, stop: int) -> int:
        """Bytes that a table which takes up [start, stop) may have at most."""
        return _TABLE_FLOOR + _TABLE_RATIO * (stop - start)

    def table(self, start: int, stop: int) -> tuple[bytearray, dict[int, int]]:
        """A table's bytes, and where in them each block begins, by its place after `start`."""
        data, starts, at, most = bytearray(), {}, start, self.most(start, stop)
        while at < stop:
            starts[at - start] = len(data)
            part, at = self.metadata(at)
            data += part
            if len(data) > most:
                self.bad(f"a table of {stop - start} bytes would unpack to more than {most}")
        if at > stop:
            self.bad("a table runs into the next one")
        return data, starts


@contextmanager
def opened(path: Path) -> Iterator[Image]:
    """Open an image for a while.

    Raises:
        BadContainer: it is none, or is cut short.
        UserError: it is compressed in a way that cannot be read here.
        OSError: it cannot be read.
    """
    image = open_image(path)
    try:
        yield image
    finally:
        os.close(image.descriptor)


def open_image(path: Path) -> Image:
    """Open an image; its descriptor is the caller's to close. Raises as `opened`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = _superblock(path, os.pread(descriptor, _SUPER.size, 0))
        size = os.fstat(descriptor).st_size
        if found.used > size:
            raise BadContainer(
                f"{path} has {size} bytes of the {found.used} that its superblock tells: it was "
                "cut short; copy it again"
            )
        return Image(path, descriptor, found, _decoder(path, found.compressor))
    except BaseException:
        os.close(descriptor)
        raise


def _superblock(path: Path, data: bytes) -> Super:
    if len(data) < _SUPER.size or not data.startswith(MAGIC):
        raise BadContainer(f"{path} is no SquashFS image: it begins with {data[:4]!r}")
    numbers = _SUPER.unpack(data)[1:]
    inodes, made, block, fragments, compressor, log, _, _, major, minor = numbers[:10]
    root, used, _, _, inode_table, directory_table, fragment_table, _ = numbers[10:]
    if (major, minor) != (4, 0):
        raise BadContainer(f"{path} is SquashFS {major}.{minor}; only 4.0 (since 2009) is read")
    if not 12 <= log <= 20 or block != 1 << log:
        raise BadContainer(f"{path} is a damaged SquashFS image: blocks of {block} bytes")
    if not _SUPER.size <= inode_table < directory_table <= used:
        raise BadContainer(f"{path} is a damaged SquashFS image: its tables lie outside of it")
    if fragments and fragment_table in (_ABSENT, 0):
        raise BadContainer(f"{path} is a damaged SquashFS image: it has no table of fragments")
    return Super(
        *(inodes, made, block, fragments, compressor),
        *(root, used, inode_table, directory_table, fragment_table),
    )


def _decoder(path: Path, compressor: int) -> Decoder:
    name = COMPRESSORS.get(compressor)
    if name is None:
        raise BadContainer(f"{path} is a damaged SquashFS image: compressor {compressor}")
    if name == "lzo":
        raise UserError(
            f"{path} is compressed with lzo, which rankup cannot read: unpack it with unsquashfs, "
            "and pack the folder"
        )
    known: dict[str, Decoder] = {
        "gzip": _gzip,
        "lzma": partial(_lzma, lzma.FORMAT_ALONE),
        "xz": partial(_lzma, lzma.FORMAT_XZ),
        "lz4": _lz4,
        "zstd": _zstd,
    }
    return known[name]


def _gzip(data: bytes, most: int) -> bytes:
    decoder = zlib.decompressobj()
    unpacked = decoder.decompress(data, most + 1)
    if len(unpacked) > most or not decoder.eof:
        raise ValueError(f"more than {most} bytes, or cut short")
    return unpacked


def _lzma(form: int, data: bytes, most: int) -> bytes:
    decoder = lzma.LZMADecompressor(form, _LZMA_MEMORY)
    unpacked = decoder.decompress(data, most + 1)
    if len(unpacked) > most:
        raise ValueError(f"more than {most} bytes")
    # The old format need not mark its end.
    if form == lzma.FORMAT_XZ and not decoder.eof:
        raise ValueError("cut short")
    return unpacked


def _zstd(data: bytes, most: int) -> bytes:
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        unpacked: bytes = stream.read(most + 1)
    if len(unpacked) > most:
        raise ValueError(f"more than {most} bytes")
    return unpacked


def _lz4(data: bytes, most: int) -> bytes:
    import pyarrow as pa

    codec: Any = pa.Codec("lz4_raw")

    def fits(size: int) -> bytes | None:
        try:
            unpacked: bytes = codec.decompress(data, decompressed_size=size, asbytes=True)
        except OSError:
            return None
        return unpacked

    # A raw block does not tell its size, and pyarrow not how much of the buffer it filled. What
    # is too small fails, so the smallest that does not is right; nearly always it is `most`.
    small, large = 0, most
    unpacked = fits(most)
    if unpacked is None:
        raise ValueError(f"damaged, or more than {most} bytes")
    if fits(most - 1) is None:
        return unpacked
    while large - small > 1:
        middle = (small + large) // 2
        found = fits(middle)
        if found is None:
            small = middle
        else:
            large, unpacked = middle, found
    return unpacked[:large]
