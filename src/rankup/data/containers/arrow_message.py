"""The messages of Arrow's IPC formats: where their parts lie.

A record batch is a small FlatBuffer (rows, and the place of each buffer) followed by its body. Here
the FlatBuffers of thousands of batches are read at once with numpy, since files with one row per
batch are common. Layout: arrow.apache.org/docs/format/Columnar.html, Message.fbs, File.fbs.

Errors are ValueErrors without the name of the file; the caller knows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..index import Int64s

MAGIC = b"ARROW1"
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of a stream, and of the batches of a file
_CONTINUED = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_VERSIONS = (3, 4)  # V4 and V5: since Arrow 0.8
# Of a footer's table: its vectors of blocks, each 24 bytes: offset, size of the metadata, body.
BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("", "<i4"), ("body", "<i8")])
# Batches whose metadata is looked at in one go; bounds memory.
_PART = 1 << 16

Bytes = npt.NDArray[np.uint8]


class Blocks(NamedTuple):
    """Where record batches lie in a file.

    Attributes:
        offset: int64 (b,), of the message's first byte.
        head: int64 (b,), bytes of its metadata with what stands before them.
        body: int64 (b,), bytes of its body.
        dictionaries: whether there are dictionaries between them.
    """

    offset: Int64s
    head: Int64s
    body: Int64s
    dictionaries: bool


@dataclass(frozen=True)
class Batches:
    """What the metadata of some record batches says.

    Attributes:
        rows: int64 (b,).
        body: int64 (b,), where each body lies in the file.
        nodes: int64 (b, nodes, 2), of each column its length and number of nulls.
        buffers: int64 (b, buffers, 2), place in the body and length; inside it, that is checked.
    """

    rows: Int64s
    body: Int64s
    nodes: Int64s
    buffers: Int64s


def values(data: Bytes, at: Int64s, kind: str) -> npt.NDArray[Any]:
    """One number at each of many places, aligned or not."""
    dtype = np.dtype(kind)
    if not len(at):
        return np.empty(0, dtype)
    if at.min() < 0 or at.max() > len(data) - dtype.itemsize:
        raise ValueError("a part of it lies outside of the file")
    shape = (len(data) - dtype.itemsize + 1, dtype.itemsize)
    windows = np.lib.stride_tricks.as_strided(data, shape, (1, 1), writeable=False)
    return windows[at].view(dtype)[:, 0]


def _integers(data: Bytes, at: Int64s, kind: str) -> Int64s:
    return values(data, at, kind).astype(np.int64)


def slot(data: Bytes, table: Int64s, number: int) -> Int64s:
    """Where a member of each table lies; -1 where the table does not have it."""
    vtable = table - _integers(data, table, "<i4")
    size = _integers(data, vtable, "<u2")
    there = size >= 4 + 2 * number + 2
    offset = _integers(data, vtable + np.where(there, 4 + 2 * number, 0), "<u2")
    return np.where(there & (offset > 0), table + offset, -1)


def _scalar(data: Bytes, table: Int64s, number: int, kind: str) -> Int64s:
    """A number of each table; 0, which is never stored, where it does not have it."""
    at = slot(data, table, number)
    found = np.zeros(len(table), np.int64)
    found[at >= 0] = _integers(data, at[at >= 0], kind)
    return found


def behind(data: Bytes, table: Int64s, number: int, what: str) -> Int64s:
    """Where each table's reference leads to."""
    at = slot(data, table, number)
    if (at < 0).any():
        raise ValueError(f"{what} is missing")
    return at + _integers(data, at, "<u4")


def root(data: Bytes, at: Int64s) -> Int64s:
    """Where the first table of each FlatBuffer lies."""
    return at + _integers(data, at, "<u4")


def _starts(data: Bytes, offset: Int64s, head: Int64s) -> Int64s:
    """Where the FlatBuffers of messages begin: files before Arrow 0.15 have no first marker."""
    prefix = np.where(values(data, offset, "<u4") == _CONTINUED, 8, 4)
    if (_integers(data, offset + prefix - 4, "<i4") > head - prefix).any():
        raise ValueError("a record batch is longer than the footer says")
    return offset + prefix


def is_file(data: Bytes) -> bool:
    """Whether this begins as a file does, not as a stream."""
    return data[: len(MAGIC)].tobytes() == MAGIC


def footer(data: Bytes) -> tuple[int, int]:
    """Bytes [start, stop) of the footer of a file."""
    stop = len(data) - len(MAGIC) - 4
    if stop < 8 or data[stop + 4 :].tobytes() != MAGIC:
        raise ValueError("its end is missing: it was cut short, or never finished")
    length = int(data[stop : stop + 4].view("<i4")[0])
    if not 0 < length <= stop - 8:
        raise ValueError("its footer lies outside of the file")
    return stop - length, stop


def in_file(data: Bytes) -> Blocks:
    """The record batches that a file's footer lists."""
    start, _ = footer(data)
    table = root(data, np.array([start]))
    schema = behind(data, table, 1, "the schema")
    if _scalar(data, schema, 0, "<i2")[0] != 0:
        raise ValueError("it was written on a big-endian machine")
    dictionaries = slot(data, table, 2)[0] >= 0 and len(_blocks(data, table, 2, start)) > 0
    found = _blocks(data, table, 3, start)
    offset, head, body = (found[name].astype(np.int64) for name in ("offset", "head", "body"))
    # One after the other: many that share bytes would be a bomb.
    order = np.argsort(offset, kind="stable")
    ends = (offset + head + body)[order]
    if (offset[order][1:] < ends[:-1]).any():
        raise ValueError("its record batches overlap")
    return Blocks(offset, head, body, bool(dictionaries))


