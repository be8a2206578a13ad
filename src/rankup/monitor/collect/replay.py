"""Plays a recording as if it were being made: the same lines, their times moved to now."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.text import say
from .. import jsonl
from ..lines import FOLDER
from ..values import number
from . import alone
from .ending import Ending
from .node import safe
from .writer import open_own

_CHUNK = 256 << 10  # bytes read at once
_TIMES = ("t",)
_SPANS = ("dt", "every")


@dataclass(frozen=True)
class Replay:
    """What is played.

    Attributes:
        file: a node's recording.
        run: the run directory that it is played into.
        speed: so many times as fast.
        parent: see `sampler.Options`.
    """

    file: Path
    run: Path
    speed: float = 1.0
    parent: int | None = None

    def __post_init__(self) -> None:
        if not 0.01 <= self.speed <= 1e6:
            raise UserError(f"--speed {self.speed:g} is no factor from 0.01 to 1000000")
        if not self.run.is_dir():
            raise UserError(f"{str(self.run)!r} is no run directory; its path is the argument")


def replay(asked: Replay) -> int:
    """Play to the end, or until the run ends; the exit code.

    A line that is none (torn) is played as it is. The node's name is the recording's. The file is
    read in a stream, twice: its head may be anywhere, and the whole of it is for no memory.

    Raises:
        UserError: the file cannot be read or has no head line.
    """
    records = (record for _, record in _lines(asked.file) if record is not None)
    head = next((one for one in records if one.get("kind") == "head"), None)
    begin = _time(head)
    if head is None or begin is None:
        raise UserError(f"--replay {str(asked.file)!r} is no recording: it has no head line")
    ending = Ending(asked.run, asked.parent)
    name = safe(str(head.get("node", "")))
    held = alone.take(asked.run, name)
    if held is None:
        say(f"another sampler writes of {name} already; this one ends")
        return 0
    with held:
        folder = asked.run / FOLDER
        folder.mkdir(exist_ok=True)
        now, start = time.time(), time.monotonic()
        with os.fdopen(open_own(folder / f"{name}.jsonl"), "ab", buffering=0) as out:
            for line, record in _lines(asked.file):
                at = _time(record)
                if at is not None:
                    why = ending.wait(start + max(0.0, at - begin) / asked.speed)
                    if why is not None or ending.gone():
                        return 0
                out.write(line if record is None else _moved(record, begin, now, asked.speed))
    return 0


def _lines(file: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line with its end, and what it says; None for a torn one.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        for block in jsonl.blocks(file, _CHUNK):
            for line in block.splitlines(keepends=True):
                found = jsonl.one(line)
                yield line, found if isinstance(found, dict) else None
    except OSError as error:
        raise UserError(f"--replay {str(file)!r}: {error.strerror or error}") from None


def _time(record: dict[str, Any] | None) -> float | None:
    return number(record.get("t")) if record else None


def _moved(record: dict[str, Any], begin: float, now: float, speed: float) -> bytes:
    """A line as it would have been written in a run that went so many times as fast.

    Rates stay what they were: a GPU's watts, a disk's bytes per second.
    """
    moved = dict(record)
    for name in _TIMES:
        if (value := number(moved.get(name))) is not None:
            moved[name] = round(now + (value - begin) / speed, 3)
    for name in _SPANS:
        if (value := number(moved.get(name))) is not None:
            moved[name] = round(value / speed, 6)
    return (json.dumps(moved, separators=(",", ":")) + "\n").encode()
