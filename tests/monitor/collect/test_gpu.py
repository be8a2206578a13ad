"""GPUs that play a script: any question may fail, and none ends the sampling."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from rankup.monitor.collect import gpu, node
from rankup.monitor.collect.gpu import Gpus
from rankup.monitor.collect.node import granted
from rankup.monitor.lines import GPU, Gpu

from ..gpus.nvml_script import functions

Opened = Callable[..., Gpus]
FULL = {
    "util": 97,
    "memory": 3e10,
    "power": 300.5,
    "temperature": 61,
    "clock": 1410,
    "throttle": 4,
    "processes": 2,
}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., gpu.Nvml]:
    def open_them(*gpus: dict[str, Any]) -> gpu.Nvml:
        for name, function in functions(pynvml, {"gpus": gpus}).items():
            monkeypatch.setattr(pynvml, name, function)
        source, error = node.open_source()
        assert error is None
        assert source is not None
        return source

    return open_them


@pytest.fixture
def opened(played: Callable[..., gpu.Nvml]) -> Opened:
    def read(*gpus: dict[str, Any]) -> Gpus:
        source = played(*gpus)
        return Gpus(source, tuple(source.gpus()))

    return read


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def _row(found: Gpus, place: int = 0) -> dict[str, float | None]:
    return dict(zip(GPU, found.read().rows[place], strict=True))


def test_all_columns_of_a_gpu_that_says_everything(
    opened: Opened, clock: Callable[[float], None]
) -> None:
    energy = {"energy": [1000, 1800]}
    counters = {"pcie_rx": 1e9, "pcie_tx": 2e8, "nvlink": 5e10}
    found = opened({"values": {**FULL, **energy}, "counters": counters})
    nothing = {"pcie_rx": None, "pcie_tx": None, "nvlink": None}
    first = _row(found)
    assert first == {**FULL, **nothing}
    assert isinstance(first["throttle"], int)  # bits
    clock(2.0)
    # Of the joules since: what it drew on average, not in the moment of the question.
    assert _row(found) == {**FULL, "power": 400.0, **counters}


@pytest.mark.parametrize(("cost", "power"), [(1e-4, 400.0), (4e-3, 300.5)])
def test_an_answer_that_costs_too_much_is_not_asked_for_again(
    opened: Opened,
    clock: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    cost: float,
    power: float,
) -> None:
    """An H100's driver computes 4.2 ms for the energy, and a few microseconds for the power."""
    used = itertools.count()
    monkeypatch.setattr(time, "process_time", lambda: next(used) * cost)
    found = opened({"values": {**FULL, "energy": [1000, 1800, 2600, 3400, 4200]}})
    rows = []
    for _ in range(5):
        rows.append(_row(found)["power"])
        clock(2.0)
    assert rows == [300.5, 400.0, 400.0, power, power]


def test_what_a_gpu_never_says_is_null_and_not_asked_again(opened: Opened) -> None:
    found = opened({"values": {"util": 5, "power": None}})
    row = _row(found)
    assert (row["util"], row["power"], row["processes"]) == (5, None, None)
    assert _row(found)["util"] == 5


def test_a_lost_gpu_is_told_once_and_the_others_go_on(opened: Opened) -> None:
    found = opened({"values": {**FULL, "clock": [1410, "lost"]}}, {"values": FULL})
    assert found.read().notes == ()
    second, third = found.read(), found.read()
    assert second.notes == ("GPU 0 is lost: the driver says GPU is lost",)
    assert third.notes == ()
    assert third.rows[0] == [None] * len(GPU)
    assert third.rows[1][0] == 97


def test_without_counters_one_gpu_at_a_time_is_asked_for_its_traffic(
    opened: Opened, clock: Callable[[float], None]
) -> None:
    values = {**FULL, "pcie_rx": 1e9, "pcie_tx": 2e8}
    found = opened({"values": values}, {"values": values})
    column = GPU.index("pcie_rx")
    said = []
    for _ in range(12):
        said.append([row[column] for row in found.read().rows])
        clock(2.0)
    assert said == [
        [1e9, None],
        *[[None, None]] * 4,
        [None, 1e9],
        *[[None, None]] * 4,
        [1e9, None],
        [None, None],
    ]


def test_a_failing_counter_leaves_the_rest(
    played: Callable[..., gpu.Nvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = played({"values": FULL})

    def fail(index: int) -> dict[str, float]:
        raise gpu.Failed("timeout")

    monkeypatch.setattr(source, "counters", fail)
    assert _row(Gpus(source, tuple(source.gpus())))["util"] == 97


def test_a_node_without_a_driver_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in functions(pynvml, {}).items():
        monkeypatch.setattr(pynvml, name, function)
    assert node.open_source() == (None, "the NVIDIA driver is not loaded")
    assert Gpus(None, ()).read().rows == []


def _gpus(count: int) -> list[Gpu]:
    return [Gpu(index, "A100", f"GPU-{index}abc", 4e10) for index in range(count)]


@pytest.mark.parametrize(
    ("count", "environment", "expected"),
    [
        (4, {}, [None] * 4),
        (4, {"SLURM_JOB_GPUS": "0,2"}, [True, False, True, False]),
        (4, {"SLURM_JOB_GPUS": "0-3"}, [True] * 4),
        # Its cgroup hides the others: NVML counts the two that are left from 0.
        (2, {"SLURM_JOB_GPUS": "2,3"}, [True, True]),
        (2, {"SLURM_JOB_GPUS": "0,1"}, [True, True]),
        # The step has got one of the job's two.
        (4, {"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, [True, True, False, False]),
        # The batch script's list is the first node's.
        (4, {"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "2,3"}, [False, False, True, True]),
        (2, {"CUDA_VISIBLE_DEVICES": "GPU-1abc"}, [False, True]),
        (2, {"CUDA_VISIBLE_DEVICES": "1"}, [False, True]),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, [None, None]),
    ],
)
def test_which_gpus_are_the_jobs(
    count: int, environment: dict[str, str], expected: list[bool | None]
) -> None:
    assert [one.granted for one in granted(_gpus(count), environment)] == expected
