"""No process outlives the one that started it."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends (Linux; else nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
