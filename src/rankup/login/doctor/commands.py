"""Commands of the site, with a time limit; and the end of all that are still there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

from ...base.processes import end_group
from .asking import Clock, Late

# Every process that doctor starts, through Slurm's client too, has it in its environment: so it
# ends its own children, and nobody else's.
MARK = "RANKUP_DOCTOR"
_ROUNDS = 3


def run(words: Sequence[str], environment: Mapping[str, str], clock: Clock) -> str:
    """What a command prints, whatever its exit code.

    Raises:
        Late: it was not done in time, and was ended with all it had started.
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        list(words),
        env={**environment, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=clock.left())
    except subprocess.TimeoutExpired:
        end_group(process)
        raise Late(f"`{' '.join(words)}`") from None
    return output


def end_all(mark: str) -> None:
    """Kill the processes below this one that have `MARK=mark` in their environment.

    Their threads here have nothing to wait for then; one that would start a next command is met in
    the next round.
    """
    for _ in range(_ROUNDS):
        ours = [child for child in psutil.Process().children(recursive=True) if _has(child, mark)]
        if not ours:
            return
        for process in ours:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(ours, timeout=0.05)


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):  # gone
        return False
