"""Where a rank reads and writes: its own GPU for what a file holds, one file for all ranks."""

from __future__ import annotations

import os
from typing import Any

from .world import is_root_process, setup


def here(storage: Any, location: str) -> Any:
    """`torch.load(path, map_location=rankup.here)`: what was saved from a GPU comes to this rank's.

    Without a `map_location` it would come to the GPU it was saved from, on all ranks the same one.
    What was saved from the CPU stays there.
    """
    device = setup().device
    if location.startswith("cuda") and device.type == "cuda":
        return storage.cuda(device.index)
    return storage


def path0(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The path on rank 0; on the others a file that swallows what is written.

    For `open(rankup.path0(path), "w")` in a script whose every rank writes the same log.
    """
    return path if is_root_process() else os.devnull
