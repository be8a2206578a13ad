"""No process outlives the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "RANKUP_PARENT"  # process id of whoever starts the next process
_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send this process a signal when its parent ends (Linux; else nothing).

    A parent that ended before is noticed by its number.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != int(os.environ.get(PARENT, os.getppid())):
            sys.exit(128 + number)
    os.environ[PARENT] = str(os.getpid())
