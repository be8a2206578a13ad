"""Worker processes that make batches: for transforms that hold the interpreter's lock.

Each worker has a pipe of its own and there are no locks between them, so that one that is killed
leaves nothing behind that the others wait for. Batches lie in memory of `shared.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from typing import Any

from ..base.errors import UserError
from .draw import Draw
from .making import Fetch, Made
from .options import Options
from .shared import Slot, read
from .worker import Failure, work

_LETTER = 1 << 15  # bytes that a pipe takes at any time, so that nobody waits in the middle
_GRACE = 2.0  # seconds in which a worker may finish the batch that it is at
_ROOM = 0.05  # seconds between looks whether there is room in a pipe
_GUARD = (
    ". Each worker imports the script first: all that the script does belongs below "
    "`if __name__ == '__main__':`"
)
_SPARE = 64  # batches that may be held on to before they are copied out of their slots


@dataclass
class _Worker:
    """A worker, seen from the training process.

    Attributes:
        known: slots that it has.
        tickets: of batches that it has been asked for and has not sent.
        answered: it has sent something.
    """

    number: int
    process: BaseProcess
    pipe: Connection
    known: set[int] = field(default_factory=set)
    tickets: set[int] = field(default_factory=set)
    answered: bool = False


@dataclass
class _Slots:
    """Slots by number, and which of them nobody uses.

    What is put back last is taken first: it is the one still in the processor's cache.
    """

    slots: dict[int, Slot] = field(default_factory=dict)
    free: deque[int] = field(default_factory=deque)

    def take(self) -> int:
        try:
            return self.free.pop()
        except IndexError:
            number = len(self.slots)
            self.slots[number] = Slot.new()
            return number


class Processes:
    """The engine; see `engines.Engine`."""

    def __init__(self, fetch: Fetch, workers: int, options: Options) -> None:
        self._fetch, self._count = fetch, workers
        self._ahead, self._timeout = workers * options.prefetch, options.timeout
        self._context = multiprocessing.get_context(options.context)
        self._workers: list[_Worker] = []
        self._slots = _Slots()
        self._ticket = 0
        self._pid = 0
        self._end: util.Finalize | None = None

    def run(self, draws: Iterator[Draw]) -> Iterator[tuple[Draw, Made]]:
        if not self._workers or self._pid != os.getpid():
            self._start()
        waiting: deque[tuple[int, Draw]] = deque()
        made: dict[int, tuple[int, Any]] = {}
        first = self._ticket

        def ask(draw: Draw) -> None:
            self._take_in(made, first, 0)
            worker = min(self._workers, key=lambda one: len(one.tickets))  # with the least to do
            end = time.monotonic() + self._timeout
            # A worker may be held up by sending something itself, and would wait for ever.
            while not _writable(worker):
                self._take_in(made, first, _ROOM)
                if self._timeout and time.monotonic() > end:
                    raise self._hanging(min(worker.tickets, default=self._ticket))
            waiting.append((self._ticket, draw))
            self._ask(worker, draw)

        try:
            for draw in draws:
                ask(draw)
                if len(waiting) > self._ahead:
                    yield self._next(waiting, made, first)
            while waiting:
                yield self._next(waiting, made, first)
        finally:
            self._slots.free.extend(slot for slot, _ in made.values())

    def _next(
        self, waiting: deque[tuple[int, Draw]], made: dict[int, tuple[int, Any]], first: int
    ) -> tuple[Draw, Made]:
        ticket, draw = waiting[0]
        end = time.monotonic() + self._timeout
        while ticket not in made:
            left = max(0.0, end - time.monotonic()) if self._timeout else None
            if not self._take_in(made, first, left) and left == 0:
                raise self._hanging(ticket)
        waiting.popleft()
        slot, result = made.pop(ticket)
        free = partial(self._slots.free.append, slot)
        if isinstance(result, Failure):
            free()
            result.reraise()
        # Who keeps many batches would run out of file descriptors.
        copy = len(self._slots.slots) > self._ahead + _SPARE
        value: Made = read(self._slots.slots[slot], result, free, copy=copy)
        return draw, value

    def _ask(self, worker: _Worker, draw: Draw) -> None:
        """Ask a worker for a batch."""
        number = self._slots.take()
        slot = self._slots.slots[number]
        letter = pickle.dumps(draw, 5)
        where = len(letter) if len(letter) > _LETTER else 0
        if where:
            slot.write(letter)
        fresh = number not in worker.known
        message = (self._ticket, number, fresh, where, b"" if where else letter)
        try:
            worker.pipe.send(message)
            if fresh:
                send_handle(worker.pipe, slot.descriptor, worker.process.pid)
                worker.known.add(number)
        except OSError:
            raise self._dead(worker) from None
        worker.tickets.add(self._ticket)
        self._ticket += 1

    def _take_in(self, made: dict[int, tuple[int, Any]], first: int, timeout: float | None) -> bool:
        """Take what workers have sent, waiting for some of it; whether there was any."""
        pipes = {worker.pipe: worker for worker in self._workers}
        try:
            ready = wait(list(pipes), timeout)
            for pipe in ready:
                worker = pipes[pipe]  # type: ignore[index]
                try:
                    ticket, slot, result = worker.pipe.recv()
                except (EOFError, OSError):
                    raise self._dead(worker) from None
                worker.tickets.discard(ticket)
                worker.answered = True
                if ticket >= first:
                    made[ticket] = slot, result
                else:  # of a loop that was left before its end
                    self._slots.free.append(slot)
        except (
            BaseException
        ):  # Ctrl-C in the middle of a message: the rest would be read as a new one
            self.close()
            raise
        return bool(ready)

    def _start(self) -> None:
        self._workers, self._slots, self._pid = [], _Slots(), os.getpid()
        self._end = util.Finalize(self, _end, (self._workers, self._slots), exitpriority=100)
        try:
            for number in range(self._count):
                self._workers.append(self._started(number))
        except BaseException:
            self.close()
            raise

    def _started(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=work,
            args=(self._fetch, theirs),
            name=f"rankup-data-{number}",
            daemon=True,
        )
        try:
            process.start()
        except AssertionError as error:  # Python's own, of a process that is somebody's daemon
            ours.close()
            raise UserError(
                f"worker processes cannot be started from this process: {error}. Take "
                f"kind='threads' or workers=0"
            ) from None
        except (EOFError, ConnectionError) as error:  # it has ended before it had its task
            ours.close()
            raise UserError(
                f"data worker {number} ended as it was started ({error or type(error).__name__}); "
                f"what it said stands above{_GUARD if self._imports() else ''}"
            ) from None
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            ours.close()
            method = self._context.get_start_method()
            raise UserError(
                f"the data set cannot be handed to worker processes ({method}): {error}. What "
                f"travels there has to be found by its name: define the transform and the collate "
                f"function at the top level of a module, not as a lambda or inside a function; or "
                f"take context='fork', kind='threads' or workers=0"
            ) from None
        finally:
            theirs.close()
        return _Worker(number, process, ours)

    def close(self) -> None:
        """End the workers; batches that were handed out stay valid."""
        if self._end is not None and self._pid == os.getpid():
            self._end()
        self._workers, self._slots, self._end = [], _Slots(), None

    def _imports(self) -> bool:
        """Whether workers import the script, since they are no copies of this process."""
        return self._context.get_start_method() != "fork"

    def _dead(self, worker: _Worker) -> UserError:
        worker.process.join(_GRACE)
        code = worker.process.exitcode
        hint = _GUARD if code == 1 and not worker.answered and self._imports() else ""
        self.close()
        return UserError(
            f"data worker {worker.number} (process {worker.process.pid}) {_ended(code)}{hint}"
        )

    def _hanging(self, ticket: int) -> UserError:
        at = [worker for worker in self._workers if ticket in worker.tickets]
        names = ", ".join(f"{one.number} (process {one.process.pid})" for one in at)
        self.close()
        return UserError(
            f"data worker {names} has not made its batch within {self._timeout:g} s, and was "
            f"ended. Is the file system stuck, or does the transform wait for something (a lock, "
            f"the network)? workers=0 shows where; Loader(timeout=…) allows more time, 0 for ever"
        )


def _writable(worker: _Worker) -> bool:
    """Whether there is room for a letter in its pipe."""
    return bool(select.select([], [worker.pipe], [], 0)[1])


def _ended(code: int | None) -> str:
    if code is None:
        return "closed its pipe and does not end"
    if code == -signal.SIGKILL:
        return (
            "was killed (SIGKILL), most likely since the memory of the job or the node was used "
            "up: take fewer workers, a smaller prefetch or less staged data, or ask for more "
            "memory. In Slurm, `sacct -j JOB -o State,MaxRSS` says more"
        )
    if code == -signal.SIGBUS:
        return (
            "was ended by SIGBUS: a file that it had mapped was cut short or its disk failed, or "
            "memory was used up"
        )
    if code < 0:
        what = signal.Signals(-code).name
        return (
            f"was ended by {what}: a C library has crashed, on a damaged sample perhaps; workers=0 "
            f"with `python -X faulthandler` shows where"
        )
    return f"ended with exit code {code}; what it said stands above"


def _end(workers: list[_Worker], slots: _Slots) -> None:
    """End workers, first kindly. Also at the end of the process: then without their `Processes`."""
    for worker in workers:
        with suppress(OSError, ValueError):  # it is gone, or its pipe is full: then it is killed
            if _writable(worker):
                worker.pipe.send(None)
    until = time.monotonic() + _GRACE
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join(_GRACE)  # what waits for a file server cannot be ended
        worker.pipe.close()
    workers.clear()
    for slot in slots.slots.values():
        slot.close()
