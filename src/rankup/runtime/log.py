"""What rank 0 says and writes down, and what the others leave unsaid."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from .world import is_root_process


def print0(*values: Any, **options: Any) -> None:
    """`print` on rank 0 alone."""
    if is_root_process():
        print(*values, **options)


def log_metrics(**values: float | int | str | bool | None) -> None:
    """Append one line to the run's `metrics.jsonl` from rank 0; without a run directory, nothing.

        rankup.log_metrics(step=step, loss=loss, lr=lr)

    A `time` in seconds since 1970 is added.
    """
    directory = os.environ.get("RANKUP_RUN_DIR")
    if directory is None or not is_root_process():
        return
    line = json.dumps({"time": round(time.time(), 3), **values}) + "\n"
    # One write of one line, so that a reader of the growing file never sees lines mixed.
    descriptor = os.open(
        Path(directory) / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666
    )
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
