"""The shared memory of this node, through which data-loader workers hand over batches."""

from __future__ import annotations

import os
from pathlib import Path

from ...base.amounts import size
from ...base.findings import Finding
from . import codes

FOLDER = Path("/dev/shm")  # noqa: S108 - its size is asked, nothing is written
_LITTLE = 10**9


def left(folder: Path = FOLDER) -> tuple[int, int] | None:
    """Bytes in all and free; None where a system has no such folder (macOS)."""
    try:
        said = os.statvfs(folder)
    except FileNotFoundError:
        return None
    return said.f_blocks * said.f_frsize, said.f_bavail * said.f_frsize


def check_memory(said: tuple[int, int] | None) -> list[Finding]:
    """Whether there is enough for some batches per worker."""
    if said is None:
        return []
    total, free = said
    message = f"{FOLDER} of this node: {size(free)} of {size(total)} left"
    if free >= _LITTLE:
        return [Finding(codes.SHARED_MEMORY, "ok", "shared memory", message)]
    return [
        Finding(
            codes.SHARED_MEMORY,
            "warning",
            "shared memory",
            f"{message}: workers of a DataLoader die there with a bus error",
            f"delete what is left over in {FOLDER}; in a container: --ipc=host or --shm-size=8g; "
            "or fewer workers",
        )
    ]
