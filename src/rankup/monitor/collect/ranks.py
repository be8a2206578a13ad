"""The ranks of a run on this node, and their data workers, found among the user's processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from .host import text

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
        """The environment that a process was started with; empty where that is not to be read."""
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


Row = list[float | None]

# A rank that was started through a script is the one child of its shell.
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "numactl")
# How often a process is looked at anew before what it was started with is believed: between fork
# and exec it still shows its parent's environment and command.
_LOOKS = 3
# Processes of Python and torch that load no data.
_HELPERS = ("multiprocessing.resource_tracker", "compile_worker")


T = TypeVar("T")


class _Looked(Generic[T]):
    """What a process was found to be, which is asked no more often than needed."""

    def __init__(self, look: Callable[[Process], T]) -> None:
        self._look = look
        # By name too: a shell that has waited for something may become the program by exec.
        self._found: dict[tuple[int, int, str], tuple[int, T]] = {}

    def of(self, process: Process) -> T:
        key = (*process.key, process.name)
        looks, found = self._found.get(key, (0, None))
        if looks >= _LOOKS:
            return cast(T, found)
        now = self._look(process)
        self._found[key] = looks + 1, now
        return now

    def settled(self, process: Process) -> bool:
        """Whether it will not be looked at again."""
        return self._found.get((*process.key, process.name), (0, None))[0] >= _LOOKS

    def keep(self, processes: Iterable[Process]) -> None:
        """Forget all others."""
        alive = {process.key for process in processes}
        self._found = {key: one for key, one in self._found.items() if key[:2] in alive}


class Ranks:
    """Follows the ranks of a run.

    A rank is a process that was started with `RANK` and with `RANKUP_RUN_DIR` of this run; what it
    starts inherits both, and so the uppermost one counts.
    """

    def __init__(self, run: str, table: Table) -> None:
        self._run = os.path.realpath(run)
        self._same: dict[str, bool] = {run: True}
        self._table = table
        self._cpu: dict[tuple[int, int], int] = {}
        self._io: dict[tuple[int, int], dict[tuple[int, int], tuple[int, int]]] = {}
        self._labels = _Looked(self._label)
        self._helpers = _Looked(self._helper)

    def read(self, seconds: float | None) -> list[Row]:
        """A row per rank as `lines.RANKS` has it, by number.

        Args:
            seconds: since the last call; None for the first.
        """
        processes = self._table.read()
        self._labels.keep(processes.values())
        self._helpers.keep(processes.values())
        numbers = self._numbers(processes)
        children: dict[int, list[Process]] = {}
        for process in processes.values():
            children.setdefault(process.parent, []).append(process)
        before, self._cpu = self._cpu, {}
        io_before, self._io = self._io, {}
        rows, concerned = [], set()
        for pid, number in numbers.items():
            rank = _behind_shells(processes[pid], children)
            below = list(_below(rank, children))
            workers = [one for one in below if not self._helpers.of(one)]
            ours = rank.key in before
            io = self._traffic(rank, [rank, *below], io_before.get(rank.key), seconds)
            for one in (rank, *below):
                self._cpu[one.key] = one.cpu
            concerned |= {pid, *(one.pid for one in _below(processes[pid], children))}
            rows.append(
                [
                    number,
                    _percent([rank], before, seconds) if ours else None,
                    rank.memory,
                    len(workers),
                    _percent(workers, before, seconds) if ours else None,
                    *io,
                ]
            )
        # A user may have hundreds of others. What is no rank's now becomes none but by exec.
        self._table.pass_over(
            process
            for process in processes.values()
            if process.pid not in concerned
            and process.name not in _SHELLS
            and self._labels.settled(process)
        )
        return sorted(rows, key=lambda row: row[0] or 0)

    def _numbers(self, processes: dict[int, Process]) -> dict[int, int]:
        """Number of the rank by process, of the uppermost ones."""
        labels = {}
        for process in processes.values():
            number = self._labels.of(process)
            if number is not None:
                labels[process.pid] = number
        found = {}
        for pid, number in labels.items():
            above = processes[pid].parent
            while above in processes and above not in labels:
                above = processes[above].parent
            if above not in labels:
                found[pid] = number
        return found

    def _label(self, process: Process) -> int | None:
        environ = self._table.environ(process)
        number = environ.get("RANK", "")
        run = environ.get("RANKUP_RUN_DIR")
        if run is None or not (number.isascii() and number.isdigit()) or process.state == "Z":
            return None
        if run not in self._same:
            self._same[run] = os.path.realpath(run) == self._run
        return int(number) if self._same[run] else None

    def _helper(self, process: Process) -> bool:
        command = self._table.command(process)
        return any(name in command for name in _HELPERS)

    def _traffic(
        self,
        rank: Process,
        tree: list[Process],
        before: dict[tuple[int, int], tuple[int, int]] | None,
        seconds: float | None,
    ) -> list[float | None]:
        """Bytes/s (read, written) of a rank and all below it.

        A child's bytes move to its parent when that has waited for it, so that the sum over all is
        what grows steadily. Where a child ended unwaited for, the sum falls, and what those
        that are still there have done is all that is known.
        """
        now = {one.key: found for one in tree if (found := self._table.io(one)) is not None}
        self._io[rank.key] = now
        if before is None or not seconds or rank.key not in now:
            return [None, None]
        rates: list[float | None] = []
        for way in (0, 1):
            grown = sum(one[way] for one in now.values()) - sum(one[way] for one in before.values())
            if grown < 0:
                both = now.keys() & before.keys()
                grown = sum(max(0, now[key][way] - before[key][way]) for key in both)
            rates.append(round(grown / seconds))
        return rates


def _percent(
    processes: list[Process], before: dict[tuple[int, int], int], seconds: float | None
) -> float | None:
    """% of one core that processes took together; one that was not there before, all its time."""
    if not seconds:
        return None
    ticks = sum(one.cpu - before.get(one.key, 0) for one in processes)
    return round(max(0.0, 100 * ticks / TICKS / seconds), 1)


def _behind_shells(process: Process, children: dict[int, list[Process]]) -> Process:
    while process.name in _SHELLS and len(children.get(process.pid, ())) == 1:
        process = children[process.pid][0]
    return process


def _below(process: Process, children: dict[int, list[Process]]) -> Iterable[Process]:
    for child in children.get(process.pid, ()):
        if child.state != "Z":
            yield child
        yield from _below(child, children)
