"""Files of JSON lines in the work folder: what is to be said of images at the end of a pack."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...base.files import write_atomic
from .work import Work


def add(path: Path, records: list[dict[str, Any]]) -> None:
    """Append records to a file."""
    data = _lines(records)
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            data = b"\n" + data  # a kill, or a full disk, has torn the line before
        while data:
            data = data[file.write(data) :]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """Write a file, old or new."""
    write_atomic(path, _lines(records))


def read(work: Work) -> Iterator[dict[str, Any]]:
    """All records of all files; a line that a kill has torn is left out."""
    for path in sorted(work.part.glob("noted*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(one)}\n" for one in records).encode()
