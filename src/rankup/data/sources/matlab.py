"""The one MATLAB file that matters here: `meta.mat` of ImageNet's devkit, a table of its classes.

Format: "MAT-File Format", version 5, by MathWorks.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import BadContainer

_LONGEST = 64 << 20
_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _CHAR = 2, 4
# Codes of numbers and text -> struct's letter.
_TYPES = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q", 16: "B"}

Cell = str | list[float]


def table(path: Path, name: str) -> list[dict[str, Cell]]:
    """The rows of a struct array; of their fields those that are text or numbers.

    Args:
        name: of the variable.

    Raises:
        BadContainer: no MATLAB 5 file, damaged, or without that variable.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        if data[126:128] != b"IM":
            raise ValueError("no little-endian MATLAB 5 file")
        for code, body in _elements(data[128:]):
            if code == _COMPRESSED:
                unpacked = zlib.decompressobj().decompress(body, _LONGEST)
                code, body = next(_elements(unpacked))
            if code == _MATRIX:
                parts = list(_elements(body))
                if parts[2][1].decode() == name and parts[0][1][0] == _STRUCT:
                    return _rows(parts)
    except (ValueError, IndexError, KeyError, struct.error, zlib.error, StopIteration) as error:
        raise BadContainer(f"{path} is no MATLAB file, or a damaged one: {error}") from None
    raise BadContainer(f"{path} has no table {name!r}: `meta.mat` of the devkit expected")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of one after another; small ones have both in one word."""
    at = 0
    while at + 8 <= len(data):
        code, size = struct.unpack_from("<II", data, at)
        if code >> 16:
            yield code & 0xFFFF, data[at + 4 : at + 4 + min(code >> 16, 4)]
            at += 8
            continue
        if at + 8 + size > len(data):
            raise ValueError("an element ends past the end")
        yield code, data[at + 8 : at + 8 + size]
        # All but compressed ones are padded to 8 bytes.
        at += 8 + (size if code == _COMPRESSED else -(-size // 8) * 8)


def _rows(parts: list[tuple[int, bytes]]) -> list[dict[str, Cell]]:
    # Flags, dimensions, name, length of a field's name, their names, then row by row each field.
    (width,) = struct.unpack("<i", parts[3][1])
    if width <= 0:
        raise ValueError("names of no length")
    names = [
        parts[4][1][at : at + width].rstrip(b"\0").decode()
        for at in range(0, len(parts[4][1]), width)
    ]
    cells = parts[5:]
    if not names or len(cells) % len(names):
        raise ValueError("its rows are not of one length")
    return [
        {
            name: value
            for name, (_, body) in zip(names, cells[at : at + len(names)], strict=True)
            if (value := _cell(body)) is not None
        }
        for at in range(0, len(cells), len(names))
    ]


def _cell(body: bytes) -> Cell | None:
    parts = list(_elements(body))
    if len(parts) < 4 or parts[3][0] not in _TYPES:
        return [] if len(parts) == 3 else None
    code, raw = parts[3]
    letter = _TYPES[code]
    values = struct.unpack(f"<{len(raw) // struct.calcsize(letter)}{letter}", raw)
    if parts[0][1][0] != _CHAR:
        return list(map(float, values))
    return raw.decode() if code == 16 else "".join(chr(one) for one in values)
