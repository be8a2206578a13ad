"""When a sampler is to end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from ..lines import FOLDER, STOP
from . import STARTER, processes

_ENDING = frozenset({signal.SIGTERM})
_ENDED = ("Z", "X")  # nobody has waited for it yet
_LOOK = 1.0  # seconds between looks at the stop file and the parent


class Ending:
    """Looks for a reason to end: a stop file, a dead parent, SIGTERM, no run directory any more.

    Signals that end it are blocked and taken between samples, so that none tears a line.

    Args:
        parent: number of the process without which there is no job, of this user or above this
            one; by default the one that started this.
    """

    def __init__(self, run: Path, parent: int | None = None) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        self._run = str(run)
        self._stop = str(run / FOLDER / STOP)
        self._parent = STARTER if parent is None else parent
        # Another process may get the number of one that has ended: the start tells them apart.
        self._start = None if parent is None else _start(parent)
        # One that is there already was meant for an earlier attempt; which of two times is later is
        # not to be asked, since the clock of the file system is not the node's.
        self._stale = _identity(self._stop)

    def reason(self) -> str | None:
        """Why to end now, in words; None: there is no reason."""
        stop = _identity(self._stop)
        if stop is not None and stop != self._stale:
            return "stop file"
        if os.getppid() != self._parent and not self._elsewhere():
            return "the process that started it has ended"
        return None

    def _elsewhere(self) -> bool:
        """Whether the parent that was named is there, though it did not start this process."""
        return self._start is not None and _start(self._parent) == self._start

    def gone(self) -> bool:
        """Whether the run directory was removed; asked once per sample."""
        try:
            os.stat(self._run)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a file system that does not answer for a while
            return False
        return False

    def wait(self, until: float) -> str | None:
        """Sleep until a monotonic time; ends early with a reason to end."""
        while True:
            left = until - time.monotonic()
            taken = signal.sigtimedwait(_ENDING, max(0.0, min(_LOOK, left)))
            if taken is not None:
                return "SIGTERM"
            why = self.reason()
            if why is not None or left <= _LOOK:
                return why


def _start(pid: int) -> int | None:
    """When a process that still runs was started, by the kernel's count; None for no such one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    found = processes.parse(pid, stat)
    return found.start if found and found.state not in _ENDED else None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
