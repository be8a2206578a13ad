"""The names and headers of tar members, thousands at a time.

WebDataset cuts a name at the first dot of its base name and takes neighbours with equal stems for
one sample. A key for which that would go wrong is written under another name, in which the dots of
its base name are `%2E`; the key itself stands in the member's PAX header.

What the ustar header has no room for stands in a PAX header before it: names of more than 100
bytes or beyond ASCII, sizes from 8 GiB, and the true key of a sample that is written under another
name. Mode, owner and time are the same for all, so that the same samples give the same bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..index import Int64s
from ..strings import Strings
from .grouping import LABEL, cut

BLOCK = 512
KEY = b"RANKUP.key"
# A tar ends with two blocks of zeros, and is a whole number of records of 20 blocks.
END = 2 * BLOCK
RECORD = 20 * BLOCK

_NAME = 100
_LARGE = 8**11
_MODE = slice(100, 107)
_SIZE = slice(124, 135)
_SUM = slice(148, 154)
_TYPE = 156
_DEVICE = slice(329, 345)

# What has no extension gets one: WebDataset passes over a member without.
BARE = b"data"
# One dot in the base name, with something on both sides. `%` is of our own names; `.` in
# WebDataset's pattern is no line end; what begins with `__` it takes for its own.
_LONE = re.compile(rb"(?!__)(?:[^%\n]*/)?[^/.%\n]+\.(?!__)[^/.%\n]+")
_STEM = re.compile(rb"(?!__)(?:[^%\n]*/)?[^/.%\n]+")

_TEMPLATE = b"".join(
    (
        bytes(_NAME),
        b"0000644\0",  # mode
        b"0000000\0" * 2,  # owner, group
        b"0" * 11 + b"\0",  # size
        b"0" * 11 + b"\0",  # time
        b" " * 8,  # sum
        b"0",  # a file
        bytes(100),  # target of a link
        b"ustar\0" + b"00",
        bytes(64),  # names of owner and group
        b"0000000\0" * 2,  # device
        bytes(155 + 12),
    )
)

Blocks = npt.NDArray[np.uint8]


def padded(size: int) -> int:
    """A size, rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def length(name: bytes, size: int, key: bytes | None = None) -> int:
    """Bytes of the headers of one member, PAX included."""
    records = _records(name, size, key)
    return 2 * BLOCK + padded(len(records)) if records else BLOCK


def headers(names: Sequence[bytes], sizes: Int64s, keys: Mapping[int, bytes]) -> list[bytes]:
    """The headers of regular members, of each all that stands before its data.

    Args:
        names: relative paths.
        sizes: int64, bytes of each.
        keys: row -> true key, for those that are written under another name.
    """
    odd = {
        row: records
        for row, (name, size) in enumerate(zip(names, sizes.tolist(), strict=True))
        if (records := _records(name, size, keys.get(row)))
    }
    blocks = _blocks([_ascii(name) for name in names], np.where(sizes < _LARGE, sizes, 0))
    blocks[list(odd), _DEVICE] = 0
    result = _cut(blocks)
    lengths = np.array([len(one) for one in odd.values()], np.int64)
    pax = _blocks([b"././@PaxHeader"] * len(odd), lengths)
    pax[:, _DEVICE] = 0
    pax[:, _MODE] = ord("0")
    pax[:, _TYPE] = ord("x")
    for (row, records), head in zip(odd.items(), _cut(pax), strict=True):
        result[row] = head + records.ljust(padded(len(records)), b"\0") + result[row]
    return result


def _records(name: bytes, size: int, key: bytes | None) -> bytes:
    """The PAX records of a member, as `tarfile` has them; empty where a ustar header says all."""
    found = []
    if key is not None:
        found.append((KEY, key))
    if len(name) > _NAME or not name.isascii():
        found.append((b"path", name))
    if size >= _LARGE:
        found.append((b"size", b"%d" % size))
    if not found:
        return b""
    try:
        b"".join(value for _, value in found).decode()
    except UnicodeDecodeError:
        found.insert(0, (b"hdrcharset", b"BINARY"))
    return b"".join(_record(word, value) for word, value in found)


