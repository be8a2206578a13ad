"""JSON lines of a file that a killed program or a stranger may have left: nothing in it can crash.

A file is read in chunks, so that memory stays bounded whatever its size; what is no JSON object
comes as None, to be counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from ..base.files import open_regular
from ..base.text import encodable

CHUNK = 4 << 20  # bytes read at once
LONGEST = 1 << 20  # no line of ours comes near
_TOO_LONG = b"?"  # stands for such a line: no JSON object

Record = dict[str, Any]


def blocks(path: Path, chunk: int = CHUNK) -> Iterator[bytes]:
    """The file's whole lines in order, many at once; the last one may lack its end.

    In place of a line that is far too long stands one that is no JSON.

    Raises:
        OSError: it cannot be read, or is no regular file (a pipe would never answer).
    """
    with open_regular(path) as file:
        rest = b""
        skipping = False
        while piece := file.read(chunk):
            if skipping:
                end = piece.find(b"\n")
                if end < 0:
                    continue
                piece, skipping = _TOO_LONG + piece[end:], False
            text = rest + piece
            end = text.rfind(b"\n") + 1
            rest = text[end:]
            if len(rest) > LONGEST:
                rest, skipping = b"", True
            if end:
                yield text[:end]
        if rest or skipping:
            yield _TOO_LONG if skipping else rest


def records(text: bytes) -> list[Record | None]:
    """What the lines of a text say; None for one that is no JSON object; empty ones are left out.

    NaN and Infinity are numbers.
    """
    lines = [line if len(line) <= LONGEST else _TOO_LONG for line in text.split(b"\n") if line]
    try:
        # One document is read twice as fast as its lines.
        found = orjson.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        found = []
    if len(found) != len(lines):
        found = [one(line) for line in lines]
    return [record if isinstance(record, dict) else None for record in found]


def one(line: bytes) -> Any:
    """What a line says; None for one that is no JSON. Its texts can be encoded."""
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    try:
        text = line.decode("utf-8-sig")
        found = json.loads(text)  # Python writes NaN, which is no JSON
        return _encodable(found) if "\\u" in text else found
    except (ValueError, RecursionError):
        return None


def _encodable(value: Any) -> Any:
    """The value with texts that can be written: orjson takes no lone surrogate, json does."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {encodable(name): _encodable(item) for name, item in value.items()}
    return value
