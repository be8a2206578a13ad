"""Unused, idle, little used and waiting GPUs: found, and not seen where they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankup.monitor.cost import cost
from rankup.monitor.diagnose import Diagnosis, diagnose
from rankup.monitor.recording import Recording
from rankup.monitor.verdict import verdict

from ..handmade import MEMORY, made, per_gpu

SWINGING = np.where(np.arange(360) % 2, 90.0, 115.0)[:, None]


def codes(recording: Recording) -> list[str]:
    return [one.code for one in diagnose(recording)]


def used(first: int, gpus: int = 4) -> dict[str, Any]:
    names = ("util", "memory", "power", "processes")
    return {name: per_gpu(name, first, gpus) for name in names}


def test_a_healthy_hour_has_no_finding() -> None:
    recording = made()
    assert diagnose(recording) == ()
    assert verdict(recording, ()).headline.startswith("Healthy")


def test_three_of_four_unused() -> None:
    recording = made(**used(1), ranks=1)
    (found,) = diagnose(recording)
    assert isinstance(found, Diagnosis)
    assert (found.code, found.gpus) == ("RK701", (1, 2, 3))
    assert "GPUs 1-3 of jrc0001" in found.message
    assert "rankup run" in found.todo
    assert found.cost == pytest.approx(36.0)
    paid = cost(recording, (found,))
    assert (paid.billed, paid.unit) == (pytest.approx(48.0), "core-h")
    assert paid.used is not None
    assert paid.wasted is not None
    assert paid.used + paid.wasted == pytest.approx(48.0)
    assert paid.wasted >= found.cost


def test_an_unused_gpu_of_a_neighbour_is_not_ours() -> None:
    recording = made(**used(1), facts={"gpus": 1})
    assert codes(recording) == []


def test_idle_with_a_process() -> None:
    memory = np.array([0.7, 0.1, 0.1, 0.1]) * MEMORY
    recording = made(**{**used(1), "processes": 1.0, "memory": memory})
    assert codes(recording)[0] == "RK702"


@pytest.mark.parametrize(("use", "found"), [(3, "RK702"), (12, "RK703"), (24, "RK703"), (30, "")])
def test_low_use(use: float, found: str) -> None:
    assert "".join(codes(made(util=use, power=130.0))) == found


def test_idle_at_the_end_of_the_run() -> None:
    util = np.full((360, 4), 96.0)
    util[180:] = 0
    (found,) = diagnose(made(util=util, power=np.where(util > 0, 320.0, 60.0)))
    assert found.code == "RK702"
    assert "until the job's end" in found.message
    assert found.cost == pytest.approx(24.0, rel=0.02)


def test_busy_at_little_power_is_waiting() -> None:
    assert codes(made(util=100.0, power=SWINGING)) == ["RK725"]
    assert codes(made(util=100.0, power=200.0)) == []
