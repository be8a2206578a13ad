"""The ranks of one run: forked, watched, ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field

from ..plan import Outcome, Plan, RankEnd, Run, Try
from .rank import FINISHED, Pipes, live

_KEPT = 16 << 10  # bytes of what a rank says last
_PATIENCE = 20.0  # seconds for the others to end by themselves once a rank has failed
_GRACE = 5.0  # and then after SIGTERM
_ANSWER = 60.0
_LOOK = 0.05


@dataclass
class _Member:
    pid: int
    said: int
    status: int
    order: int
    tail: bytes = b""
    finished: bool = False
    told: bool = False
    code: int | None = None
    gone: bool = False
    ends: list[int] = field(default_factory=list)


class Crew:
    """Starts the ranks at once.

    Args:
        environment: further variables of all ranks; empty: there is no launcher.
    """

    def __init__(
        self,
        plan: Plan,
        run: Run,
        tried: Try,
        batches: dict[int, int],
        environment: dict[str, str],
    ) -> None:
        self._plan, self._run, self._tried = plan, run, tried
        self._selector = selectors.DefaultSelector()
        self._members: list[_Member] = []
        for rank in range(run.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if environment else {}
            self._members.append(self._fork(rank, batches, {**environment, **own}))

    def _fork(self, rank: int, batches: dict[int, int], environment: dict[str, str]) -> _Member:
        said, status, order = os.pipe(), os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            for end in (said[0], status[0], order[1], *(m.order for m in self._members)):
                os.close(end)
            os.environ.update(environment)
            asked = order[0] if not self._run.world else -1
            live(
                *(self._plan, self._run, self._tried, rank, batches),
                Pipes(said[1], status[1], asked),
            )
        for end in (said[1], status[1], order[0]):
            os.close(end)
        with suppress(OSError):
            os.setpgid(pid, pid)
        member = _Member(pid, said[0], status[0], order[1])
        for end in (said[0], status[0]):
            os.set_blocking(end, False)
            self._selector.register(end, selectors.EVENT_READ, member)
        return member

    def watch(self, *, host: bool = False) -> Outcome:
        """Wait for all; end those that outlive their time or a failed one.

        Args:
            host: ranks stay there once their scripts have ended.
        """
        began = time.monotonic()
        failed: float | None = None
        asked = False
        why = "exit"
        while True:
            self._look()
            now = time.monotonic()
            open_ones = [m for m in self._members if not m.gone and not (host and m.finished)]
            if not open_ones:
                break
            if failed is None and any(m.gone and m.code != 0 for m in self._members):
                failed = now
            if now - began > self._plan.seconds:
                why = "time"
                break
            if failed is not None and now - failed > _PATIENCE and not asked:
                asked = True
                for member in open_ones:
                    _send(member.pid, signal.SIGTERM)
            if failed is not None and now - failed > _PATIENCE + _GRACE:
                why = "stuck"
                break
        took = time.monotonic() - began
        waited = time.monotonic() - failed if failed is not None else 0.0
        ends = tuple(
            RankEnd(m.code, m.finished, m.tail.decode("utf-8", "replace")) for m in self._members
        )
        return Outcome(self._run.name, why, took, ends, self._tried, waited)

    def ask(self, folders: list[tuple[str, str]]) -> None:
        """Let the original load what lies in these folders, and wait until it has."""
        member = self._members[0]
        with suppress(OSError):
            os.write(member.order, b"".join(json.dumps(one).encode() + b"\n" for one in folders))
        os.close(member.order)
        member.order = -1
        end = time.monotonic() + _ANSWER
        while not member.gone and time.monotonic() < end:
            self._look()

    def end(self) -> None:
        """End what is left, and what the ranks have started."""
        for member in self._members:
            with suppress(OSError):
                os.killpg(member.pid, signal.SIGKILL)
        for member in self._members:
            if not member.gone:
                with suppress(ChildProcessError):
                    os.waitpid(member.pid, 0)
                member.gone = True
            for end in (member.said, member.status, member.order):
                if end >= 0:
                    with suppress(OSError):
                        os.close(end)
        self._selector.close()

    def _look(self) -> None:
        for key, _ in self._selector.select(_LOOK):
            member: _Member = key.data
            self._read(key.fd, member)
        for member in self._members:
            if member.gone:
                continue
            pid, status = os.waitpid(member.pid, os.WNOHANG)
            if pid:
                for end in (member.said, member.status):
                    self._read(end, member)
                member.code = os.waitstatus_to_exitcode(status)
                member.gone = True

    def _read(self, end: int, member: _Member) -> None:
        with suppress(BlockingIOError):
            while data := os.read(end, 1 << 16):
                if end == member.said:
                    member.tail = (member.tail + data)[-_KEPT:]
                else:
                    member.finished = member.finished or FINISHED in data
                    member.told = True
                if end == member.said and len(data) == 1 << 16:
                    return  # another rank has something to say, too
            if not member.gone:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(end)


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)
