"""What rank 0 says and writes down, and what the others leave unsaid."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from .world import is_root_process

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PRINTED: set[str] = set()


def print0(*values: Any, **options: Any) -> None:
    """`print` on rank 0 alone."""
    if is_root_process():
        print(*values, **options)


def print_once(message: str) -> None:
    """Print a warning on rank 0's standard error, each message once in a process."""
    if is_root_process() and message not in _PRINTED:
        _PRINTED.add(message)
        print(message, file=sys.stderr, flush=True)


def log_metrics(**values: float | int | str | bool | None) -> None:
    """Append one line to the run's `metrics.jsonl` from rank 0; without a run directory, nothing.

        rankup.log_metrics(step=step, loss=loss, lr=lr)

    A `time` in seconds since 1970 is added. A full disk costs the line, not the training.
    """
    directory = os.environ.get("RANKUP_RUN_DIR")
    if directory is None or not is_root_process():
        return
    line = json.dumps({"time": round(time.time(), 3), **values}) + "\n"
    try:
        _append(Path(directory) / "metrics.jsonl", line.encode())
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # Python shows a warning of one place once.
        warnings.warn(
            f"a line of metrics.jsonl could not be written: {error.strerror}; the training goes on",
            stacklevel=2,
        )


def _append(path: Path, line: bytes) -> None:
    """Append a whole line or nothing: what a full disk took of it is cut off again."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        try:
            # One write of one line, so that a reader of the growing file never sees lines mixed.
            while line:
                line = line[os.write(descriptor, line) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
