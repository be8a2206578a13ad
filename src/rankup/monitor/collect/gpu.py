"""A row per GPU of the node, as NVML sees them: all of it, whatever a process may use."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from ..lines import GPU, Gpu
from .host import Rates

# Questions to `Nvml.ask`, units as in lines.GPU; energy in J since some time, and the traffic of
# the moment in bytes/s.
QUESTIONS = ("util", "memory", "power", "energy", "temperature", "clock", "throttle", "processes")
MOMENTARY = ("pcie_rx", "pcie_tx")
# NVML measures PCIe traffic over 20 ms in which the call does not return, 160 ms for four GPUs and
# two directions. Where the driver has no counters of it, one GPU is asked per so many seconds, and
# the others have null meanwhile.
_BETWEEN_MOMENTS = 10.0
# An H100 takes 4.2 ms of the host's CPU to say what energy it has used, a thousand times what its
# power costs, which is a mean over a second there. Where the cheapest of some answers is dearer
# than this, the power is asked for alone.
_DEAR_SECONDS = 1e-3
_TRIES = 3


class NotThere(Exception):  # noqa: N818 - an answer, and the usual one
    """This GPU, its driver or our rights never give an answer to this."""


class Lost(Exception):  # noqa: N818
    """The GPU has fallen off the bus; it comes back with a reset at the earliest."""


class Failed(Exception):  # noqa: N818
    """No answer this time."""


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
    """The driver of this node, in our units.

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
        """Return all that may be asked, without `granted`."""
        return [_describe(index, handle) for index, handle in self._handles.items()]

    def ask(self, index: int, what: str) -> float:
        """Return the answer of GPU `index` to one of `QUESTIONS` or `MOMENTARY`.

        Raises:
            NotThere, Lost, Failed: there is none.
        """
        return _answer(lambda: self._ask[what](self._handles[index]))

    def counters(self, index: int) -> dict[str, float]:
        """Return bytes since some time: `pcie_rx`, `pcie_tx`, `nvlink`, those that there are.

        Raises:
            NotThere, Lost, Failed: there are none.
        """
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


@dataclass(frozen=True)
class Reading:
    """All GPUs at one time: rows of `lines.GPU`, and what is to be written down about them."""

    rows: list[list[float | None]]
    notes: tuple[str, ...] = ()


class Gpus:
    """Reads all GPUs of the node, each question by itself: any may fail, and none ends it."""

    def __init__(self, source: Nvml | None, gpus: tuple[Gpu, ...]) -> None:
        self._source, self._gpus = source, gpus
        self._rates = Rates()
        self._asked: dict[tuple[int, str], float] = {}  # when, of counters
        self._never: set[tuple[int, str]] = set()
        self._lost: set[int] = set()
        self._energy_costs: dict[int, list[float]] = {}
        self._turn, self._moment = 0, -_BETWEEN_MOMENTS
        self._notes: list[str] = []

    def read(self) -> Reading:
        """One row per GPU; rates are since the last call."""
        rows = [self._row(gpu.index) for gpu in self._gpus]
        notes, self._notes = tuple(self._notes), []
        return Reading(rows, notes)

    def _row(self, index: int) -> list[float | None]:
        found: dict[str, float | None] = {}
        for what in QUESTIONS:
            if what not in ("power", "energy"):
                found[what] = self._ask(index, what)
        # The mean since the last sample; what the GPU says of this moment jumps with each kernel.
        mean = self._rate(index, "energy", self._energy(index))
        found["power"] = self._ask(index, "power") if mean is None else round(mean, 1)
        for what, count in self._counters(index).items():
            rate = self._rate(index, what, count)
            found[what] = None if rate is None else round(rate)
        if not {"pcie_rx", "pcie_tx"} & found.keys():
            found |= self._momentary(index)
        return [_whole(found.get(name)) for name in GPU]

    def _energy(self, index: int) -> float | None:
        began = time.process_time()
        found = self._ask(index, "energy")
        costs = self._energy_costs.setdefault(index, [])
        if len(costs) < _TRIES:
            costs.append(time.process_time() - began)
            if len(costs) == _TRIES and min(costs) > _DEAR_SECONDS:
                self._never.add((index, "energy"))
        return found

    def _rate(self, index: int, what: str, count: float | None) -> float | None:
        key, now = (index, what), time.monotonic()
        before = self._asked.get(key)
        self._asked[key] = now
        return self._rates.of(key, count, None if before is None else now - before)

    def _momentary(self, index: int) -> dict[str, float | None]:
        living = [gpu.index for gpu in self._gpus if gpu.index not in self._lost]
        turn = living and living[self._turn % len(living)] == index
        if not turn or time.monotonic() - self._moment < _BETWEEN_MOMENTS:
            return {}
        self._turn, self._moment = self._turn + 1, time.monotonic()
        return {what: self._ask(index, what) for what in MOMENTARY}

    def _ask(self, index: int, what: str) -> float | None:
        if self._source is None or index in self._lost or (index, what) in self._never:
            return None
        try:
            return self._source.ask(index, what)
        except (NotThere, Lost, Failed) as why:
            self._note(index, what, why)
            return None

    def _counters(self, index: int) -> dict[str, float]:
        if self._source is None or index in self._lost or (index, "counters") in self._never:
            return {}
        try:
            return self._source.counters(index)
        except (NotThere, Lost, Failed) as why:
            self._note(index, "counters", why)
            return {}

    def _note(self, index: int, what: str, why: Exception) -> None:
        if isinstance(why, Lost):
            self._lost.add(index)
            self._notes.append(f"GPU {index} is lost: the driver says {why}")
        elif isinstance(why, NotThere):
            self._never.add((index, what))


def _whole(value: float | None) -> float | None:
    """An integer where it is one: bits of reasons are, and lines are shorter for it."""
    return int(value) if value is not None and value == int(value) else value
