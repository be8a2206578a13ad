"""The processes of a script as /proc shows them: all that it has started, and their ends.

The standard library only: the script's own processes look at each other with this, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from .inside.spec import STATE

# They clean up shared memory after the others, and end by themselves.
_CARETAKERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
_END = 10.0  # seconds; a process that waits for a disk ends late
_TIDY = 1.0
_PAUSE = 0.05
_LISTENING = b"0A"
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Tree:
    """A process and its descendants, those included that have left the family.

    Args:
        root: a child of this process; None where it is known by its mark alone.
        mark: its value of `RANKUP_SANDBOX`, inherited by all that it starts.
        others: children of this process that do not belong to it; all others do, since orphans
            come here. None: they do not.
    """

    def __init__(self, root: int | None, mark: str, others: Collection[int] | None = None) -> None:
        self._root, self._mark, self._others = root, mark, others
        self._known: dict[int, int] = {}  # process ids, and when each was started
        if root is not None:
            self._take([root])

    def look(self) -> list[int]:
        """Return the ids of the processes that run now."""
        table = _table()
        if self._others is not None:
            for pid, one in table.items():
                if one.parent == os.getpid() and pid not in self._others:
                    self._known.setdefault(pid, one.started)
                    if pid != self._root and not one.runs:
                        with suppress(ChildProcessError):
                            os.waitpid(pid, os.WNOHANG)
        for pid in _descendants(set(self._known) & set(table), table):
            self._known.setdefault(pid, table[pid].started)
        self._known = {
            pid: started
            for pid, started in self._known.items()
            if pid in table and table[pid].runs and table[pid].started == started
        }
        return list(self._known)

    def writing(self) -> set[str]:
        """Return the regular files that they hold open for writing."""
        return written_by(self.look())

    def memory(self, limit: int) -> int:
        """Return the bytes that the processes hold in memory.

        Shared pages count once for each process while the sum stays below `limit`: to tell them
        apart takes the kernel a while.
        """
        pids = self.look()
        resident = sum(_resident(pid) for pid in pids)
        return resident if resident <= limit else sum(_proportional(pid) for pid in pids)

    def freeze(self) -> None:
        """Stop all of them, so that nothing changes any more; new ones are looked for twice."""
        for _ in range(2):
            self._take(marked(self._mark))
            _send(_workers(self.look()), signal.SIGSTOP)

    def kill(self) -> list[int]:
        """End all of them; return the ids of those that are there still after a while."""
        self._take(marked(self._mark))
        start = time.monotonic()
        while (left := self.look()) and (took := time.monotonic() - start) < _END:
            _send(_workers(left) if took < _TIDY else left, signal.SIGKILL)
            time.sleep(_PAUSE)
        return left

    def _take(self, pids: Iterable[int]) -> None:
        for pid in pids:
            if (one := _process(pid)) is not None:
                self._known.setdefault(pid, one.started)


@contextmanager
def orphans_come_here() -> Iterator[Collection[int]]:
    """Whose parent ends in here is this process's child from then on, whatever it calls itself.

    Yields:
        The children that this process has already.
    """
    others = frozenset(p for p, one in _table().items() if one.parent == os.getpid())
    before = _subreaper(1)
    try:
        yield others
    finally:
        _subreaper(before)


def members(root: int) -> list[int]:
    """Return the process `root` with its descendants, and its session's where it leads one."""
    table = _table()
    if root not in table:
        return []
    leads = table[root].session == root
    found = {root} | {pid for pid, one in table.items() if leads and one.session == root}
    return sorted(_descendants(found, table))


def marked(mark: str) -> list[int]:
    """Return this user's processes with that value of `RANKUP_SANDBOX`, wherever they hang."""
    wanted = f"{STATE}={mark}".encode()
    return [
        pid
        for pid, one in _table().items()
        if one.runs and pid != os.getpid()
        if wanted in _read(f"/proc/{pid}/environ").split(b"\0")
    ]


def kill(pids: list[int]) -> None:
    """End these processes at once, but this one and those that clean up after them."""
    _send([pid for pid in _workers(pids) if pid != os.getpid()], signal.SIGKILL)


def written_by(pids: Iterable[int]) -> set[str]:
    """Return the regular files that these processes hold open for writing."""
    found = set()
    for pid in pids:
        for number in _names(f"/proc/{pid}/fd"):
            path = _link(f"/proc/{pid}/fd/{number}")
            if path.startswith("/") and os.path.isfile(path) and _writes(pid, number):
                found.add(path)
    return found


def listening_ports(pids: Iterable[int]) -> set[int]:
    """Return the TCP ports that these processes listen on."""
    sockets = {
        _link(f"/proc/{pid}/fd/{number}") for pid in pids for number in _names(f"/proc/{pid}/fd")
    }
    lines = [_read(f"/proc/self/net/{name}").splitlines()[1:] for name in ("tcp", "tcp6")]
    words = [line.split() for both in lines for line in both]
    return {
        int(one[1].rpartition(b":")[2], 16)
        for one in words
        if len(one) > 9 and one[3] == _LISTENING and f"socket:[{one[9].decode()}]" in sockets
    }


def _subreaper(value: int) -> int:
    """Set whether orphans come to this process, and return what it was. Only Linux has this."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(value), 0, 0, 0)
    return before.value


class _Process(NamedTuple):
    parent: int
    session: int
    started: int
    runs: bool  # it has not ended, reaped or not


def _table() -> dict[int, _Process]:
    pids = [int(name) for name in _names("/proc") if name.isdigit()]
    return {pid: one for pid in pids if (one := _process(pid)) is not None}


def _process(pid: int) -> _Process | None:
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(words) < 20:
        return None
    return _Process(int(words[1]), int(words[3]), int(words[19]), words[0] not in (b"Z", b"X"))


def _descendants(found: set[int], table: Mapping[int, _Process]) -> set[int]:
    while more := {pid for pid, one in table.items() if one.parent in found} - found:
        found = found | more
    return found


def _resident(pid: int) -> int:
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * _PAGE if len(words) > 1 else 0


def _proportional(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _workers(pids: Iterable[int]) -> list[int]:
    def is_caretaker(pid: int) -> bool:
        command = _read(f"/proc/{pid}/cmdline")
        return any(name in command for name in _CARETAKERS)

    return [pid for pid in pids if not is_caretaker(pid)]


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def _writes(pid: int, number: str) -> bool:
    for line in _read(f"/proc/{pid}/fdinfo/{number}").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
