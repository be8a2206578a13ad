"""Functions of NVML that play a script:

    {"gpus": [{"name": "A100", "uuid": "GPU-0", "memory": 4e10,
               "power_limit": 400, "clock_max": 1410,
               "values": {"util": 97, "memory": [1e9, 3e10], "power": null, "temperature": 61},
               "counters": {"nvlink": 2e10}}],
     "call_seconds": 5e-5}

A value is a number, a list (one per question, the last one stays), null (this GPU does not say) or
"lost"; units as in `rankup.monitor.lines`, energy in J. Counters grow by so many bytes per second.
A call takes `call_seconds` of CPU time. Without a list of GPUs the driver is not loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


def functions(nvml: Any, script: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Functions by the names of `nvml`, which is the real module; a handle is a number."""
    gpus: list[dict[str, Any]] = script.get("gpus") or []
    calls: dict[tuple[int, str], int] = {}
    began = time.monotonic()

    def burn() -> None:
        end = time.thread_time() + script.get("call_seconds", 0.0)
        while time.thread_time() < end:
            pass

    def value(gpu: int, what: str) -> Any:
        burn()
        call = calls[gpu, what] = calls.get((gpu, what), -1) + 1
        found = gpus[gpu].get("values", {}).get(what)
        if isinstance(found, list):
            found = found[min(call, len(found) - 1)] if found else None
        if found == "lost":
            raise nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)
        if found is None:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        return found

    def count() -> int:
        if not gpus:
            raise nvml.NVMLError(nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return len(gpus)

    class Memory:
        def __init__(self, gpu: int, version: int | None = None) -> None:
            self.gpu, self.total = gpu, gpus[gpu].get("memory", 4e10)

        @property
        def used(self) -> Any:
            return value(self.gpu, "memory")

    def limit(gpu: int, name: str) -> Any:
        found = gpus[gpu].get(name)
        if found is None:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        return found

    def fields(gpu: int, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        burn()
        names = {
            nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: "pcie_rx",
            nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: "pcie_tx",
            nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES: "nvlink",
            nvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES: "nvlink",
        }
        seconds = time.monotonic() - began
        counters = gpus[gpu].get("counters", {})
        found = []
        for field, _ in wanted:
            rate = counters.get(names.get(field))
            # Of NVLink half is received, and half sent.
            half = 2 if names.get(field) == "nvlink" else 1
            counted = SimpleNamespace(dVal=(rate or 0.0) * seconds / half)
            failed = nvml.NVML_ERROR_NOT_SUPPORTED if rate is None else nvml.NVML_SUCCESS
            found.append(SimpleNamespace(nvmlReturn=failed, valueType=0, value=counted))
        return found

    def throughput(gpu: int, way: int) -> Any:
        rx = way == nvml.NVML_PCIE_UTIL_RX_BYTES
        return value(gpu, "pcie_rx" if rx else "pcie_tx") / 1000

    return {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda gpu: gpus[gpu].get("name", "A GPU of a test"),
        "nvmlDeviceGetUUID": lambda gpu: gpus[gpu].get("uuid", f"GPU-{gpu}"),
        "nvmlDeviceGetMemoryInfo": Memory,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: limit(gpu, "power_limit") * 1000,
        "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: limit(gpu, "clock_max"),
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=value(gpu, "util")),
        "nvmlDeviceGetPowerUsage": lambda gpu: value(gpu, "power") * 1000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: value(gpu, "energy") * 1000,
        "nvmlDeviceGetTemperature": lambda gpu, sensor: value(gpu, "temperature"),
        "nvmlDeviceGetClockInfo": lambda gpu, kind: value(gpu, "clock"),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: value(gpu, "throttle"),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: value(gpu, "throttle"),
        "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [None] * value(gpu, "processes"),
        "nvmlDeviceGetFieldValues": fields,
        "nvmlDeviceGetPcieThroughput": throughput,
    }
