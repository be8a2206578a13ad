"""The files of a SquashFS image: their paths, from its directories, and where their bytes lie."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..index import Int64s
from ..keys import LONGEST, safe, shown
from ..strings import Strings
from .squashfs_blocks import Image
from .squashfs_inodes import DIRECTORY, EXTENDED, FILE, SYMLINK, Inodes, spans

_KINDS = {4: "a block device", 5: "a character device", 6: "a pipe", 7: "a socket"}
_HEAD = struct.Struct("<III")  # of a run of names: how many, block of their inodes, a number
_ENTRY = struct.Struct("<HhHH")
_RUN = 256


@dataclass(frozen=True)
class Files:
    """The regular files of an image, in the order of a walk by directory.

    Attributes:
        paths: relative to the root.
        references: int64, of their inodes: the block's place in the table << 16 | the place in it.
        offset: int64 in the image; `~reference` where the bytes do not lie in one piece.
        length: int64 in bytes.
        symlinks: how many symbolic links there are, all of which stay within the image.
    """

    paths: Strings
    references: Int64s
    offset: Int64s
    length: Int64s
    symlinks: int


def files(image: Image) -> Files:
    """Find all files.

    Raises:
        BadContainer: damaged or hostile: tables outside of the image, directories in a circle,
            names that are no names, devices, links that lead out of it.
    """
    top = image.super
    inodes = Inodes(image, *image.table(top.inode_table, top.directory_table))
    paths, references, places, symlinks = _walk(inodes)
    if not paths:
        none = np.empty(0, np.int64)
        return Files(Strings.of([]), none, none, none, symlinks)
    reference = np.array(references, np.int64)
    offset, length = spans(inodes, np.array(places, np.int64), reference)
    return Files(Strings.of(paths), reference, offset, length, symlinks)


def _walk(inodes: Inodes) -> tuple[list[bytes], list[int], list[int], int]:
    image = inodes.image
    listings = _Listings(image)
    paths: list[bytes] = []
    references: list[int] = []
    places: list[int] = []
    symlinks = 0
    block, offset = image.super.root >> 16, image.super.root & 0xFFFF
    if block not in inodes.starts:
        image.bad("its root is no inode")
    root = inodes.starts[block] + offset
    seen = {root}
    waiting = deque([(b"", root)])
    while waiting:
        folder, at = waiting.popleft()
        for name, block, offset, place, kind in _entries(inodes, listings.of(inodes, at)):
            path = folder + name
            if kind == FILE:
                if not safe(path):
                    image.bad(f"a file is named {shown(path)}")
                paths.append(path)
                references.append(block << 16 | offset)
                places.append(place)
            elif kind == DIRECTORY:
                if place in seen:
                    image.bad(f"the directory {shown(path)} is in it twice, or within itself")
                if len(path) >= LONGEST:
                    image.bad(f"the directory {shown(path)} lies too deep")
                seen.add(place)
                waiting.append((path + b"/", place))
            elif kind == SYMLINK:
                _check_link(inodes, path, place)
                symlinks += 1
            else:
                image.bad(f"{shown(path)} is {_KINDS.get(kind, f'an entry of kind {kind}')}")
    return paths, references, places, symlinks


def _entries(inodes: Inodes, data: bytes) -> Iterator[tuple[bytes, int, int, int, int]]:
    """Of each name of a directory: itself, its inode's block, place there and in all, its kind."""
    image, starts = inodes.image, inodes.starts
    at, end, last = 0, len(data), b""
    entry = _ENTRY.unpack_from
    try:
        while at < end:
            count, block, _ = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            start = starts.get(block)
            if start is None or count >= _RUN:
                image.bad("a directory refers to no inode")
            for _ in range(count + 1):
                offset, _, kind, size = entry(data, at)
                at += 9 + size
                name = data[at - size - 1 : at]
                # Names are sorted in each directory: none is there twice.
                if name <= last or b"/" in name or len(name) != size + 1:
                    image.bad(f"a directory has the name {shown(name)} after {shown(last)}")
                last = name
                yield name, block, offset, start + offset, kind
    except struct.error:
        image.bad("a directory ends within a name")


class _Listings:
    """The blocks of the table of directories, each unpacked once."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._blocks: dict[int, tuple[bytes, int]] = {}
        self._unpacked = self._listed = 0
        top = image.super
        self._most = image.most(top.directory_table, top.used)

    def of(self, inodes: Inodes, at: int) -> bytes:
        """What the directory lists whose inode stands at a place of the inodes."""
        image = self._image
        (kind,) = inodes.unpack("<H", at)
        if kind == DIRECTORY:
            block, _, size, offset = inodes.unpack("<IIHH", at + 16)
        elif kind == DIRECTORY + EXTENDED:
            size, block, _, _, offset = inodes.unpack("<IIIHH", at + 20)
        else:
            image.bad("a directory's inode is of another kind")
        size -= 3  # it counts `.` and `..`, which are not listed
        if size <= 0:
            return b""
        place = image.super.directory_table + block
        parts, have = [], -offset
        while have < size:
            if place not in self._blocks:
                self._blocks[place] = found = image.metadata(place)
                self._unpacked += len(found[0])
            data, place = self._blocks[place]
            parts.append(data)
            have += len(data)
            # Directories share no bytes: all of them have no more than their blocks.
            if self._unpacked > self._most:
                image.bad("its directories would unpack to much more than it has")
        self._listed += size
        if self._listed > self._unpacked:
            image.bad("its directories overlap")
        return b"".join(parts)[offset : offset + size]


def _check_link(inodes: Inodes, path: bytes, at: int) -> None:
    """Links are not followed, and those that lead out of the tree are a reason for distrust."""
    if inodes.kind(at) != SYMLINK:
        inodes.image.bad(f"{shown(path)} has an inode of another kind")
    (size,) = inodes.unpack("<I", at + 20)
    target = bytes(inodes.data[at + 24 : at + 24 + size])
    depth = path.count(b"/")
    for part in target.split(b"/"):
        depth += -1 if part == b".." else part not in (b"", b".")
        if depth < 0:
            break
    if not 0 < len(target) == size <= 65535 or target.startswith(b"/") or depth < 0:
        inodes.image.bad(f"the symbolic link {shown(path)} leads out of it, to {shown(target)}")
