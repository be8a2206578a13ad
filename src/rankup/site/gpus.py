"""How many GPUs this node has, asked without torch."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping


def visible_gpus(environment: Mapping[str, str]) -> int:
    """GPUs that a process with this environment sees: `CUDA_VISIBLE_DEVICES`, else the driver's.

    Source: NVML; 0 without a driver.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        # CUDA ignores what follows the first invalid entry; -1 is the usual way to say none.
        names = [name.strip() for name in listed.split(",")]
        return len(list(itertools.takewhile(_is_gpu, names)))
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _is_gpu(name: str) -> bool:
    return name.isdigit() or name.startswith(("GPU-", "MIG-"))


def usable_cores() -> int:
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0))
