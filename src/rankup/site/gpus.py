"""The GPUs and cores of this node, asked without torch."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping


def visible_gpus(environment: Mapping[str, str]) -> int:
    """GPUs that a process with this environment sees: `CUDA_VISIBLE_DEVICES`, else the driver's.

    Source: NVML; 0 without a driver.
    """
    listed = _listed(environment)
    if listed is not None:
        return len(listed)
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _listed(environment: Mapping[str, str]) -> list[str] | None:
    """The entries of `CUDA_VISIBLE_DEVICES`; None where it is not set."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    # CUDA ignores what follows the first invalid entry; -1 is the usual way to say none.
    return list(itertools.takewhile(_is_gpu, (name.strip() for name in listed.split(","))))


def cores_near(number: int, environment: Mapping[str, str]) -> set[int]:
    """The cores of the NUMA node of the GPU that a process with this environment sees as `number`.

    Source: NVML; empty where it does not tell.
    """
    import pynvml

    listed = _listed(environment)
    if listed is not None and number >= len(listed):
        return set()
    name = str(number) if listed is None else listed[number]
    words = -(-max(os.cpu_count() or 1, max(os.sched_getaffinity(0)) + 1) // 64)
    try:
        pynvml.nvmlInit()
        if name.isdigit():
            gpu = pynvml.nvmlDeviceGetHandleByIndex(int(name))
        else:
            gpu = pynvml.nvmlDeviceGetHandleByUUID(name)
        masks = pynvml.nvmlDeviceGetCpuAffinity(gpu, words)
    except pynvml.NVMLError:
        return set()
    return {
        word * 64 + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1
    }


def _is_gpu(name: str) -> bool:
    return name.isdigit() or name.startswith(("GPU-", "MIG-"))


def usable_cores() -> int:
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0))
