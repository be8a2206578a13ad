"""The headers of tar members, thousands at a time.

What the ustar header has no room for stands in a PAX header before it: names of more than 100
bytes or beyond ASCII, sizes from 8 GiB, and the true key of a sample that is written under another
name. Mode, owner and time are the same for all, so that the same samples give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..index import Int64s

BLOCK = 512
KEY = b"RANKUP.key"
# A tar ends with two blocks of zeros, and is a whole number of records of 20 blocks.
END = 2 * BLOCK
RECORD = 20 * BLOCK

_NAME = 100
_LARGE = 8**11
_SIZE = slice(124, 135)
_SUM = slice(148, 154)
_PAX_NAME = b"././@PaxHeader"

Blocks = npt.NDArray[np.uint8]


def padded(size: int) -> int:
    """A size, rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def fits(name: bytes, size: int) -> bool:
    """Whether a member needs no PAX header but for its key."""
    return len(name) <= _NAME and size < _LARGE and name.isascii()


def length(name: bytes, size: int, key: bytes | None = None) -> int:
    """Bytes of the headers of one member, PAX included."""
    if key is None and fits(name, size):
        return BLOCK
    return BLOCK + BLOCK + padded(len(_records(name, size, key)))


def headers(names: Sequence[bytes], sizes: Int64s, keys: Mapping[int, bytes]) -> list[bytes]:
    """The headers of regular members, of each all that stands before its data.

    Args:
        names: relative paths.
        sizes: int64, bytes of each.
        keys: row -> true key, for those that are written under another name.
    """
    blocks = _blocks(names, np.where(sizes < _LARGE, sizes, 0), b"0").tobytes()
    result = [blocks[at : at + BLOCK] for at in range(0, len(blocks), BLOCK)]
    listed = sizes.tolist()
    odd = [
        row
        for row, (name, size) in enumerate(zip(names, listed, strict=True))
        if not fits(name, size) or row in keys
    ]
    for row in odd:
        result[row] = _pax(_records(names[row], listed[row], keys.get(row))) + result[row]
    return result


def _blocks(names: Sequence[bytes], sizes: Int64s, kind: bytes) -> Blocks:
    """uint8 (n, 512): ustar headers. Names are cut to 100 bytes."""
    rows = np.empty((len(names), BLOCK), np.uint8)
    rows[:] = np.frombuffer(_template(kind), np.uint8)
    cells = np.array(names, dtype=f"S{_NAME}") if names else np.empty(0, f"S{_NAME}")
    rows[:, :_NAME] = cells.view(np.uint8).reshape(len(names), _NAME)
    rows[:, _SIZE] = _octal(sizes, 11)
    # The field itself counts as spaces, as which the template has it.
    rows[:, _SUM] = _octal(rows.sum(axis=1, dtype=np.int64), 6)
    rows[:, 154] = 0
    return rows


def _octal(values: Int64s, digits: int) -> Blocks:
    shifts = np.arange(3 * (digits - 1), -1, -3)
    return (((values[:, None] >> shifts) & 7) + ord("0")).astype(np.uint8)


def _template(kind: bytes) -> bytes:
    fields = (
        bytes(_NAME),
        b"0000644\0",  # mode
        b"0000000\0" * 2,  # owner, group
        b"0" * 11 + b"\0",  # size
        b"0" * 11 + b"\0",  # time
        b" " * 8,  # sum
        kind,
        bytes(100),  # target of a link
        b"ustar\0" + b"00",
        bytes(64),  # names of owner and group
        b"0000000\0" * 2,  # device
        bytes(155 + 12),
    )
    return b"".join(fields)


def _pax(records: bytes) -> bytes:
    header = _blocks([_PAX_NAME], np.array([len(records)]), b"x").tobytes()
    return header + records + bytes(-len(records) % BLOCK)


def _records(name: bytes, size: int, key: bytes | None) -> bytes:
    found = []
    if key is not None:
        found.append((KEY, key))
    if len(name) > _NAME or not name.isascii():
        found.append((b"path", name))
    if size >= _LARGE:
        found.append((b"size", b"%d" % size))
    if not all(_is_utf8(value) for _, value in found):
        found.insert(0, (b"hdrcharset", b"BINARY"))
    return b"".join(_record(keyword, value) for keyword, value in found)


def _record(keyword: bytes, value: bytes) -> bytes:
    r"""`27 path=…\n`, with its own length, which counts its own digits."""
    rest = len(keyword) + len(value) + 3
    total = rest
    while total != rest + len(str(total)):
        total = rest + len(str(total))
    return b"%d %s=%s\n" % (total, keyword, value)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
