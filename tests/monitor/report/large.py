"""A day on a thousand GPUs as `load` would give it, made without a gigabyte of files."""

from __future__ import annotations

import numpy as np

from rankup.monitor import recording as form
from rankup.monitor.lines import Gpu, Head
from rankup.monitor.recording import Array, Band, Event, Facts, Gap, Life, Recording, Steps

BEGIN = 1763834400.0
BINS, WIDTH = 1440, 60.0
PER_NODE = 4


def day(nodes: int = 250) -> Recording:
    """A day of noisy work: one node unused, one GPU slow, one short peak, a gap of all nodes."""
    draw = np.random.default_rng(7)
    gpus, end = nodes * PER_NODE, BEGIN + BINS * WIDTH
    levels = {
        "util": (94.0, 3.0, 100.0),
        "memory": (30e9, 2e8, 42e9),
        "power": (330.0, 14.0, 400.0),
        "temperature": (62.0, 2.5, 95.0),
        "clock": (1380.0, 20.0, 1410.0),
        **dict.fromkeys(("throttle_power", "throttle_heat", "throttle_hardware"), (0.0, 0.0, 1.0)),
        "pcie_rx": (1.2e9, 1e8, 3e10),
        "pcie_tx": (4e8, 5e7, 3e10),
        "nvlink": (2e10, 1e9, 3e11),
        "processes": (1.0, 0.0, 8.0),
    }
    gap = slice(700, 712)
    gpu = {}
    for name in form.GPU:
        band = _noise(draw, gpus, *levels[name])
        for values in (band.low, band.mean, band.high):
            values[gap] = np.nan
        gpu[name] = band
    for name, value in (("util", 0.0), ("power", 55.0), ("memory", 5e6), ("nvlink", 0.0)):
        for values in (gpu[name].low, gpu[name].mean, gpu[name].high):
            values[: gap.start, 40:44] = values[gap.stop :, 40:44] = value
    gpu["util"].mean[200:600, 501] *= 0.4
    gpu["power"].mean[200:600, 501] *= 0.5
    gpu["throttle_heat"].mean[200:600, 501] = 0.8
    gpu["throttle_heat"].high[200:600, 501] = 1.0
    gpu["temperature"].high[300, 777] = 93.0
    host = {name: _noise(draw, nodes, 20.0, 2.0, 100.0) for name in ("cpu", "busiest", "load")}
    host |= {name: _noise(draw, nodes, 9e10, 1e9, 5e11) for name in ("memory", "cgroup")}
    host["swap"] = _noise(draw, nodes, 0.0, 0.0, 1.0)
    for name in form.HOST[6:]:
        host[name] = _noise(draw, nodes, 2e8, 5e7, 1e11)
    rank = {name: _noise(draw, gpus, 90.0, 8.0, 1e12) for name in form.RANK}
    names = tuple(f"jwb{1 + node:04d}" for node in range(nodes))
    covered = np.ones((BINS, nodes), np.float32)
    covered[gap] = 0
    count = 60_000
    steps = np.arange(1, count + 1)
    lost = np.full(count, np.nan)
    return Recording(
        facts=Facts(
            run="20251122-180000-wide",
            name="wide",
            command="rankup run --nodes 250 train.py",
            directory="/p/scratch/runs/wide/20251122-180000-wide",
            site="jwb",
            nodes=nodes,
            ranks=PER_NODE,
            gpus=PER_NODE,
            unit="core-h",
            per_node_hour=48.0,
            lives=(Life(BEGIN, end, "COMPLETED", limit=90_000.0, nodes=names, job="17"),),
        ),
        begin=BEGIN,
        end=end,
        width=WIDTH,
        bins=BINS,
        heads=tuple(
            Head(name, BEGIN, 10.0, "17.0", 48, tuple(range(48)), 5.1e11, gpus=_gpus(at))
            for at, name in enumerate(names)
        ),
        gpus=tuple(one for node in range(nodes) for one in _gpus(node)),
        gpu_node=np.repeat(np.arange(nodes), PER_NODE),
        ranks=np.arange(gpus),
        rank_node=np.repeat(np.arange(nodes), PER_NODE),
        gpu=gpu,
        host=host,
        rank=rank,
        covered=covered,
        core_use=tuple(draw.uniform(0, 100, 48).astype(np.float32) for _ in range(nodes)),
        steps=Steps(
            time=BEGIN + 60 + steps * 1.4,
            step=steps,
            loss=2.1 + 8.5 / (1 + steps / 400) ** 0.6 + 0.03 * draw.standard_normal(count),
            seconds=1.4 + 0.02 * draw.standard_normal(count),
            rate=4e6 + 2e4 * draw.standard_normal(count),
            data_wait=0.01 + 0.001 * draw.standard_normal(count),
            mfu=lost,
            unit="tokens",
        ),
        events=tuple(
            Event(BEGIN + 3600 * hour, "checkpoint", f"step {hour * 2500}", 4.0)
            for hour in range(1, 24)
        ),
        gaps=tuple(
            Gap(name, BEGIN + gap.start * WIDTH, BEGIN + gap.stop * WIDTH, "killed")
            for name in names
        ),
        samples=nodes * 8640,
    )


def _gpus(node: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index, "NVIDIA A100-SXM4-40GB", f"GPU-{node}-{index}", 42e9, 400.0, 1410.0)
        for index in range(PER_NODE)
    )


def _noise(
    draw: np.random.Generator, things: int, level: float, spread: float, most: float
) -> Band:
    noise = draw.standard_normal((BINS, things), dtype=np.float32) * np.float32(spread)
    middle: Array = np.clip(np.float32(level) + noise, 0, most).astype(np.float32)
    around = np.float32(2 * spread)
    low, high = np.maximum(middle - around, 0), np.minimum(middle + around, np.float32(most))
    return Band(low, middle, high)
