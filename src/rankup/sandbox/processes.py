"""The processes of a script: all that it has started, and their ends."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

import psutil

from .inside.spec import STATE

# They clean up after the others, and end by themselves.
_CARETAKERS = ("multiprocessing.resource_tracker", "torch_shm_manager", f"{__package__}.namespace")
_END = 10.0  # seconds; a process that waits for a disk ends late
_TIDY = 1.0
_PAUSE = 0.05
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Tree:
    """A process and its descendants, those included that have left the family.

    Args:
        mark: the value of `RANKUP_SANDBOX` that all of them inherit.
        others: children of this process that do not belong to it; all others do, since orphans
            come here. None: none of its children does, the mark alone counts.
    """

    def __init__(self, mark: str, others: Collection[int] | None = None) -> None:
        self._mark, self._others = mark, others
        self._known: set[psutil.Process] = set()

    def look(self) -> list[psutil.Process]:
        """Return the processes that run now."""
        table = {one.pid: one for one in psutil.process_iter(["ppid", "status"])}
        pids = {one.pid for one in self._known if table.get(one.pid) == one}
        if self._others is not None:
            pids |= set(_below({os.getpid()}, table)) - set(self._others)
        while more := set(_below(pids, table)) - pids:
            pids |= more
        self._known = {table[pid] for pid in pids if table[pid].info["status"] not in _ENDED}
        return list(self._known)

    def writing(self) -> set[str]:
        """Return the regular files that they hold open for writing."""
        found: set[str] = set()
        for one in self.look():
            with suppress(psutil.Error, OSError):
                found.update(file.path for file in one.open_files() if file.mode != "r")
        return found

    def memory(self, limit: int) -> int:
        """Return the bytes that the processes hold in memory.

        Shared pages count once for each process while the sum stays below `limit`: to tell them
        apart takes the kernel a while.
        """
        resident = proportional = 0
        found = self.look()
        for one in found:
            with suppress(psutil.Error):
                resident += one.memory_info().rss
        if resident <= limit:
            return resident
        for one in found:
            with suppress(psutil.Error):
                proportional += one.memory_full_info().pss
        return proportional

    def freeze(self) -> None:
        """Stop all of them, so that nothing changes any more; new ones are looked for twice."""
        for _ in range(2):
            self._known.update(marked(self._mark))
            for one in self.look():
                with suppress(psutil.Error):
                    if not _is_caretaker(one):
                        one.suspend()

    def kill(self, within: float = _END) -> list[int]:
        """End all of them; return the ids of those that are there still after some seconds."""
        self._known.update(marked(self._mark))
        left = self.look()
        start = time.monotonic()  # a look may take long: each that was found is killed once
        while left and (took := time.monotonic() - start) < within:
            for one in left:
                with suppress(psutil.Error):
                    if took >= _TIDY or not _is_caretaker(one):
                        one.kill()
                    else:
                        one.resume()
            time.sleep(_PAUSE)
            left = self.look()
        return [one.pid for one in left]


@contextmanager
def orphans_come_here() -> Iterator[Collection[int]]:
    """Whose parent ends in here is this process's child from then on, whatever it calls itself.

    Yields:
        The children that this process has already.
    """
    others = frozenset(one.pid for one in psutil.Process().children())
    before = _subreaper(1)
    try:
        yield others
    finally:
        _subreaper(before)


def marked(mark: str) -> list[psutil.Process]:
    """Return this user's processes with that value of `RANKUP_SANDBOX`, wherever they hang."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ours = one.pid != os.getpid() and one.environ().get(STATE) == mark
            if ours and one.status() not in _ENDED:
                found.append(one)
    return found


def _below(pids: Collection[int], table: Mapping[int, psutil.Process]) -> Iterator[int]:
    return (pid for pid, one in table.items() if one.info["ppid"] in pids)


def _is_caretaker(one: psutil.Process) -> bool:
    return any(name in word for word in one.cmdline() for name in _CARETAKERS)


def _subreaper(value: int) -> int:
    """Set whether orphans come to this process, and return what it was. Only Linux has this."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(value), 0, 0, 0)
    return before.value
