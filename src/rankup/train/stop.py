"""Signals that ask a run to stop: the handler only sets a flag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class StopFlag:
    """True once this rank was asked to stop; the ranks agree on it at a step boundary."""

    def __init__(self) -> None:
        self.raised = False

    @contextmanager
    def listening(self) -> Iterator[StopFlag]:
        """Take Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 as a wish to stop for the time of the block."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python delivers signals to the main thread alone
            return
        before = {number: signal.signal(number, self._raise) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _raise(self, number: int, frame: object) -> None:
        self.raised = True
