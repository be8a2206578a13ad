"""How many GPUs this node has, asked without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping


def visible_gpus(environment: Mapping[str, str]) -> int:
    """GPUs that a process with this environment sees: `CUDA_VISIBLE_DEVICES`, else the driver's.

    Source: NVML; 0 without a driver.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = [name.strip() for name in listed.split(",") if name.strip()]
        # CUDA ignores what follows the first invalid entry; -1 is the usual way to say none.
        return names.index("-1") if "-1" in names else len(names)
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def usable_cores() -> int:
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0))
