"""A process that is killed while it writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_killed(act: Callable[[], object]) -> Iterator[None]:
    """A copy of this process does `act`, which does not end, and is killed where the block ends."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
