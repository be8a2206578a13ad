"""The processes of a script that is being fetched: all that it has started, and their ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

import psutil

from .inside.spec import STATE
from .inside.tree import CARETAKERS

_END = 10.0  # seconds; a process that waits for a disk ends late
_TIDY = 1.0
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Tree:
    """A process and its descendants, those included that have left the family.

    Args:
        root: a child of this process; None where it is known by its mark alone.
        mark: its value of `RANKUP_FETCH`, inherited by all that it starts.
        others: children of this process that do not belong to it; all others do, since orphans
            come here. None: they do not.
    """

    def __init__(self, root: int | None, mark: str, others: Collection[int] | None = None) -> None:
        self._mark = mark
        self._root = root
        self._others = others
        self._known: set[psutil.Process] = set()
        if root is not None:
            with suppress(psutil.NoSuchProcess):
                self._known.add(psutil.Process(root))

    def look(self) -> list[psutil.Process]:
        """The processes that run now."""
        self._adopt()
        for process in list(self._known):
            with suppress(psutil.Error):
                self._known.update(process.children(recursive=True))
        self._known = {process for process in self._known if _runs(process)}
        return list(self._known)

    def _adopt(self) -> None:
        """Take in those whose parents have ended, and reap the dead among them."""
        if self._others is None:
            return
        for process in psutil.Process().children():
            if process.pid != self._root and process.pid not in self._others:
                self._known.add(process)
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def memory(self, limit: int) -> int:
        """Bytes that the processes hold in memory.

        Shared pages count once for each process while the sum stays below `limit`: to tell them
        apart takes the kernel a while.
        """
        processes = self.look()
        resident = _sum(processes, lambda process: process.memory_info().rss)
        if resident <= limit:
            return resident
        return _sum(processes, lambda process: process.memory_full_info().pss)

    def freeze(self) -> None:
        """Stop all of them, so that nothing changes any more; new ones are looked for twice."""
        self._known.update(marked(self._mark))
        for _ in range(2):
            _send(self._workers(), signal.SIGSTOP)

    def writing(self) -> frozenset[str]:
        """Paths of regular files that they have open for writing."""
        found = set()
        for process in self.look():
            with suppress(psutil.Error, OSError):
                for file in process.open_files():
                    if getattr(file, "mode", "r") != "r" and os.path.isfile(file.path):
                        found.add(file.path)
        return frozenset(found)

    def kill(self) -> list[int]:
        """End all of them; process ids of those that are there still after `_END` seconds."""
        self._known.update(marked(self._mark))
        start = time.monotonic()
        while (left := self.look()) and (took := time.monotonic() - start) < _END:
            _send(self._workers() if took < _TIDY else left, signal.SIGKILL)
            psutil.wait_procs([p for p in left if p.pid != self._root], timeout=0.1)
        return [process.pid for process in left]

    def _workers(self) -> list[psutil.Process]:
        return [process for process in self.look() if not _tidies(process)]


@contextmanager
def orphans_come_here() -> Iterator[Collection[int]]:
    """Whose parent ends in here is this process's child from then on, whatever it calls itself.

    Yields:
        The children that this process has already.
    """
    others = frozenset(process.pid for process in psutil.Process().children())
    before = _subreaper(1)
    try:
        yield others
    finally:
        _subreaper(before)


def _subreaper(value: int) -> int:
    """Set whether orphans come to this process; what it was. Only Linux has this."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(value), 0, 0, 0)
    return before.value


def marked(mark: str) -> list[psutil.Process]:
    """This user's processes with that value of `RANKUP_FETCH`, wherever they hang."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone, or not ours
            if process.environ().get(STATE) == mark and process.pid != os.getpid():
                found.append(process)
    return found


def _tidies(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return any(name in words for name in CARETAKERS)
    return False


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _sum(processes: list[psutil.Process], of: Callable[[psutil.Process], int]) -> int:
    total = 0
    for process in processes:
        with suppress(psutil.Error, OSError):
            total += of(process)
    return total
