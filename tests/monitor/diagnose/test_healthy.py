"""No finding on runs that are as they should be, of any shape and with any habits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankup.monitor.diagnose import diagnose

from ..traces import (
    BEGIN,
    GPU_MEMORY,
    GPU_POWER,
    Numbers,
    Stay,
    Trace,
    cpu_only,
    level,
    running,
    two_attempts,
)
from .sick import from_time, run, silent


def pauses(every: float, length: float, there: float, else_: float, spread: float = 1.0) -> Any:
    """A channel that has another value for the last part of each period."""

    def values(t: Numbers, thing: Numbers, draw: np.random.Generator) -> Numbers:
        noise = draw.standard_normal((len(t), thing.shape[1])).clip(-2, 2)
        return np.where(t % every > every - length, there, else_) + spread * noise

    return values


def bursts(seed: int) -> Any:
    """Use between half and all, as long and short sequences come."""

    def values(t: Numbers, thing: Numbers, draw: np.random.Generator) -> Numbers:
        return draw.uniform(55, 100, (len(t), thing.shape[1]))

    return values


def stretched(every: int, seconds: float) -> Any:
    """Steps of two seconds, and of `seconds` more where a validation belongs to the step."""

    def values(t: Numbers, step: Numbers, draw: np.random.Generator) -> Numbers:
        return (
            2.0 + np.where(step % every == 0, seconds, 0) + 0.02 * draw.standard_normal(step.shape)
        )

    return values


def once(at: float, seconds: float) -> Any:
    """Steps of two seconds, and one of `seconds` more where `at` seconds of the run are over."""

    def values(t: Numbers, step: Numbers, draw: np.random.Generator) -> Numbers:
        here = np.abs(t - at) <= 1.0
        return 2.0 + np.where(here & (np.cumsum(here) == 1)[:, None], seconds, 0.0)

    return values


def habits(seed: int) -> dict[str, Trace]:
    """Healthy runs of all kinds, by name."""
    plain = run(seed=seed)
    validating = {
        "util": pauses(300, 60, 20, 95.5),
        "power": pauses(300, 60, 90, 320, 10),
    }
    return {
        "bound by memory, at half of the power": plain.with_gpu(power=level(0.52 * GPU_POWER, 8)),
        "at its power limit": plain.with_gpu(
            power=level(0.99 * GPU_POWER, 1), throttle=0x4, clock=level(1150, 20)
        ),
        "validates often": run(
            seed=seed, validations=150, step_seconds=stretched(150, 60)
        ).with_gpu(**validating),
        "validates for minutes": run(
            seed=seed, validations=300, step_seconds=stretched(300, 400)
        ).with_gpu(util=pauses(1000, 400, 60, 95), power=pauses(1000, 400, 150, 320, 10)),
        "validates, and says nothing": silent(plain.with_gpu(**validating)),
        "validates on the CPU, and says nothing": silent(
            plain.with_gpu(util=pauses(600, 120, 0, 96), power=pauses(600, 120, 60, 320, 5))
        ),
        "evaluates flatly at little power, and says nothing": silent(
            plain.with_gpu(
                util=from_time(900, 1500, 100, 96), power=from_time(900, 1500, 150, 320, 5)
            )
        ),
        "validates on the CPU for 20 minutes, and logs it at the end": run(
            3600, seed=seed, validations=None, limit=4800.0, step_seconds=once(1200, 1199)
        )
        .with_gpu(util=from_time(1200, 2400, 0, 96), power=from_time(1200, 2400, 60, 320, 5))
        .but(records=({"time": BEGIN + 2400, "valid_loss": 2.9, "valid_seconds": 1199.0},)),
        "saves often": run(seed=seed, checkpoints=100, stall=2.0),
        "says nothing": silent(plain),
        "bursts": plain.with_gpu(util=bursts(seed), power=level(0.65 * GPU_POWER, 40)),
        "nearly full memory": plain.with_gpu(memory=level(0.94 * GPU_MEMORY, 0)),
        "one file per sample": plain.but(
            fs={"/p/data": {"read": 2e8, "write": 0.0, "operations": 4000.0}}
        ),
        "driver without power": plain.with_gpu(power=None),
        "GPU without use": plain.with_gpu(util=None),
        "half an hour at ten minutes' attempts": run(
            seed=seed,
            stays=tuple(
                Stay(700.0 * n, 700.0 * n + 600, state="COMPLETED" if n == 2 else "TIMEOUT")
                for n in range(3)
            ),
            limit=600.0,
        ),
        "still running": running().but(seed=seed, step=2.0),
        "two attempts": two_attempts().but(seed=seed, step=2.0),
        "on CPU nodes": cpu_only(2).but(seed=seed, seconds=1800, limit=2400.0, step=2.0),
        "fine-tuning": plain.with_metrics(
            loss=lambda t, step, draw: 1.9 - 1e-4 * step + 0.2 * draw.standard_normal(step.shape)
        ),
    }


def check(trace: Trace, **facts: Any) -> None:
    found = diagnose(trace.recording(**facts))
    assert not found, [f"{one.code} {one.message}" for one in found]


@pytest.mark.parametrize("name", habits(0))
def test_healthy_habits(name: str) -> None:
    check(habits(1)[name])


@pytest.mark.parametrize(
    ("nodes", "gpus", "seconds"),
    [(1, 8, 600), (8, 4, 600), (1, 1, 400)],
)
def test_healthy_shapes(nodes: int, gpus: int, seconds: float) -> None:
    check(run(seconds, nodes=nodes, gpus=gpus, limit=1.3 * seconds, seed=nodes))


def test_a_site_without_accounting() -> None:
    check(run(), unit=None, per_node_hour=None, gpus=None, attempts=(), queued=None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_healthy_for_many_seeds(seed: int) -> None:
    for trace in habits(seed).values():
        check(trace)
    for nodes, gpus in ((1, 2), (2, 1), (4, 4), (8, 8)):
        check(run(600, nodes=nodes, gpus=gpus, limit=800.0, seed=seed))
