"""Packs to be staged, and processes that stage them until they are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rankup
from rankup.data.opened import Samples
from rankup.data.stage import place

from ..made import pack, samples

# Stages argv[1], writes a few bytes, says so, and waits for its end.
_HALF = """
import sys, time
from rankup.data.stage.staging import stage
def fill(plan, root, watch):
    plan.files(root)[0].write_bytes(b"half")
    print("half", flush=True)
    time.sleep(1000)
stage(sys.argv[1], fill=fill, reserve=0)
"""


def packed(root: Path, count: int = 60, seed: int = 0, most: int = 5000) -> Path:
    """A pack of two files."""
    pack(root, {"train": samples(count, seed, most), "val": samples(9, seed + 1, most)})
    return root


def contents(found: Samples) -> list[tuple[str, int | None, bytes]]:
    """All samples."""
    return [(found.path(i), found.label(i), bytes(found.read(i))) for i in range(len(found))]


def equal(root: Path, staged: Path | None) -> None:
    """Read a source through its copy, and compare with what it is."""
    with rankup.data.open(root) as found, rankup.data.open(root, staged=False) as source:
        assert found.staged == staged
        assert source.staged is None
        assert found.root == source.root == root.absolute()
        assert contents(found) == contents(source)


def left(home: Path) -> list[str]:
    """What there is at a place, but for the lock."""
    root = place.folder_of(home)
    names = (str(path.relative_to(root)) for path in root.rglob("*"))
    return sorted(name for name in names if name != ".lock")


@contextmanager
def half(root: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has copied a part, and goes no further."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HALF, str(root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[Any]) -> None:
    """kill -9."""
    process.kill()
    process.wait()


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def flip(path: Path, at: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def said(lines: Sequence[str]) -> str:
    """Lines as one text."""
    return "\n".join(lines)
