"""Processes that share the work of a pack: forked, watched, ended together."""

from __future__ import annotations

import errno
import json
import mmap
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ...base.errors import RunFailed, UserError
from .copy import SourceProblems
from .reader import SourceProblem

_POLL = 0.1  # seconds between two looks at what the processes have done
_GRACE = 30.0  # seconds that they have to stop at the end of a write
_SHOWN = 10

Watch = Callable[[], None]


class Stopped(Exception):  # noqa: N818 - it is what happened
    """This process stops because another one has failed, or a signal came."""


class Interrupted(Exception):  # noqa: N818 - it is what happened
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Lost(RunFailed):
    """The pack cannot go on now; what is done is kept."""


class Full(Lost):
    """No space is left, or no quota.

    Attributes:
        said: whether the text tells where, and how much is missing.
    """

    def __init__(self, text: str, said: bool = False) -> None:
        super().__init__(text)
        self.said = said


class Board:
    """Numbers that a process and those it forks all see: bytes and samples done, and "stop"."""

    def __init__(self, workers: int) -> None:
        shared = mmap.mmap(-1, 8 * (1 + 2 * workers))
        cells = np.frombuffer(shared, np.int64)
        self._stop, self._done = cells[:1], cells[1:].reshape(workers, 2)
        self._parent = os.getpid()

    def add(self, worker: int, count: int, samples: int = 0) -> None:
        """Note what a worker has done.

        Raises:
            Stopped: it should do no more.
        """
        self._done[worker] += (count, samples)
        self.check()

    def check(self) -> None:
        """Go on only while all others do.

        Raises:
            Stopped: somebody has failed, or the process that started this one is gone.
        """
        if self._stop[0] or os.getppid() != self._parent:
            raise Stopped

    def stop(self) -> None:
        """Let all workers stop at their next `check`."""
        self._stop[0] = 1

    def done(self) -> tuple[int, int]:
        """Bytes and samples of all workers together."""
        count, samples = self._done.sum(axis=0).tolist()
        return count, samples


@dataclass
class _Child:
    number: int
    pid: int
    pipe: int
    said: bytearray


def run(board: Board, count: int, body: Callable[[int], Any], watch: Watch) -> list[Any]:
    """Run `body(worker)` in `count` forked processes and give what each returned.

    Args:
        body: its result goes through JSON; it looks at `board` between two steps.
        watch: called here ten times a second; may raise, which stops the workers.

    Raises:
        SourceProblems: of all workers.
        Full: no space.
        Lost: a worker was killed, or has failed otherwise.
        UserError, OSError: what a worker raised, and what `watch` raises.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    children: list[_Child] = []
    failures: list[dict[str, Any]] = []
    results: list[Any] = [None] * count
    raised: BaseException | None = None
    try:
        for number in range(count):
            children.append(_fork(number, body, children))
    except OSError as error:  # no more processes
        board.stop()
        raised = error
    waiting = list(children)
    deadline = float("inf")
    while waiting:
        if raised is None:
            try:
                watch()
            except BaseException as error:
                board.stop()
                raised = error
        if (raised or failures) and deadline == float("inf"):
            deadline = time.monotonic() + _GRACE
        if time.monotonic() > deadline:
            for child in waiting:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        for child in _ended(waiting):
            waiting.remove(child)
            failure = _judged(child, results)
            if failure:
                board.stop()
                failures.append(failure)
    if raised is not None:
        raise raised
    if failures:
        watch()  # a signal that has ended them has come here, too, and says more
    _raise(failures)
    return results


def _fork(number: int, body: Callable[[int], Any], others: Sequence[_Child]) -> _Child:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking beside other threads. Those there are, numpy's idle ones and
        # the one that renews the lock, hold nothing that a worker uses.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        for other in others:
            os.close(other.pipe)
        _child(number, body, writing)
    os.close(writing)
    return _Child(number, pid, reading, bytearray())


def _child(number: int, body: Callable[[int], Any], pipe: int) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; see `stop`
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            answer = {"result": body(number)}
            code = 0
        except Stopped:
            answer = {"stopped": True}
        except SourceProblems as error:
            answer = {"source": error.found}
        except SourceProblem as error:
            answer = {"source": [str(error)]}
        except UserError as error:
            answer = {"user": str(error)}
        except OSError as error:
            answer = {"errno": error.errno, "text": error.strerror, "file": _name(error)}
        except MemoryError:
            answer = {"bug": "there is not enough memory"}
        except BaseException:
            answer = {"bug": traceback.format_exc()}
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(pipe, data) :]
    finally:
        os._exit(code)


def _name(error: OSError) -> str | None:
    return None if error.filename is None else os.fsdecode(error.filename)


def _ended(waiting: Sequence[_Child]) -> list[_Child]:
    """Read what workers say, and give those that have closed their pipe."""
    ended = []
    poll = select.poll()
    for child in waiting:
        poll.register(child.pipe, select.POLLIN | select.POLLHUP)
    ready = {descriptor for descriptor, _ in poll.poll(_POLL * 1000)}
    for child in waiting:
        if child.pipe in ready:
            data = os.read(child.pipe, 1 << 16)
            child.said += data
            if not data:
                os.close(child.pipe)
                ended.append(child)
    return ended


def _judged(child: _Child, results: list[Any]) -> dict[str, Any] | None:
    """Take a worker's result; else what it has failed with."""
    _, status = os.waitpid(child.pid, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return {"killed": f"worker {child.number} (process {child.pid}) was ended by {name}"}
    try:
        answer: dict[str, Any] = json.loads(bytes(child.said))
    except ValueError:
        return {"killed": f"worker {child.number} (process {child.pid}) ended without a word"}
    if "result" in answer:
        results[child.number] = answer["result"]
        return None
    return answer


def _raise(failures: Sequence[dict[str, Any]]) -> None:
    """Raise the failure that says most."""
    sources = [text for one in failures for text in one.get("source", ())]
    if sources:
        raise SourceProblems(sources)
    for one in failures:
        if "bug" in one:
            raise Lost(f"a worker failed: {one['bug'].strip()}")
        if "user" in one:
            raise UserError(one["user"])
        if "errno" in one:
            number = int(one["errno"] or 0)
            error = OSError(number, one["text"] or "unknown error", one["file"])
            if number in (errno.ENOSPC, errno.EDQUOT):
                raise Full(str(error))
            raise error
    for one in failures:
        if "killed" in one:
            raise Lost(
                f"{one['killed']}: out of memory, or somebody has killed it; "
                "see the last lines of dmesg or of the job"
            )
    if failures:
        raise Lost("the workers were stopped")


@contextmanager
def signals() -> Iterator[Callable[[], None]]:
    """While the body runs SIGINT and SIGTERM set a flag; gives what raises once it is set.

    Raises (the function given):
        Interrupted: a signal came.
    """
    came: list[int] = []

    def check() -> None:
        if came:
            raise Interrupted(came[0])

    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cores() -> int:
    """Processes that this one may run at once."""
    return len(os.sched_getaffinity(0))


def shown(found: Sequence[str]) -> str:
    """The first of many lines, and how many more there are."""
    lines = [f"  {line}" for line in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  ... and {len(found) - _SHOWN} more")
    return "\n".join(lines)
