"""This user's processes, from /proc read raw: psutil takes three times as long."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from .reading import text

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Whose a process is, is asked once per number; numbers are used again, so that after so many reads
# it is asked anew.
_FORGET = 50
_KERNEL = 2  # the parent of the kernel's own processes, which are nobody's


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it.

    Attributes:
        start: clock ticks after the machine's start; with the number it names a process for good.
        cpu: clock ticks that it has used itself.
        memory: bytes, resident.
    """

    pid: int
    parent: int
    name: str
    state: str
    start: int
    cpu: int
    memory: int

    @property
    def key(self) -> tuple[int, int]:
        """Its identity: numbers are used again."""
        return self.pid, self.start


def parse(pid: int, stat: str) -> Process | None:
    """From /proc/PID/stat. Its name may hold blanks and brackets; None for a torn line."""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 22:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        name=name,
        state=fields[0],
        start=int(fields[19]),
        cpu=int(fields[11]) + int(fields[12]),
        memory=int(fields[21]) * PAGE,
    )


class Table:
    """Reads all processes of one user, over and over."""

    def __init__(self, root: str = "/", user: int | None = None) -> None:
        self._proc = os.path.join(root, "proc")
        self._user = os.getuid() if user is None else user
        self._known: dict[str, bool] = {}  # number -> whether it is this user's
        self._reads = 0

    def read(self) -> dict[int, Process]:
        """By number."""
        if self._reads % _FORGET == 0:
            self._known.clear()
        self._reads += 1
        found = {}
        for name in os.listdir(self._proc):
            ours = self._known.get(name)
            if ours is None:
                ours = self._known[name] = name.isdigit() and self._is_ours(name)
            if ours:
                process = parse(int(name), text(f"{self._proc}/{name}/stat", short=True) or "")
                if process is None:  # ended: the next one of that number may be anybody's
                    del self._known[name]
                elif process.parent == _KERNEL or process.pid == _KERNEL:
                    self._known[name] = False
                else:
                    found[process.pid] = process
        return found

    def pass_over(self, processes: Iterable[Process]) -> None:
        """Leave these out for the next reads: nothing that is asked of the table concerns them."""
        self._known.update((str(process.pid), False) for process in processes)

    def environ(self, process: Process) -> dict[str, str]:
        """What a process was started with; empty where that is not to be read."""
        pairs = (text(f"{self._proc}/{process.pid}/environ") or "").split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def command(self, process: Process) -> str:
        """Its command line, words apart by blanks."""
        return (text(f"{self._proc}/{process.pid}/cmdline") or "").replace("\0", " ")

    def io(self, process: Process) -> tuple[int, int] | None:
        """Bytes (read, written) by system calls, also from the cache, and those of children that it
        has waited for; None where that is not to be read.
        """
        content = text(f"{self._proc}/{process.pid}/io", short=True) or ""
        found = dict(line.split(": ", 1) for line in content.splitlines() if ": " in line)
        try:
            return int(found["rchar"]), int(found["wchar"])
        except (KeyError, ValueError):
            return None

    def _is_ours(self, name: str) -> bool:
        try:
            return os.stat(f"{self._proc}/{name}").st_uid == self._user
        except OSError:
            return False
