"""`rankup doctor` asked again where a busy machine did not answer within its two seconds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from rankup.login.doctor import codes

Done = subprocess.CompletedProcess[str]


def all_in_time(done: Done) -> bool:
    """Whether no check was late, and no file system."""
    return codes.LATE not in done.stdout and "did not answer in time" not in done.stdout


def asked(
    doctor: Callable[[], Done], good: Callable[[Done], bool] = all_in_time, seconds: float = 60
) -> Done:
    """What `doctor` says once that is good; after so many seconds, what it says then.

    It changes nothing, so that it may be asked as often as one likes.
    """
    end = time.monotonic() + seconds
    while True:
        done = doctor()
        if good(done) or time.monotonic() > end:
            return done
