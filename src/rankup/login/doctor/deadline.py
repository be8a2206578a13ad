"""Readings and commands that run side by side, in daemon threads, up to one deadline.

A thread that hangs, in a file system or in a resolver, does not delay the exit.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar, overload

from ...base.processes import end_group

T = TypeVar("T")
D = TypeVar("D")
# A signal that the kernel hands to another thread does not wake the main thread out of its wait:
# Python acts on it when that thread goes on.
_SIGNAL_SECONDS = 0.1


class Deadline:
    """A moment some seconds from now.

    Attributes:
        seconds: from its making to that moment.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until then; 0 once it is over."""
        return max(0.0, self._end - time.monotonic())

    def wait(self, future: Future[T], otherwise: D) -> T | D:
        """Return the result of a future, or `otherwise` where there is none in time.

        Raises:
            Exception: what its function raised.
        """
        while not future.done() and (left := self.left()):
            wait([future], min(left, _SIGNAL_SECONDS))
        return future.result() if future.done() else otherwise


def start(function: Callable[[], T]) -> Future[T]:
    """Run a function in a daemon thread from now on; a pool would wait for its threads at exit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError as error:  # the user's limit of processes counts threads, too
        future.set_exception(error)
    return future


class Readings:
    """An object with attributes that are each a `reading`."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[Any]] = {}
        self.lock = threading.Lock()


class reading(Generic[T]):  # noqa: N801 - used like `property`
    """A method that becomes an attribute: it runs once, in a thread, when it is first asked for.

    Who asks waits for it, without limit: its thread is one that may be left behind.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read

    @overload
    def __get__(self, owner: None, kind: type[Readings]) -> reading[T]: ...
    @overload
    def __get__(self, owner: Readings, kind: type[Readings]) -> T: ...
    def __get__(self, owner: Readings | None, kind: type[Readings]) -> reading[T] | T:
        return self if owner is None else self.future(owner).result()

    def future(self, owner: Readings) -> Future[T]:
        """Return its future, which starts now where it has not."""
        name = self._read.__name__
        with owner.lock:
            if name not in owner.futures:
                owner.futures[name] = start(lambda: self._read(owner))
            return owner.futures[name]


def output(words: Sequence[str], environment: Mapping[str, str], deadline: Deadline) -> str | None:
    """Return what a command prints, whatever its exit code; nothing where it cannot be started.

    None: it was not done in time, and was ended with all it had started.
    """
    try:
        process = subprocess.Popen(
            list(words),
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        return process.communicate(timeout=deadline.left())[0]
    except subprocess.TimeoutExpired:
        end_group(process)
        return None
