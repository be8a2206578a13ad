"""GPUs as NVML sees them, through nvidia-ml-py: all of the node, whatever a process may use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from ..lines import Gpu
from .gpu import Failed, Lost, NotThere

_NEVER = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)
# Why the driver does not answer at all, in words for somebody who has not heard of NVML.
_NO_DRIVER = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver is installed there",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver was updated, and the node was not restarted since"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "the NVIDIA driver does not let this user ask",
}
_ALL_LINKS = 0xFFFFFFFF
# Field values by our name for them: fields of which each counts a part, and bytes of its unit. An
# older nvidia-ml-py, and an older driver, lack some; of two ways to count the first that answers
# is taken.
_FIELDS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("pcie_rx", ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES",), 1),
    ("pcie_tx", ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES",), 1),
    (
        "nvlink",
        ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
        1024,
    ),
    ("nvlink", ("NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES", "NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES"), 1),
)
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")  # by NVML's nvmlValueType_t


class Nvml:
    """`gpu.Source` of this node's driver.

    Raises:
        Failed: there is no driver, or it does not answer.
    """

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            why = _NO_DRIVER.get(error.value, f"the NVIDIA driver does not answer ({error})")
            raise Failed(why) from None
        self._handles: dict[int, Any] = {}
        for index in range(count):
            # Slurm hides the GPUs of other jobs of a shared node: they are counted, and no more.
            with suppress(pynvml.NVMLError):
                self._handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
        if count and not self._handles:
            raise Failed(f"it has {count} GPUs, and the driver lets this job see none of them")
        self._fields = _known_fields()
        self._ask: dict[str, Callable[[Any], float]] = {
            "util": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "memory": _used,
            "power": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "energy": lambda gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
            "temperature": lambda gpu: pynvml.nvmlDeviceGetTemperature(
                gpu, pynvml.NVML_TEMPERATURE_GPU
            ),
            "clock": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "throttle": _throttle,
            "processes": lambda gpu: len(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
            "pcie_rx": lambda gpu: _throughput(gpu, pynvml.NVML_PCIE_UTIL_RX_BYTES),
            "pcie_tx": lambda gpu: _throughput(gpu, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        }

    def gpus(self) -> list[Gpu]:
        """See `gpu.Source`."""
        return [_describe(index, handle) for index, handle in self._handles.items()]

    def ask(self, index: int, what: str) -> float:
        """See `gpu.Source`."""
        return _answer(lambda: self._ask[what](self._handles[index]))

    def counters(self, index: int) -> dict[str, float]:
        """See `gpu.Source`."""
        wanted = [field for _, fields, _ in self._fields for field in fields]
        if not wanted:
            raise NotThere("this nvidia-ml-py knows no counters")
        values = _answer(lambda: pynvml.nvmlDeviceGetFieldValues(self._handles[index], wanted))
        said = iter([_value(value) for value in values])
        found: dict[str, float] = {}
        for name, fields, unit in self._fields:
            parts = [next(said) for _ in fields]
            if all(part is not None for part in parts) and name not in found:
                found[name] = unit * sum(part for part in parts if part is not None)
        return found


def _known_fields() -> list[tuple[str, list[tuple[int, int]], int]]:
    return [
        (
            name,
            # The scope of NVLink's is a link, or all of them; PCIe's have none.
            [(getattr(pynvml, one), _ALL_LINKS if "NVLINK" in one else 0) for one in fields],
            unit,
        )
        for name, fields, unit in _FIELDS
        if all(hasattr(pynvml, one) for one in fields)
    ]


def _value(field: Any) -> float | None:
    if field.nvmlReturn != pynvml.NVML_SUCCESS or field.valueType >= len(_VALUES):
        return None
    return float(getattr(field.value, _VALUES[field.valueType]))


def _answer(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise Lost(str(error)) from None
        raise (NotThere if error.value in _NEVER else Failed)(str(error)) from None


def _optional(question: Callable[[], Any]) -> Any:
    with suppress(NotThere, Lost, Failed):
        return _answer(question)
    return None


def _describe(index: int, handle: Any) -> Gpu:
    name = _optional(lambda: pynvml.nvmlDeviceGetName(handle)) or "unknown GPU"
    uuid = _optional(lambda: pynvml.nvmlDeviceGetUUID(handle)) or ""
    memory = _optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    limit = _optional(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    clock = _optional(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    return Gpu(
        index=index,
        name=_text(name),
        uuid=_text(uuid),
        memory=float(memory or 0),
        power_limit=None if limit is None else limit / 1000,
        clock_max=None if clock is None else float(clock),
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _used(handle: Any) -> float:
    # The first version counts as used what the driver keeps to itself: half a gigabyte on an idle
    # GPU, which would look like a program that holds it.
    try:
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except (pynvml.NVMLError, AttributeError, TypeError):
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _throttle(handle: Any) -> float:
    # Its older name is all that drivers before 535 know.
    with suppress(pynvml.NVMLError, AttributeError):
        return float(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    return float(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _throughput(handle: Any, way: int) -> float:
    return 1000.0 * pynvml.nvmlDeviceGetPcieThroughput(handle, way)
