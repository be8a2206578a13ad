"""A child: its time and memory, and a signal of the user to end it."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import psutil

from ..site import cgroup
from .inside.spec import STATE
from .processes import Tree, orphans_come_here

Why = Literal["exit", "stopped", "time", "memory", "interrupt"]
_LOOK = 0.1  # seconds between two looks
_WEIGH = 0.3
_MOST = 16 * 10**9


@dataclass(frozen=True)
class Limits:
    """The share of a machine that a script may take.

    Attributes:
        seconds: from start to end.
        memory: bytes of all its processes together.
    """

    seconds: float
    memory: int


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        why: by itself; `stopped` once one of its processes said so; else what ended it.
        code: its exit code, negative for a signal; None where we ended it.
        memory: the most that was seen, in bytes.
        writing: files that its processes had open for writing when we ended them.
        left: process ids that could not be ended.
    """

    why: Why
    code: int | None
    seconds: float
    memory: int
    writing: frozenset[str] = frozenset()
    left: tuple[int, ...] = ()


class Interrupt:
    """While it is entered, SIGINT, SIGTERM and SIGHUP set `number`, and nothing else."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number


def watch(
    words: list[str],
    environment: Mapping[str, str],
    limits: Limits,
    interrupt: Interrupt,
    *,
    look: Callable[[], bool],
    stdout: int | None = None,
    folder: Path | None = None,
) -> Ended:
    """Run a command until it ends or has to; nothing that it started is left.

    Its session is its own, so that the terminal's Ctrl-C reaches only us, and its standard input is
    empty.

    Args:
        environment: its own, with `RANKUP_SANDBOX`, the mark of all processes that it starts.
        look: called several times a second; True once one of its processes says that all is done.
        stdout: a descriptor for its output; None: ours.
        folder: its current one; None: ours.
    """
    start = time.monotonic()
    with orphans_come_here() as others:
        process = subprocess.Popen(
            words,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            start_new_session=True,
        )
        tree = Tree(environment[STATE], others)
        try:
            why, peak = _wait(process, tree, limits, interrupt, look, start)
            tree.freeze()
            writing = tree.writing()
        finally:
            left = tree.kill()
            code = None if process.pid in left else process.wait()
    ours = why != "exit"
    seconds = time.monotonic() - start
    return Ended(why, None if ours else code, seconds, peak, frozenset(writing), tuple(left))


def _wait(
    process: subprocess.Popen[bytes],
    tree: Tree,
    limits: Limits,
    interrupt: Interrupt,
    look: Callable[[], bool],
    start: float,
) -> tuple[Why, int]:
    peak = 0
    weighed = 0.0
    while True:
        if look():
            return "stopped", peak
        try:
            process.wait(_LOOK)
        except subprocess.TimeoutExpired:
            pass
        else:
            return "exit", peak
        now = time.monotonic()
        if interrupt.number is not None:
            return "interrupt", peak
        if now - start > limits.seconds:
            return "time", peak
        if now - weighed > _WEIGH:
            weighed, held = now, tree.memory(limits.memory)
            peak = max(peak, held)
            if held > limits.memory:
                return "memory", peak


def default_memory() -> int:
    """Half of the memory that is free for this process, 16 GB at most."""
    free = psutil.virtual_memory().available
    for own in cgroup.own():
        for group in cgroup.upwards(own):
            if bounds := group.memory():
                free = min(free, max(0, bounds[0] - bounds[1]))
    return min(_MOST, free // 2)
