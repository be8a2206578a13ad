"""Lines of `metrics.jsonl` and of journals: JSON objects that a script or a sampler appends.

A file is read in chunks, so that memory stays bounded whatever its size; what is no JSON object
comes as None, to be counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..base.files import open_regular
from ..base.text import encodable

CHUNK = 4 << 20  # bytes read at once

Record = dict[str, Any]


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the file's whole lines in order, many at once; the last one may lack its end.

    Raises:
        OSError: it cannot be read, or is no regular file (a pipe would never answer).
    """
    with open_regular(path) as file:
        rest = b""
        while piece := file.read(CHUNK):
            whole, newline, last = piece.rpartition(b"\n")
            if newline:
                yield rest + whole
            rest = last if newline else rest + piece
        if rest:
            yield rest


def records(text: bytes) -> list[Record | None]:
    """Return what lines say; None for one that is no JSON object. Empty ones are left out."""
    lines = [line for line in text.split(b"\n") if line]
    try:
        # One document is read twice as fast as its lines.
        found = json.loads(b"[" + b",".join(lines) + b"]") if b"\\u" not in text else []
    except (ValueError, RecursionError):
        found = []
    if len(found) != len(lines):
        found = [one(line) for line in lines]
    return [record if isinstance(record, dict) else None for record in found]


def one(line: bytes) -> Any:
    """Return what a line says; None for one that is no JSON. Its texts can be encoded."""
    try:
        text = line.decode("utf-8-sig")
        found = json.loads(text)
        return _encodable(found) if "\\u" in text else found
    except (ValueError, RecursionError):
        return None


def _encodable(value: Any) -> Any:
    """Return the value with texts that can be written, without lone surrogates."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {encodable(name): _encodable(item) for name, item in value.items()}
    return value


def number(value: object) -> float | None:
    """Return a finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def is_checkpoint(record: Mapping[str, Any]) -> bool:
    """Return whether a line says that the run was saved; with a `step` it is the script's."""
    return "checkpoint" in record and "stall" in record and "step" not in record


def is_final(record: Mapping[str, Any]) -> bool:
    """Return whether a line says that the run came to its end, as its last one does.

    A script may call a value of its steps `final`; but ours has results of the whole run, and no
    loss.
    """
    return (
        record.get("final") is True
        and "loss" not in record
        and any(name in record for name in ("valid_loss", "test_loss", "exchange"))
    )