def _record(word: bytes, value: bytes) -> bytes:
    """A PAX record, which begins with its own length."""
    rest = len(word) + len(value) + 3
    total = rest + len(str(rest))
    total = rest + len(str(total))
    return b"%d %s=%s\n" % (total, word, value)


def _ascii(name: bytes) -> bytes:
    """A name as a ustar header has it: a question mark for each character that is not ASCII."""
    return (
        name if name.isascii() else name.decode(errors="surrogateescape").encode("ascii", "replace")
    )


def _cut(rows: Blocks) -> list[bytes]:
    """Each header with its sum, for which the field itself counts as spaces."""
    rows[:, _SUM] = _octal(rows.sum(axis=1, dtype=np.int64), 6)
    rows[:, 154] = 0
    data = rows.tobytes()
    return [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]


def _blocks(names: Sequence[bytes], sizes: Int64s) -> Blocks:
    """uint8 (n, 512): ustar headers without their sums. Names are cut to 100 bytes."""
    rows = np.empty((len(names), BLOCK), np.uint8)
    rows[:] = np.frombuffer(_TEMPLATE, np.uint8)
    cells = np.array(names, dtype=f"S{_NAME}") if names else np.empty(0, f"S{_NAME}")
    rows[:, :_NAME] = cells.view(np.uint8).reshape(len(names), _NAME)
    rows[:, _SIZE] = _octal(sizes, 11)
    return rows


def _octal(values: Int64s, digits: int) -> Blocks:
    shifts = np.arange(3 * (digits - 1), -1, -3)
    return (((values[:, None] >> shifts) & 7) + ord("0")).astype(np.uint8)


def lone_names(keys: Strings, splits: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """Row -> name, for the samples of one field whose name is not their key.

    Args:
        splits: start and stop of each; keys are unique in one.
    """
    changed: dict[int, bytes] = {}
    for start, stop in splits:
        names = [keys[row] for row in range(start, stop)]
        stems = [cut(name)[0] for name in names]
        often = Counter(stems) if len(set(stems)) < len(stems) else {}
        for row, (name, stem) in enumerate(zip(names, stems, strict=True), start):
            if often.get(stem, 1) > 1 or not _LONE.fullmatch(name) or _is_label(name):
                if often.get(stem, 1) == 1 and _STEM.fullmatch(name):
                    changed[row] = name + b"." + BARE
                else:
                    changed[row] = _escaped(name) + b"." + _extension(name)
    return changed


def stem_names(keys: Strings) -> dict[int, bytes]:
    """Row -> stem, for the samples of several fields whose stem is not their key."""
    return {row: _escaped(key) for row, key in enumerate(keys) if not _STEM.fullmatch(key)}


def _is_label(name: bytes) -> bool:
    return name[-4:].lower() == b"." + LABEL.encode()


def _escaped(name: bytes) -> bytes:
    """No two keys give the same, and none gives what is a stem that needs no change."""
    folder, slash, base = name.rpartition(b"/")
    folder = folder.replace(b"%", b"%25").replace(b"\n", b"%0A")
    base = base.replace(b"%", b"%25").replace(b"\n", b"%0A").replace(b".", b"%2E")
    result = folder + slash + base
    if result.startswith(b"__"):
        result = b"%5F" + result[1:]
    return result if b"%" in result else result + b"%"


def _extension(name: bytes) -> bytes:
    found = name[name.rfind(b"/") + 1 :].rpartition(b".")[2] if b"." in name else b""
    plain = re.fullmatch(rb"(?!__)[A-Za-z0-9_]{1,16}", found)
    return found if plain and found.lower() != LABEL.encode() else BARE
