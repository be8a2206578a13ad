"""The inodes of files in a SquashFS image: where each one's bytes lie.

What the inodes of millions of files say is gathered at once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..index import Int64s
from .squashfs_blocks import NONE, STORED, Image

DIRECTORY, FILE, SYMLINK = 1, 2, 3
EXTENDED = 7  # what the number of an extended inode is larger by
_BASIC_FILE, _EXTENDED_FILE = 32, 56  # bytes before the list of blocks
# Sizes of blocks that are looked at together; bounds memory where files have many.
_TOGETHER = 1 << 22


@dataclass(frozen=True)
class Inodes:
    """The unpacked table."""

    image: Image
    data: bytearray
    starts: dict[int, int]

    def unpack(self, form: str, at: int) -> tuple[Any, ...]:
        try:
            return struct.unpack_from(form, self.data, at)
        except struct.error:
            self.image.bad("an inode ends past the end of its table")

    def kind(self, at: int) -> int:
        (kind,) = self.unpack("<H", at)
        return kind - EXTENDED if kind > EXTENDED else int(kind)


def spans(inodes: Inodes, places: Int64s, references: Int64s) -> tuple[Int64s, Int64s]:
    """Where files lie.

    Args:
        places: int64, of their inodes in the unpacked table.
        references: int64, of the same inodes, as SquashFS refers to them.

    Returns:
        offsets in the image, `~reference` where a file does not lie in one piece; lengths.
    """
    # Hard links share an inode, which is looked at once.
    image = inodes.image
    places, first, back = np.unique(places, return_index=True, return_inverse=True)
    references = references[first]
    data = np.frombuffer(inodes.data, np.uint8)
    if places[-1] + _BASIC_FILE > len(data):
        image.bad("an inode ends past the end of its table")
    # Views of the table as numbers, one at each byte: inodes are not aligned.
    words = np.ndarray((max(0, len(data) - 3),), "<u4", inodes.data, 0, (1,))
    longs = np.ndarray((max(0, len(data) - 7),), "<u8", inodes.data, 0, (1,))
    kind = words[places] & 0xFFFF
    extended = kind == FILE + EXTENDED
    if not (extended | (kind == FILE)).all():
        image.bad("a file's inode is of another kind")
    if (places[extended] + _EXTENDED_FILE > len(data)).any():
        image.bad("an inode ends past the end of its table")

    start, length = words[places + 16].astype(np.uint64), words[places + 28].astype(np.uint64)
    fragment, inner = words[places + 20].astype(np.int64), words[places + 24].astype(np.int64)
    blocks_at = places + _BASIC_FILE
    more = places[extended]
    start[extended], length[extended] = longs[more + 16], longs[more + 24]
    fragment[extended], inner[extended] = words[more + 44], words[more + 48]
    blocks_at[extended] = more + _EXTENDED_FILE
    if (start > image.super.used).any() or (length >= 1 << 62).any():
        image.bad("a file begins or ends past the end of it")
    offsets, lengths = start.astype(np.int64), length.astype(np.int64)

    block = image.super.block
    whole = fragment == NONE
    blocks = np.where(whole, -(-lengths // block), lengths // block)
    stop = blocks_at + 4 * blocks
    if (stop > np.append(places[1:], len(data))).any():
        image.bad("inodes overlap")
    one_piece = _plain(image, words, blocks_at, blocks, offsets, lengths) & whole
    offsets[lengths == 0] = 0

    small = ~whole & (blocks == 0) & (lengths > 0)
    if small.any():
        at, size = _fragments(image, fragment[small])
        stored = (size & STORED) != 0
        if (inner[small] + lengths[small] > np.where(stored, size ^ STORED, block)).any():
            image.bad("a file goes past the end of its fragment")
        offsets[small] = at + inner[small]
        one_piece[small] = stored
    one_piece |= lengths == 0
    return np.where(one_piece, offsets, ~references)[back], lengths[back]


def _plain(
    image: Image,
    words: npt.NDArray[np.uint32],
    at: Int64s,
    blocks: Int64s,
    offsets: Int64s,
    lengths: Int64s,
) -> npt.NDArray[np.bool_]:
    """Whether all blocks of each file are full and stored as they are."""
    block = image.super.block
    plain = np.zeros(len(at), np.bool_)
    having = np.flatnonzero(blocks)
    ends = np.cumsum(blocks[having])
    begin = 0
    while begin < len(having):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _TOGETHER, "right")))
        rows = having[begin:end]
        counts = blocks[rows]
        starts = np.cumsum(counts) - counts
        number = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        sizes = words[np.repeat(at[rows], counts) + 4 * number].astype(np.int64)
        bytes_of = sizes & (STORED - 1)
        if (sizes >= 2 * STORED).any() or (bytes_of > block).any():
            image.bad("a block of a file is larger than blocks are")
        expected = np.minimum(block, np.repeat(lengths[rows], counts) - block * number)
        plain[rows] = np.logical_and.reduceat(sizes == (expected | STORED), starts)
        if (offsets[rows] + np.add.reduceat(bytes_of, starts) > image.super.used).any():
            image.bad("a file ends past the end of it")
        begin = end
    return plain


def _fragments(image: Image, numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Where the given fragments begin, and the words that tell their sizes."""
    top = image.super
    wanted, back = np.unique(numbers, return_inverse=True)
    blocks = np.unique(wanted // 512)
    if wanted[-1] >= top.fragments:
        image.bad(f"it has {top.fragments} fragments, and a file lies in number {wanted[-1]}")
    found = np.empty((len(wanted), 2), np.int64)
    for number in blocks:
        rows = np.flatnonzero(wanted // 512 == number)
        table = fragment_block(image, int(number))
        entries = np.frombuffer(table, "<u8", len(table) // 16 * 2).reshape(-1, 2)
        inside = wanted[rows] % 512
        if inside[-1] >= len(entries):
            image.bad("its table of fragments is too short")
        at, size = entries[inside].T
        size = size & 0xFFFFFFFF
        if (at > top.used).any() or (size >= 2 * STORED).any():
            image.bad("a fragment lies past the end of it")
        found[rows, 0], found[rows, 1] = at, size
    bytes_of = found[:, 1] & (STORED - 1)
    if (found[:, 0] + bytes_of > top.used).any() or (bytes_of > top.block).any():
        image.bad("a fragment lies past the end of it")
    return found[back, 0], found[back, 1]


def fragment_block(image: Image, number: int) -> bytes:
    """A block of the table of fragments: 512 of them, 16 bytes each (the last block: the rest)."""
    (at,) = struct.unpack("<Q", image.read(image.super.fragment_table + 8 * number, 8))
    return image.metadata(at)[0]
