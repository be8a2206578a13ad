"""How many GPUs and cores a process may use."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from rankup.site.gpus import cores_near, usable_cores, visible_gpus


@pytest.mark.parametrize(
    ("listed", "number"),
    [
        ("", 0),
        ("0", 1),
        ("0,1,2,3", 4),
        (" 2 , 3 ", 2),
        ("-1", 0),
        ("0,-1,1", 1),
        ("NoDevFiles", 0),  # what Slurm sets in a job without GPUs
        ("GPU-8932f937,GPU-b54", 2),
        ("MIG-GPU-8932f937/1/2", 1),
    ],
)
def test_the_environment_says_which(listed: str, number: int) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == number


def _driver(count: int, present: bool = True) -> ModuleType:
    module = ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def init() -> None:
        if not present:
            raise NVMLError("driver not loaded")

    module.NVMLError = NVMLError  # type: ignore[attr-defined]
    module.nvmlInit = init  # type: ignore[attr-defined]
    module.nvmlDeviceGetCount = lambda: count  # type: ignore[attr-defined]
    module.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    return module


def test_else_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _driver(4))
    assert visible_gpus({}) == 4
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == 1
    monkeypatch.setitem(sys.modules, "pynvml", _driver(4, present=False))
    assert visible_gpus({}) == 0


def test_the_cores_next_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _driver(2)
    driver.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    driver.nvmlDeviceGetHandleByUUID = lambda name: 1  # type: ignore[attr-defined]
    driver.nvmlDeviceGetCpuAffinity = lambda gpu, words: [0b11 << 2 * gpu]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert cores_near(1, {}) == {2, 3}
    assert cores_near(1, {"CUDA_VISIBLE_DEVICES": "1,0"}) == {0, 1}
    assert cores_near(0, {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}) == {2, 3}
    assert cores_near(0, {"CUDA_VISIBLE_DEVICES": ""}) == set()
    monkeypatch.setitem(sys.modules, "pynvml", _driver(4, present=False))
    assert cores_near(0, {}) == set()


def test_cores() -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
