"""The thread of each rank that notices a hang, and the way the ranks make one verdict of it."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from . import recorder
from .leaving import TRAINING
from .state import Call, State, fingerprint, from_json, main_frame, stack_of, to_json
from .verdict import verdict

AT_THE_LIMIT = "at the job's time limit nothing moved"
_TICK = 1.0
_QUICK = 0.25  # while a hang is looked into
_IDLE_POLL = 5  # ticks between looks at the store while collectives go on
_PREFIX = "rankup/hang"
_PATIENCE = 5.0  # seconds in which the others answer there


class Watch(threading.Thread):
    """Looks on while this rank trains; ends the run when a collective does not come to its end.

    Args:
        store: of the process group.
        timeout: of calls that the recorder does not know.
        tell: takes the verdict on the rank that made it, and nobody is ended; without it the
            verdict is left for the launcher, and every rank ends.
        still: seconds without movement after which the ranks' places are written down at the job's
            time limit.
    """

    def __init__(
        self,
        store: dist.Store,
        timeout: timedelta,
        tell: Callable[[str], None] | None = None,
        still: float = 10.0,
    ) -> None:
        super().__init__(name="rankup-hang", daemon=True)
        self._timeout = timeout.total_seconds()
        self._shared = store
        self._own: dist.Store | None = None
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._tell = tell
        self._began = time.time()
        # Its number alone: to keep the group would keep its connections after it is destroyed.
        self._group = id(dist.group.WORLD)
        self._halted = threading.Event()
        self._blocked = recorder.Blocked()
        self._counts: dict[str, int] = {}
        self._moved = time.time()
        self._limit, self._still_for = _end_of_job(), still
        self._answered = 0
        self._store.set(f"{_PREFIX}/process/{self._rank}", f"{_node()} {os.getpid()}")
        # A daemon thread that is in native code when the interpreter goes down could crash it.
        atexit.register(self.halt)

    def halt(self) -> None:
        """Look no longer."""
        self._halted.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(2.0)
        atexit.unregister(self.halt)

    def run(self) -> None:
        """Look once a second, for as long as the process group lives."""
        fingerprint()  # reading the script is nothing to do in the middle of a hang
        ticks = 0
        while not self._halted.wait(_TICK) and id(dist.group.WORLD) == self._group:
            ticks += 1
            try:
                done = self._look(ticks)
            except (RuntimeError, OSError):
                # The store is gone: its host has ended, and peers learn of that by themselves.
                done = self._without_store()
            if done:
                break
        atexit.unregister(self.halt)

    def _look(self, ticks: int) -> bool:
        """One tick; True when there is nothing more to look at."""
        now = time.time()
        counts = recorder.counts()
        still = counts == self._counts
        if not still:
            self._counts, self._moved = counts, now
        if (still or ticks % _IDLE_POLL == 0) and self._asked():
            return True
        if still and (text := TRAINING.missing(self._store, self._rank, self._size)):
            self._end(text)
            return True
        # A stack costs nothing; all else is read only where nothing has moved for long.
        self._timeout = recorder.timeout(dist.group.WORLD) or self._timeout
        long = 0.2 * self._timeout
        calls = self._blocked.look(main_frame(), now, self._timeout, least=long)
        if now - self._moved > long:
            calls = recorder.pending(self._began) or calls
        if now > self._limit and now - self._moved > self._still_for:
            self._limit = math.inf
            if recorder.pending(self._began) or self._blocked.look(
                main_frame(), now, self._timeout, least=self._still_for
            ):
                self._say_at_limit()
        if calls and now > calls[0].since + calls[0].timeout - _lead(calls[0].timeout):
            return self._judge(calls[0])
        return False

    def _asked(self) -> bool:
        """Answer another rank's question; True when the verdict is there and this rank leaves."""
        number = self._store.add(f"{_PREFIX}/asked", 0)
        if number > self._answered:
            self._answer(number)
        if number and self._store.check([f"{_PREFIX}/done"]):
            if self._tell is None:
                _leave()
            return True
        return False

    def _answer(self, number: int) -> State:
        self._answered = number
        frame = main_frame()
        blocked = self._blocked.look(frame, time.time(), self._timeout)
        state = State(
            rank=self._rank,
            node=_node(),
            calls=recorder.pending(self._began) or blocked,
            counts=recorder.counts(),
            stack=stack_of(frame),
            code=fingerprint(),
        )
        self._store.set(f"{_PREFIX}/{number}/{self._rank}", to_json(state))
        return state

    def _judge(self, call: Call) -> bool:
        """Ask all ranks what they do; when the call's time is up, say what that means."""
        if self._store.add(f"{_PREFIX}/asked", 0) > self._answered:
            return self._asked()  # another rank has been quicker
        if (question := self._ask()) is None:
            return False
        number, states = question
        deadline = call.since + call.timeout - _margin(call.timeout)
        while (still := self._still(call)) and time.time() < deadline:
            if self._halted.wait(_QUICK):
                return True
            self._gather(number, states)
        if not still:  # it came late, and in time
            self._store.set(f"{_PREFIX}/over/{number}", "1")
            return False
        self._close(verdict(states, self._size), states)
        return True

    def _say_at_limit(self) -> None:
        """Write down what each rank waits in: the job is about to be ended by its time limit."""
        if (question := self._ask()) is None:
            return
        number, states = question
        deadline = time.time() + _PATIENCE
        while len(states) < self._size and time.time() < deadline:
            if self._halted.wait(_QUICK):
                return
            self._gather(number, states)
        self._store.set(f"{_PREFIX}/over/{number}", "1")
        text = f"{AT_THE_LIMIT}:\n{verdict(states, self._size, timed_out=False)}"
        if self._tell is not None:
            self._tell(text)
        else:
            _publish(text)

    def _ask(self) -> tuple[int, dict[int, State]] | None:
        """Put a question to all ranks: its number and this rank's answer; None if another does."""
        number = self._store.add(f"{_PREFIX}/asked", 0)
        if number and not self._store.check([f"{_PREFIX}/over/{number}"]):
            return None  # its judge is at it
        number += 1
        if self._store.add(f"{_PREFIX}/judge/{number}", 1) > 1:
            return None  # another rank is about to ask
        self._store.add(f"{_PREFIX}/asked", 1)
        return number, {self._rank: self._answer(number)}

    def _close(self, text: str, states: Mapping[int, State]) -> None:
        """Give the verdict out and let every rank end."""
        if self._tell is not None:
            self._tell(text)
            self._store.set(f"{_PREFIX}/done", "1")
            return
        try:
            _publish(text)
        finally:
            self._end_silent(states)
            self._store.set(f"{_PREFIX}/done", "1")
            _leave()

    def _end(self, text: str) -> None:
        """Say why this rank waits in vain, and end it."""
        if self._tell is not None:
            self._tell(text)
            return
        try:
            _publish(text)
        finally:
            _leave()

    def _gather(self, number: int, states: dict[int, State]) -> None:
        for rank in range(self._size):
            key = f"{_PREFIX}/{number}/{rank}"
            if rank not in states and self._store.check([key]):
                states[rank] = from_json(self._store.get(key))

    def _end_silent(self, states: Mapping[int, State]) -> None:
        """Kill ranks of this node that do not answer: a stopped one would not hear its launcher."""
        for rank in set(range(self._size)) - set(states):
            key = f"{_PREFIX}/process/{rank}"
            if self._store.check([key]):
                node, _, number = self._store.get(key).decode().rpartition(" ")
                if node == _node() and _is_sibling(int(number)):
                    os.kill(int(number), signal.SIGKILL)

    def _still(self, call: Call) -> bool:
        """Whether this rank waits in `call` even now."""
        blocked = self._blocked.look(main_frame(), time.time(), self._timeout)
        calls = recorder.pending(self._began) if call.number >= 0 else blocked
        return any(
            (c.group, c.number, c.since) == (call.group, call.number, call.since) for c in calls
        )

    @property
    def _store(self) -> dist.Store:
        """The group's store, or a connection of this thread's own to it.

        A main thread that waits in the store keeps its connection to itself. A second one for all
        would double the time that the store's host takes to look up the names of its clients.
        """
        if self._own is None and recorder.in_store(main_frame()):
            self._own = self._shared.clone()  # type: ignore[attr-defined] # not in torch's stubs
        return self._own or self._shared

    def _without_store(self) -> bool:
        """After an error: True when the store is gone, so that there is nobody to talk to."""
        try:
            self._store.add(f"{_PREFIX}/asked", 0)
        except (RuntimeError, OSError):
            # It went down with the rank that made the verdict on what this one waits in.
            if self._answered and recorder.counts() == self._counts and dist.is_initialized():
                _leave()
            return True
        return False


