"""Ending what was started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that was started in a session of its own, with its group, and reap it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
