"""What GPUs, nodes, ranks and steps of a synthetic run do over time.

A channel is a number or a function of seconds since the run's begin, shape (samples, 1), and the
number of the GPU, node or rank in the whole run, shape (1, things), and of a generator of noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankup.monitor import lines

GPU_MEMORY = 40 * 2**30
GPU_POWER = 400.0
STARTUP = 20.0  # seconds until a run computes

Numbers = NDArray[Any]
Channel = Callable[[Numbers, Numbers, np.random.Generator], Any]
Value = float | int | None | Channel


def level(mean: float, spread: float = 0.0, idle: float | None = None) -> Channel:
    """A steady channel with normal noise; `idle` is its value until the run computes."""

    def channel(t: Numbers, thing: Numbers, draw: np.random.Generator) -> Numbers:
        shape = (len(t), thing.shape[1])
        noise = draw.standard_normal(shape, dtype=np.float32).clip(-2, 2).astype(np.float64)
        values = mean + spread * noise
        return values if idle is None else np.where(t < STARTUP, idle, values)

    return channel


def computing() -> dict[str, Value]:
    """Channels of a GPU that works: 92 to 99 %, 75 to 90 % of its power, the clock at its most."""
    return {
        "util": level(95.5, 1.75, idle=0),
        "memory": level(0.7 * GPU_MEMORY, 0, idle=0.1 * GPU_MEMORY),
        "power": level(0.82 * GPU_POWER, 0.03 * GPU_POWER, idle=60),
        "temperature": level(58, 1.5),
        "clock": level(1395, 5),
        "throttle": 0,
        "pcie_rx": level(1.2e9, 1e8, idle=0),
        "pcie_tx": level(4e8, 4e7, idle=0),
        "nvlink": level(2e10, 1e9, idle=0),
        "processes": 1,
    }


def unused() -> dict[str, Value]:
    """Channels of a GPU that nobody touches."""
    return {
        "util": 0,
        "memory": 4 * 2**20,
        "power": level(54, 0.7),
        "temperature": level(31, 0.5),
        "clock": 210,
        "throttle": 0x1,
        "pcie_rx": 0,
        "pcie_tx": 0,
        "nvlink": 0,
        "processes": 0,
    }


def serving() -> dict[str, Value]:
    """Channels of a node whose ranks are fed well."""
    return {
        "cpu": level(16, 1, idle=5),
        "load": level(9, 0.7, idle=2),
        "memory": level(90e9, 1e9, idle=20e9),
        "cgroup": level(70e9, 1e9, idle=10e9),
        "swap": 0,
        "disk_read": level(1e4, 2e3),
        "disk_write": level(2e5, 5e4),
        "net_rx": level(3e4, 5e3),
        "net_tx": level(3e4, 5e3),
        "ib_rx": level(2e8, 2e7, idle=1e5),
        "ib_tx": level(2e8, 2e7, idle=1e5),
    }


def feeding() -> dict[str, Value]:
    """Channels of a rank with four data workers that have time to spare."""
    return {
        "cpu": level(98, 1),
        "memory": level(6e9, 5e7),
        "workers": 4,
        "workers_cpu": level(120, 10, idle=20),
        "read": level(5e7, 5e6, idle=1e8),
        "write": level(1e4, 1e3),
    }


def learning() -> dict[str, Value]:
    """Values of a step, of (seconds since begin, number of the step): a loss that falls."""
    return {
        "loss": lambda t, step, draw: (
            2.1 + 8.5 / (1 + step / 40) ** 0.6 + 0.03 * draw.standard_normal(step.shape)
        ),
        "tokens_per_s": level(131072, 900),
        "data_wait": level(0.008, 0.002),
        "peak_memory": round(0.68 * GPU_MEMORY),
        "mfu": level(0.42, 0.003),
        "grad_norm": level(0.8, 0.05),
    }


def values_of(value: Value, t: Numbers, things: Numbers, draw: np.random.Generator) -> Numbers:
    """(samples, things); all NaN where nobody gives them."""
    if value is None:
        value = np.nan
    values = value(t, things, draw) if callable(value) else value
    return np.broadcast_to(np.asarray(values, float), (len(t), things.shape[1]))


def only_gpu(used: int, channels: dict[str, Value] | None = None) -> dict[str, Value]:
    """GPU channels where one GPU of the run works, and no other does."""
    on, off = channels or computing(), unused()

    def one(name: str) -> Channel:
        def channel(t: Numbers, gpu: Numbers, draw: np.random.Generator) -> Numbers:
            working = values_of(on[name], t, gpu, draw)
            rest = values_of(off[name], t, gpu, draw)
            return np.asarray(np.where(gpu == used, working, rest))

        return channel

    return {name: one(name) for name in lines.GPU}