def _blocks(data: Bytes, table: Int64s, number: int, limit: int) -> npt.NDArray[Any]:
    if slot(data, table, number)[0] < 0:
        return np.empty(0, BLOCK)
    at = int(behind(data, table, number, "the list of batches")[0])
    count = int(_integers(data, np.array([at]), "<u4")[0])
    if at + 4 + count * BLOCK.itemsize > len(data):
        raise ValueError("its list of batches ends outside of the file")
    found = np.frombuffer(data[at + 4 : at + 4 + count * BLOCK.itemsize].tobytes(), BLOCK)
    for name in ("offset", "head", "body"):
        if count and (found[name].min() < 0 or found[name].max() > limit):
            raise ValueError("a record batch lies outside of the file")
    if count and (found["offset"] + found["head"] + found["body"]).max() > limit:
        raise ValueError("a record batch lies outside of the file")
    return found


def in_stream(data: Bytes) -> Blocks:
    """The record batches of a stream, found by walking over it. It may end without a last mark."""
    at, found, dictionaries, first = 0, [], False, True
    while at + 4 <= len(data):
        length = int(data[at : at + 4].view("<u4")[0])
        prefix = 4
        if length == _CONTINUED:
            if at + 8 > len(data):
                break
            length, prefix = int(data[at + 4 : at + 8].view("<u4")[0]), 8
        if length == 0:
            break
        head = prefix + length
        if at + head > len(data):
            raise ValueError("its last message is cut short")
        kind, body = _header(data, at + prefix)
        if (kind == _SCHEMA) != first:
            raise ValueError("it does not begin with a schema, or has two")
        if not 0 <= body <= len(data) - at - head:
            raise ValueError("its last message is cut short")
        if kind == _BATCH:
            found.append((at, head, body))
        dictionaries |= kind == _DICTIONARY
        first = False
        at += head + body
    if first:
        raise ValueError("it does not begin with a schema")
    offset, head_, body_ = np.array(found, np.int64).reshape(-1, 3).T
    return Blocks(offset, head_, body_, dictionaries)


def _header(data: Bytes, at: int) -> tuple[int, int]:
    """Kind of a message and bytes of its body; of a schema, that it is one we can read."""
    table = root(data, np.array([at]))
    kind = int(_scalar(data, table, 1, "<u1")[0])
    if kind == _SCHEMA:
        schema = behind(data, table, 2, "the schema")
        if _scalar(data, schema, 0, "<i2")[0] != 0:
            raise ValueError("it was written on a big-endian machine")
    return kind, int(_scalar(data, table, 3, "<i8")[0])


def rows(data: Bytes, blocks: Blocks) -> Int64s:
    """The number of rows of each batch, int64 (b,)."""
    found = [_scalar(data, batch, 0, "<i8") for _, batch in _parts(data, blocks)]
    counts = np.concatenate([np.empty(0, np.int64), *found])
    # More than 2**40 rows are no file: sums of such would overflow.
    if len(counts) and (counts.min() < 0 or counts.max() > 1 << 40):
        raise ValueError("a record batch has an absurd number of rows")
    return counts


def compressed(data: Bytes, blocks: Blocks) -> bool:
    """Whether the buffers of some batch are compressed, and so no data."""
    return any((slot(data, batch, 3) >= 0).any() for _, batch in _parts(data, blocks))


def _parts(data: Bytes, blocks: Blocks) -> Iterator[tuple[slice, Int64s]]:
    """Some ten thousand batches at a time, and where the table of each lies."""
    for first in range(0, len(blocks.offset), _PART):
        part = slice(first, first + _PART)
        table = root(data, _starts(data, blocks.offset[part], blocks.head[part]))
        if not np.isin(_scalar(data, table, 0, "<i2"), _VERSIONS).all():
            raise ValueError("it is of a version of the format that is not known")
        if (_scalar(data, table, 1, "<u1") != _BATCH).any():
            raise ValueError("a record batch is none")
        if (_scalar(data, table, 3, "<i8") != blocks.body[part]).any():
            raise ValueError("the size of a record batch is not what the footer says")
        yield part, behind(data, table, 2, "a record batch")


def batches(data: Bytes, blocks: Blocks, nodes: int, buffers: int) -> Iterator[Batches]:
    """What the metadata of all batches says, some ten thousand batches at a time.

    Args:
        nodes, buffers: how many the schema implies.
    """
    for part, batch in _parts(data, blocks):
        size = blocks.body[part]
        found = Batches(
            _scalar(data, batch, 0, "<i8"),
            blocks.offset[part] + blocks.head[part],
            _pairs(data, batch, 1, nodes, "columns"),
            _pairs(data, batch, 2, buffers, "buffers"),
        )
        at, length = found.buffers[..., 0], found.buffers[..., 1]
        room = size[:, None]
        # Compared without a sum: hostile numbers would overflow.
        if ((at < 0) | (length < 0) | (at > room) | (length > room - at)).any():
            raise ValueError("a buffer lies outside of its record batch")
        yield found


def _pairs(data: Bytes, batch: Int64s, number: int, count: int, what: str) -> Int64s:
    """A vector of two int64 per entry, of each batch: (b, count, 2)."""
    if not count:
        return np.empty((len(batch), 0, 2), np.int64)
    at = behind(data, batch, number, f"its number of {what}")
    if (_integers(data, at, "<u4") != count).any():
        raise ValueError(f"a record batch has other {what} than the schema says")
    if not len(at):
        return np.empty((0, count, 2), np.int64)
    return values(data, at + 4, f"V{count * 16}").view("<i8").reshape(-1, count, 2)
