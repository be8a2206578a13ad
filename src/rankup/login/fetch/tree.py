"""The processes of a script that is being fetched: all that it has started, and their ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from .environment import STATE

_END = 10.0  # seconds; a process that waits for a disk ends late
# These remove the shared memory of processes that are gone, and then end by themselves.
_TIDYING = ("multiprocessing.resource_tracker", "torch_shm_manager")
_TIDY = 1.0


class Tree:
    """A process and its descendants, those included that have left the family.

    Args:
        root: a child of this process; None where it is known by its mark alone.
        mark: its value of `RANKUP_FETCH`, inherited by all that it starts.
    """

    def __init__(self, root: int | None, mark: str) -> None:
        self._mark = mark
        self._root = root
        self._known: set[psutil.Process] = set()
        if root is not None:
            with suppress(psutil.NoSuchProcess):
                self._known.add(psutil.Process(root))

    def look(self) -> list[psutil.Process]:
        """The processes that run now."""
        for process in list(self._known):
            with suppress(psutil.Error):
                self._known.update(process.children(recursive=True))
        self._known = {process for process in self._known if _runs(process)}
        return list(self._known)

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
        return any(name in words for name in _TIDYING)
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
