"""How many GPUs and cores a process may use."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from rankup.site.gpus import usable_cores, visible_gpus


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


def test_cores() -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
