"""Who works in a run directory now, as far as this host can see."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_VIEWS = ("status", "logs", "cancel")


def held(path: Path) -> bool:
    """Whether a process of this host holds the run; True where that cannot be asked."""
    try:
        with (path / "log" / "lock").open() as file:
            # Shared, so that two who look at once do not take each other for the run.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # somebody has it, or the file system knows no locks
        return True
    return False


def written(path: Path) -> tuple[int, str] | None:
    """Process and host that took the lock last; None where that was a job, or nobody."""
    with suppress(OSError):
        text = (path / "log" / "lock").read_text(errors="replace")[:400]
        if match := re.fullmatch(r"process (\d{1,10}) on (\S+)", text.strip()):
            return int(match[1]), match[2]
    return None


def holder(path: Path) -> int | None:
    """The `rankup run` on this host that holds the run; None where there is none of ours."""
    import psutil

    taken = written(path)
    if taken is None or taken[1] != os.uname().nodename or not held(path):
        return None
    with suppress(OSError, psutil.Error):
        process = psutil.Process(taken[0])
        # A number is given to another process once its own has ended.
        old = process.create_time() <= (path / "log" / "lock").stat().st_mtime + 1
        ours = process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
        if old and ours and _starts_runs(process.cmdline()):
            return process.pid
    return None


def orphaned(path: Path) -> int | None:
    """The `rankup run` of this host that has ended while its job script holds the run."""
    import psutil

    taken = written(path)
    if taken is None or taken[1] != os.uname().nodename or not held(path):
        return None
    return None if psutil.pid_exists(taken[0]) else taken[0]


def _starts_runs(words: Sequence[str]) -> bool:
    """Whether a command line is `rankup`, `python rankup` or `python -m rankup`, and no view."""
    for place, word in enumerate(words[:5]):
        module = word == "rankup" and place > 0 and words[place - 1] == "-m"
        if module or (place < 2 and Path(word).name == "rankup"):
            return not set(words[place + 1 : place + 2]) & set(_VIEWS)
    return False