def _end_of_job() -> float:
    """Return the time by which the ranks are to have ended; never outside a job."""
    try:
        return float(os.environ.get("RANKUP_END_TIME", ""))
    except ValueError:
        return math.inf


def stop_watching() -> None:
    """End the watch of this process, before its process group goes."""
    for thread in threading.enumerate():
        if isinstance(thread, Watch):
            thread.halt()


def _lead(timeout: float) -> float:
    """Seconds before the end of a collective's time at which ranks are asked."""
    return min(20.0, max(0.1 * timeout, min(6.0, 0.7 * timeout)))


def _margin(timeout: float) -> float:
    """Seconds before it at which the verdict is made, ahead of the backend's own exception."""
    return min(2.0, 0.2 * timeout)


def _publish(text: str) -> None:
    """Leave the verdict where the launcher finds it, else print it."""
    directory = os.environ.get("RANKUP_RUN_DIR")
    if directory is not None:
        with contextlib.suppress(OSError):
            _note(Path(directory) / "log", text)
            return
    print(f"\n{text}", file=sys.stderr, flush=True)


def _note(log: Path, text: str) -> None:
    """As `launch/failure.py` reads it: a failure that speaks for all ranks."""
    note = {
        "rank": dist.get_rank(),
        "node": _node(),
        "time": time.time(),
        "message": text,
        "traceback": "",
        "exit_code": 1,
        "said_all": True,
        "world_size": dist.get_world_size(),
    }
    path = log / "failure-hang.json"
    temporary = log / ".failure-hang.tmp"
    temporary.write_text(json.dumps(note) + "\n")
    temporary.replace(path)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _is_sibling(process: int) -> bool:
    """Whether a number is that of a process which the same launcher has started."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # gone, or a machine without /proc
        return False
    return int(stat.rpartition(")")[2].split()[1]) == os.getppid()


def _leave() -> None:
    """End this process; its main thread waits in native code and would not hear of it."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)
