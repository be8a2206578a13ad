"""Child processes, their start and end; and the signals that end this one."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@functools.cache
def freeze_in_children() -> None:
    """Let a forked child, such as a data worker, never collect this process's garbage.

    A process group that nobody has any more ends by joining its threads, which a child has not: it
    would wait for ever, and who waits for the child with it. `runtime`, which stands alone, has the
    same for who sets up a group with it.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def starting(module: str) -> str:
    """Return the code that runs a module's `main`; the current folder is not on its path."""
    start = "import sys; sys.path = [p for p in sys.path if p]; "
    return f"{start}from {module} import main; sys.exit(main())"


def python(module: str, *args: str) -> list[str]:
    """Return the command that runs a module's `main` by this Python."""
    return [sys.executable, "-c", starting(module), *args]


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that was started in a session of its own, with its group, and reap it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere nothing).

    For a child before it starts its program: `preexec_fn=partial(die_with, os.getpid())`. A parent
    that has ended already is noticed by its number.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)


@contextmanager
def ended_as_an_exception() -> Iterator[None]:
    """SIGTERM and a closed terminal raise SystemExit in the body; for the main thread.

    So what is open is closed and cleared up. After the first one no other signal disturbs that,
    until the body is left.
    """

    def end(number: int, frame: FrameType | None) -> None:
        ignore()
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if before[number] is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore Ctrl-C, SIGTERM and a closed terminal until `ended_as_an_exception` is left.

    For what clears up: a second request to stop would leave half of it. A signal that comes while
    this runs raises its exception here, so call it in a `try` whose `finally` clears up.
    """
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
