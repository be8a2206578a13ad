"""Run an environment's `setup.sh`: its output as it comes, ended with all it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ...base.errors import EXIT_FAILED, RunFailed

_GRACE = 10.0  # seconds that setup.sh has to give its lock back
_LONGEST = 8 * 3600.0  # seconds
_LOOK = 0.05  # seconds between looks at whether it has ended
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def setup(folder: Path, *words: str) -> int:
    """Run `bash setup.sh` there with these words; 0, 1 where it failed, 128 + N at signal N.

    It is a session of its own: what is left of it when it was killed can be told by its group, and
    the next one waits for that. Torch over a slow line takes long; after a working day it hangs.

    Raises:
        RunFailed: bash could not be started, or setup.sh did not end.
    """
    sys.stdout.flush()  # what was said so far stands before what it says
    with _asked_to_end() as asked:
        try:
            process = subprocess.Popen(
                ["bash", "setup.sh", *words],  # noqa: S607
                cwd=folder,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise RunFailed(f"bash cannot be started: {error.strerror}") from None
        end = time.monotonic() + _LONGEST
        try:
            while process.poll() is None and not asked and time.monotonic() < end:
                time.sleep(_LOOK)
            late = process.returncode is None and not asked
        finally:
            if process.returncode is None:
                _end(process)
    if late:
        raise RunFailed(f"{folder / 'setup.sh'} took more than {_LONGEST / 3600:g} h and was ended")
    if asked:
        return 128 + asked[0]
    return EXIT_FAILED if process.returncode else 0


@contextmanager
def _asked_to_end() -> Iterator[list[int]]:
    """The signals to end that came, in order; each handler only notes its own."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    # What was ignored stays so: `nohup` does that with SIGHUP.
    taken = [number for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in taken}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group, politely first: bash's own trap gives the lock back."""
    for number, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            break
    with suppress(ProcessLookupError):  # what has outlived bash
        os.killpg(process.pid, signal.SIGKILL)
