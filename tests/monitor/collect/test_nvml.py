"""The way through nvidia-ml-py, with its functions replaced: units, versions, errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from rankup.monitor.collect.gpu import QUESTIONS, Failed, Gpus, Lost, NotThere, Nvml
from rankup.monitor.lines import GPU, Gpu


def _error(number: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(number)


def _fails(number: int) -> Any:
    def function(*_: Any, **__: Any) -> None:
        raise _error(number)

    return function


def _memory(handle: str, version: int | None = None) -> Any:
    # The first version counts the driver's own half gigabyte as used.
    return SimpleNamespace(total=4 * 10**10, used=10**9 if version else 10**9 + 6 * 10**8)


def _field_values(handle: str, wanted: list[tuple[int, int]]) -> list[Any]:
    """PCIe counters and NVLink's of the old kind; the newer fields are not supported."""
    said = {
        pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: 7000,
        pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: 5000,
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 3,
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 4,
    }
    return [
        SimpleNamespace(
            nvmlReturn=0 if field in said else pynvml.NVML_ERROR_NOT_SUPPORTED,
            valueType=3,
            value=SimpleNamespace(ullVal=said.get(field, 0)),
        )
        for field, _ in wanted
    ]


FUNCTIONS = {
    "nvmlInit": lambda: None,
    "nvmlDeviceGetCount": lambda: 2,
    "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
    "nvmlDeviceGetName": lambda handle: b"NVIDIA A100",
    "nvmlDeviceGetUUID": lambda handle: "GPU-1",
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 400_000,
    "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1410,
    "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=50),
    "nvmlDeviceGetPowerUsage": lambda handle: 312_500,
    "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 9_000_000,
    "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
    "nvmlDeviceGetClockInfo": lambda handle, kind: 1400,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 4,
    "nvmlDeviceGetComputeRunningProcesses": lambda handle: ["one", "two"],
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlDeviceGetPcieThroughput": lambda handle, way: 2000,
}


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in FUNCTIONS.items():
        monkeypatch.setattr(pynvml, name, function)


def test_gpus_are_described_in_our_units() -> None:
    first, second = Nvml().gpus()
    assert first == Gpu(0, "NVIDIA A100", "GPU-1", 4e10, power_limit=400.0, clock_max=1410.0)
    assert second.index == 1


def test_every_question_has_its_answer() -> None:
    source = Nvml()
    assert {what: source.ask(0, what) for what in QUESTIONS} == {
        "util": 97,
        "memory": 1e9,
        "power": 312.5,
        "energy": 9000,
        "temperature": 61,
        "clock": 1400,
        "throttle": 4,
        "processes": 2,
    }
    assert source.ask(0, "pcie_rx") == 2e6
    assert source.counters(0) == {"pcie_rx": 7000, "pcie_tx": 5000, "nvlink": 7 * 1024}


def test_older_drivers_know_the_first_version_of_memory_and_older_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_version(handle: str, version: int | None = None) -> Any:
        if version:
            raise _error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return _memory(handle)

    missing = _fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", first_version)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", missing)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda handle: 32)
    source = Nvml()
    assert (source.ask(0, "memory"), source.ask(0, "throttle")) == (1.6e9, 32)


@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NotThere),
        (pynvml.NVML_ERROR_NO_PERMISSION, NotThere),
        (pynvml.NVML_ERROR_GPU_IS_LOST, Lost),
        (pynvml.NVML_ERROR_TIMEOUT, Failed),
        (pynvml.NVML_ERROR_UNKNOWN, Failed),
    ],
)
def test_errors_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, number: int, raised: type[Exception]
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", _fails(number))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", _fails(number))
    with pytest.raises(raised):
        Nvml().ask(0, "util")
    with pytest.raises(raised):
        Nvml().counters(0)


def test_one_unanswered_question_leaves_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    never = _fails(pynvml.NVML_ERROR_NOT_SUPPORTED)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", never)  # MIG
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", never)
    source = Nvml()
    found = Gpus(source, tuple(source.gpus()))
    row = dict(zip(GPU, found.read().rows[0], strict=True))
    assert (row["util"], row["power"], row["memory"]) == (None, 312.5, 1e9)


def test_gpus_that_slurm_hides_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> str:
        if index == 0:
            raise _error(pynvml.NVML_ERROR_NO_PERMISSION)
        return "handle"

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    assert [one.index for one in Nvml().gpus()] == [1]
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetHandleByIndex", _fails(pynvml.NVML_ERROR_NO_PERMISSION)
    )
    with pytest.raises(Failed, match="2 GPUs, and the driver lets this job see none of them"):
        Nvml()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver is installed there"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        (pynvml.NVML_ERROR_TIMEOUT, r"the NVIDIA driver does not answer \("),
    ],
)
def test_without_a_driver_it_says_so_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", _fails(number))
    with pytest.raises(Failed, match=f"^{words}"):
        Nvml()
