"""Damages a file many times, and scans and reads each, in a child that C libraries may take down.

    python -m tests.data.containers.fuzz FORMAT FILE FIRST LAST

The child prints a line before each attempt, so that who started it knows which one ended it.
"""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rankup.base.errors import UserError
from rankup.data.containers import Choice, module

from .made import read

_MEMORY = 4 << 30
_SECONDS = 30  # of an attempt: what hangs in C is ended like what crashes there
_CHECKOUT = Path(__file__).resolve().parents[3]


def fuzz(name: str, path: Path, attempts: int) -> Counter[str]:
    """What came of damaging a file so often, and how often: see `attempt`; or `crashed`."""
    found: Counter[str] = Counter()
    first = 0
    while first < attempts:
        child = subprocess.run(
            [sys.executable, "-m", __name__, name, str(path), str(first), str(attempts)],
            cwd=_CHECKOUT,
            capture_output=True,
            text=True,
            timeout=250,
        )
        lines = child.stdout.split("\n")[:-1]
        found.update(line for line in lines if not line.isdigit())
        assert child.returncode <= 0, f"attempt {lines[-1]}: {child.stderr[-3000:]}"
        first = attempts
        if child.returncode < 0:
            found["crashed"] += 1
            first = int(lines[-1]) + 1
    assert sum(found.values()) == attempts
    return found


def damage(data: bytes, seed: int) -> bytes:
    """Some bytes changed, mostly where the metadata is, or a part cut away."""
    draw = random.Random(seed)
    made = bytearray(data)
    way = draw.random()
    if way < 0.1:
        return bytes(made[: draw.randrange(len(made))])
    if way < 0.15:
        at = draw.randrange(len(made))
        return bytes(made[:at] + made[at + draw.randrange(200) :])
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(made))
        if way < 0.6:
            made[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        else:  # a number that is absurd, at its place
            at = min(at & ~7, len(made) - 8)
            number = draw.choice((-1, 2**31 - 1, 2**31, 2**62, -(2**63), len(made), 2**40, 1000))
            made[at : at + 8] = number.to_bytes(8, "little", signed=True)
    return bytes(made)


def attempt(name: str, path: Path) -> str:
    """What comes of a damaged file: its samples, or the documented error."""
    size = path.stat().st_size
    try:
        index = module(name).scan(path, Choice())
    except UserError:
        return "refused"
    for field in index.fields:
        there = field.offset >= 0
        ends = field.offset[there] + field.length[there]
        assert not len(ends) or (int(field.length.min()) >= 0 and int(ends.max()) <= size)
    try:
        read(index, path)
    except UserError:
        return "refused when read"
    return "read"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    name, file, first, last = sys.argv[1:]
    whole = Path(file).read_bytes()
    for seed in range(int(first), int(last)):
        print(seed, flush=True)
        # A new file each time: libhdf5 goes on with one that something has left open.
        torn = Path(f"{file}.{seed}.torn")
        torn.write_bytes(damage(whole, seed))
        signal.alarm(_SECONDS)
        print(attempt(name, torn), flush=True)
        torn.unlink()
