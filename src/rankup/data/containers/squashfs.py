"""SquashFS images as containers: any tool's, of version 4.0.

A file whose blocks are stored as they are lies in one piece, and is read where it lies, without
mounting anything. What is compressed, sparse, or ends in a fragment goes through the fallback.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..index import Field, Index
from ..strings import Strings
from . import Choice, Fallback
from .grouping import LONE, group
from .squashfs_blocks import COMPRESSORS, NONE, STORED, Image, open_image, opened
from .squashfs_inodes import fragment_block
from .squashfs_tree import files as files_of

# What file managers leave behind, beside hidden files.
_LEFTOVERS = (b"/Thumbs.db/", b"/ehthumbs.db/", b"/desktop.ini/", b"/__MACOSX/")


def scan(path: Path, choice: Choice) -> Index:
    """Where everything lies; splits and classes by folders, see `grouping`.

    Hidden files and symbolic links within the image are left out and counted in the facts.

    Raises:
        BadContainer: damaged or hostile, with devices, or with links that lead out of it.
        UserError: compressed with lzo; or the folders leave open what is a split.
        OSError: it cannot be read.
    """
    with opened(path) as image:
        found = files_of(image)
        facts = facts_of(image)
    taken = np.fromiter((not _hidden(name) for name in found.paths), np.bool_, len(found.paths))
    kept = np.flatnonzero(taken)
    groups = group(found.paths.take(kept), choice=choice)
    rows, splits = groups.rows()
    facts |= {"symlinks": found.symlinks, "skipped": len(taken) - len(kept)}
    return Index(
        container="squashfs",
        files=Strings.of([b""]),
        splits=splits,
        keys=groups.keys.take(rows),
        fields=(Field(LONE, found.offset[kept][rows], found.length[kept][rows]),),
        labels=None if groups.labels is None else groups.labels[rows],
        classes=groups.classes,
        sizes=np.array([path.stat().st_size], np.int64),
        facts=facts,
    )


def facts_of(image: Image) -> dict[str, Any]:
    """What an index notes of an image."""
    top = image.super
    compression = COMPRESSORS[top.compressor]
    return {"block": top.block, "compression": compression, "made": top.made, "inodes": top.inodes}


def fallback(index: Index, root: Path) -> Fallback:
    """Reads files that are compressed or sparse, or end in a fragment; numbers are inodes'."""
    return _Blocks(root)


def _hidden(path: bytes) -> bool:
    framed = b"/" + path + b"/"
    return b"/." in framed or any(name in framed for name in _LEFTOVERS)


class _Inode(NamedTuple):
    """A file's inode.

    Attributes:
        start: of its first block in the image.
        length: in bytes.
        fragment, inner: that its end lies in, and where in it.
        blocks: words with the sizes of its blocks.
    """

    start: int
    length: int
    fragment: int
    inner: int
    blocks: tuple[int, ...]


class _Blocks:
    """Reads files block by block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._image: Image | None = None
        # The last fragment: files that were packed one after the other end in the same.
        self._fragment: tuple[int, bytes] = (NONE, b"")

    def chunks(self, field: str, number: int) -> Iterator[bytes | memoryview]:
        """The bytes of a file; `number` is its inode's reference."""
        if self._image is None:
            self._image = open_image(self._path)
        image = self._image
        inode = _inode(image, number)
        at, left = inode.start, inode.length
        for word in inode.blocks:
            size, wanted = word & (STORED - 1), min(image.super.block, left)
            if word >= 2 * STORED or size > image.super.block:
                image.bad(f"a block of {size} bytes")
            if not size:
                yield bytes(wanted)
            else:
                data = image.read(at, size)
                if not word & STORED:
                    data = image.unpacked(data, wanted)
                if len(data) != wanted:
                    image.bad(f"a block has {len(data)} bytes instead of {wanted}")
                yield data
            at, left = at + size, left - wanted
        if left:
            # Read once: another thread may put its own there at any moment.
            number, data = self._fragment
            if number != inode.fragment:
                data = _fragment(image, inode.fragment)
                self._fragment = (inode.fragment, data)
            tail = memoryview(data)[inode.inner : inode.inner + left]
            if len(tail) != left:
                image.bad("a file goes past the end of its fragment")
            yield tail

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_image": None, "_fragment": (NONE, b"")}

    def __del__(self) -> None:
        if os is not None and self._image is not None:  # else the interpreter ends
            os.close(self._image.descriptor)


def _inode(image: Image, reference: int) -> _Inode:
    top = image.super
    place, offset = top.inode_table + (reference >> 16), reference & 0xFFFF
    if not top.inode_table <= place < top.directory_table:
        image.bad(f"no inode {reference}")
    data, place = image.metadata(place)
    if offset >= len(data):
        image.bad(f"no inode {reference}")
    parts = bytearray(data[offset:])

    def need(size: int) -> None:
        nonlocal place
        if size > image.most(top.inode_table, top.directory_table):
            image.bad("a file has more blocks than there is room for")
        while len(parts) < size:
            if place >= top.directory_table:
                image.bad("an inode ends past the end of its table")
            more, place = image.metadata(place)
            parts.extend(more)

    need(2)
    (kind,) = struct.unpack_from("<H", parts)
    if kind == 2:
        head = 32
        need(head)
        start, fragment, inner, length = struct.unpack_from("<4I", parts, 16)
    elif kind == 9:
        head = 56
        need(head)
        start, length, _, _, fragment, inner = struct.unpack_from("<3Q3I", parts, 16)
    else:
        image.bad(f"inode {reference} is no file")
    block = top.block
    blocks = length // block if fragment != NONE else -(-length // block)
    need(head + 4 * blocks)
    return _Inode(start, length, fragment, inner, struct.unpack_from(f"<{blocks}I", parts, head))


def _fragment(image: Image, number: int) -> bytes:
    """A whole fragment block."""
    if number >= image.super.fragments:
        image.bad(f"it has {image.super.fragments} fragments, and a file lies in number {number}")
    table, place = fragment_block(image, number // 512), number % 512 * 16
    if place + 16 > len(table):
        image.bad("its table of fragments is too short")
    at, word, _ = struct.unpack_from("<QII", table, place)
    size = word & (STORED - 1)
    if word >= 2 * STORED or size > image.super.block:
        image.bad(f"a fragment of {size} bytes")
    data = image.read(at, size)
    return data if word & STORED else image.unpacked(data, image.super.block)
