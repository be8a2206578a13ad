"""Questions that are asked at once, each in a thread, with one moment at which all are over.

A thread that hangs, in a file system or in a resolver, is a daemon: it does not delay the exit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_NAME = "doctor asks"


class Late(Exception):  # noqa: N818 - nothing is wrong, only too slow
    """No answer in time.

    Attributes:
        what: what did not answer.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} did not answer in time")
        self.what = what


class Clock:
    """The moment at which the answers have to be there.

    Attributes:
        limit: seconds from its making to that moment.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._start = time.monotonic()

    def passed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Seconds until then; 0 once it is over."""
        return max(0.0, self.limit - self.passed())


class Question(Generic[T]):
    """A function that runs in a thread from now on.

    Args:
        what: what is asked, for `Late`.
        clock: when the answer has to be there.
    """

    def __init__(self, what: str, clock: Clock, function: Callable[[], T]) -> None:
        self._what = what
        self._clock = clock
        self._function = function
        self._done = threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None
        try:
            threading.Thread(target=self._run, name=_NAME, daemon=True).start()
        except RuntimeError as error:  # the user's limit of processes counts threads, too
            self._error = error
            self._done.set()

    def answer(self, at_most: float | None = None) -> T:
        """What the function returned; waits for it, until the clock is over at most.

        Args:
            at_most: seconds to wait, where that is sooner.

        Raises:
            Late: it has not returned, or what it asked itself was late.
            Exception: what the function raised.
        """
        left = self._clock.left()
        if not self._done.wait(left if at_most is None else min(left, at_most)):
            raise Late(self._what)
        if self._error is not None:
            raise self._error
        return self._value[0]

    def _run(self) -> None:
        try:
            self._value.append(self._function())
        except BaseException as error:
            self._error = error
        self._done.set()


def is_asking() -> bool:
    """Whether a question of this process is still without an answer."""
    return any(thread.name == _NAME for thread in threading.enumerate())
