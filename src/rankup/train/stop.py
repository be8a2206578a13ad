"""What asks a run of the loop to stop: a deadline, and the signals that end it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..runtime.deadline import END, Deadline

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALS = (*ENDING, signal.SIGUSR1)


class Stop(Deadline):
    """A deadline that also takes Ctrl-C, SIGTERM and SIGHUP, as a wish to end the run."""

    def __init__(self) -> None:
        super().__init__(signals=())

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Handle the signals for the time of the block."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python delivers signals to the main thread alone
            return
        before = {number: signal.signal(number, self._end) for number in ENDING}
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._go_on)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: object) -> None:
        if os.getpid() == self._pid:
            self._wish = END
