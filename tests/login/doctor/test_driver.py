"""What is asked of NVIDIA's driver, with the library that does so replaced."""

from __future__ import annotations

import pynvml
import pytest

from rankup.login.doctor import torch_checks


class _Driver:
    """NVML as far as it is asked, which says when it was left open."""

    def __init__(self) -> None:
        self.open = 0

    def start(self) -> None:
        self.open += 1

    def stop(self) -> None:
        self.open -= 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    """A driver of CUDA 12.8 and four GPUs."""
    found = _Driver()
    monkeypatch.setattr(pynvml, "nvmlInit", found.start)
    monkeypatch.setattr(pynvml, "nvmlShutdown", found.stop)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: 12080)
    return found


def test_gpus_and_the_newest_cuda(nvml: _Driver) -> None:
    assert torch_checks.gpus_and_cuda({}) == (4, (12, 8))
    assert torch_checks.gpus_and_cuda({"CUDA_VISIBLE_DEVICES": "0"}) == (1, (12, 8))
    assert nvml.open == 0


def test_a_driver_that_does_not_say_its_version(
    nvml: _Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", fail)
    assert torch_checks.gpus_and_cuda({}) == (4, None)
    assert nvml.open == 0


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert torch_checks.gpus_and_cuda({}) == (0, None)
