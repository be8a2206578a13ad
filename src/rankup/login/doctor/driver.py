"""What NVIDIA's driver says of this node, without torch."""

from __future__ import annotations

from collections.abc import Mapping

from ...site.gpus import visible_gpus


def gpus_and_cuda(environment: Mapping[str, str]) -> tuple[int, tuple[int, int] | None]:
    """GPUs that a process sees here, and the newest CUDA that the driver takes, as `(12, 8)`.

    Source: NVML; no GPUs and None without a driver.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0, None
    try:
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    except pynvml.NVMLError:
        version = 0
    finally:
        pynvml.nvmlShutdown()
    cuda = (version // 1000, version % 1000 // 10) if version else None
    return visible_gpus(environment), cuda
