"""What one rank is doing: the collectives it waits in, and where its main thread stands."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_DEEPEST = 60  # frames of a stack that are kept, the innermost ones
_FOREIGN = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Call:
    """A collective that a rank has entered and not come out of.

    Attributes:
        operation: such as `all_reduce`.
        group: the process group's name, the same on all its ranks; `label` is its name for people.
        ranks: the members, as ranks of the world; empty where not known.
        number: how many-th collective of its group; -1 where nobody counts (send, receive).
        tensors: shapes and types that go in, such as `float32 [7]`.
        since: seconds since 1970.
        timeout: seconds that it may take.
    """

    operation: str
    group: str
    label: str
    ranks: tuple[int, ...]
    number: int
    tensors: str
    since: float
    timeout: float


@dataclass(frozen=True)
class Line:
    """A frame of a stack."""

    file: str
    number: int
    function: str
    text: str


@dataclass(frozen=True)
class State:
    """One rank at one moment.

    Attributes:
        calls: collectives it waits in, the oldest first; empty while it does something else.
        counts: group's name -> collectives started in it.
        stack: of the main thread, the innermost frame last.
        code: fingerprint of what the rank runs, see `code.fingerprint`.
    """

    rank: int
    node: str
    calls: tuple[Call, ...]
    counts: dict[str, int]
    stack: tuple[Line, ...]
    code: dict[str, str]


@contextmanager
def reading_frames() -> Iterator[None]:
    """Around whatever asks for frames of another thread, or goes from one to the next.

    Up to Python 3.11, making a frame's object or the dictionary of its variables may start a
    garbage collection. Where a finalizer then lets the other thread go on, that thread leaves the
    very frame which is being read, and Python reads and writes what lies in its place by then: the
    process dies of it, often much later, in another collection.
    """
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def main_frame() -> FrameType | None:
    """The innermost frame of the main thread."""
    with reading_frames():
        return sys._current_frames().get(threading.main_thread().ident or 0)


def stack_of(frame: FrameType | None) -> tuple[Line, ...]:
    """The stack that ends in `frame`."""
    with reading_frames():
        frames = list(traceback.walk_stack(frame)) if frame else []
    lines = list(traceback.StackSummary.extract(iter(reversed(frames))))
    # What started the script says nothing about it.
    runners = [number for number, line in enumerate(lines) if line.filename == "<frozen runpy>"]
    lines = lines[runners[-1] + 1 if runners else 0 :][-_DEEPEST:]
    return tuple(
        Line(line.filename, line.lineno or 0, line.name, line.line or "") for line in lines
    )


def own_line(stack: tuple[Line, ...]) -> Line | None:
    """The innermost line of the user's own code, else of whatever is innermost."""
    for line in reversed(stack):
        if not _foreign(line.file):
            return line
    return stack[-1] if stack else None


def to_json(state: State) -> str:
    """For the store."""
    return json.dumps(asdict(state))


def from_json(data: str | bytes) -> State:
    """What `to_json` gave."""
    read: dict[str, Any] = json.loads(data)
    calls = tuple(Call(**{**call, "ranks": tuple(call["ranks"])}) for call in read["calls"])
    stack = tuple(Line(**line) for line in read["stack"])
    return State(**{**read, "calls": calls, "stack": stack})


def _foreign(file: str) -> bool:
    """Whether a file is Python's, torch's, another package's or rankup's own."""
    if file.startswith("<") or any(part in _FOREIGN for part in Path(file).parts):
        return True
    return file.startswith(_foreign_folders())


@cache
def _foreign_folders() -> tuple[str, ...]:
    rankup = Path(__file__).resolve().parents[2]
    pythons = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    torchs = str(Path(torch.__file__).parent)
    return tuple(f"{folder}/" for folder in {str(rankup), torchs, *pythons})


_NAMED = 8  # ranks that an error lists


@cache
def fingerprint() -> dict[str, str]:
    """The versions of Python and torch, and digests of the main script and of rankup.

    Of rankup the sizes of its files count: to read them all would be felt where a thousand ranks
    start from one file system.
    """
    rankup = Path(__file__).resolve().parents[2]
    sources = sorted(rankup.rglob("*.py"))
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    script = Path(main)
    return {
        "Python": sys.version.split()[0],
        "torch": torch.__version__,
        "rankup": _digest(f"{file.name} {file.stat().st_size}".encode() for file in sources),
        "the script": _digest([script.read_bytes()]) if script.is_file() else "none",
    }


def differing(everyone: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Return what differs, and which ranks differ from the most; empty when all are alike."""
    parts = []
    for name in everyone[0][1] if everyone else ():
        values = [code.get(name, "") for _, code in everyone]
        usual = max(values, key=values.count)
        odd = [rank for rank, value in enumerate(values) if value != usual]
        if odd:
            listed = ", ".join(f"rank {r} on {everyone[r][0]} ({values[r]})" for r in odd[:_NAMED])
            more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
            parts.append(f"{name} is {usual} on most ranks, but not on {listed}{more}")
    return "; ".join(parts)


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.blake2b(digest_size=5)
    for part in parts:
        total.update(part)
    return total.hexdigest()
