"""Recordings made by hand, bin by bin, for rules: no file, no loader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rankup.monitor import recording as form
from rankup.monitor.lines import Gpu, Head
from rankup.monitor.recording import Band, Facts, Recording, Steps
from rankup.slurm.job import Attempt

BEGIN = 1763834400.0  # 2025-11-22 18:00 UTC
MEMORY, POWER = 40 * 2**30, 400.0
HEALTHY: dict[str, float] = {
    **{"util": 96.0, "memory": 0.7 * MEMORY, "power": 320.0, "temperature": 58.0, "clock": 1395.0},
    **{"throttle_power": 0.0, "throttle_heat": 0.0, "throttle_hardware": 0.0},
    **{"pcie_rx": 1e9, "pcie_tx": 4e8, "nvlink": 2e10, "processes": 1.0},
}
UNUSED = {**HEALTHY, "util": 0.0, "memory": 4 * 2**20, "power": 54.0, "processes": 0.0}
HOST: dict[str, float] = {
    **{"cpu": 16.0, "busiest": 98.0, "load": 9.0, "memory": 9e10, "cgroup": 7e10, "swap": 0.0},
    **dict.fromkeys(("disk_read", "disk_write", "net_rx", "net_tx", "ib_rx", "ib_tx"), 1e4),
    **dict.fromkeys(("fs_read", "fs_write", "fs_operations"), 0.0),
}
RANK: dict[str, float] = {
    **{"cpu": 98.0, "memory": 6e9, "workers": 4.0, "workers_cpu": 120.0, "read": 5e7, "write": 1e4}
}
NO_STEPS = Steps(*(np.zeros(0, np.int64 if at == 1 else np.float64) for at in range(7)))


def attempt(
    begin: float,
    end: float | None,
    state: str,
    words: str = "",
    limit: float | None = None,
    nodes: tuple[str, ...] = (),
    job: str | None = "13815915",
) -> Attempt:
    """An attempt of a run; without an end it still goes on, or nobody saw it."""
    asked = {"bill": {"minutes": limit / 60}} if limit is not None else {}
    known: dict[str, Any] = {"nodes": nodes, "started": begin, "ended": end, "asked": asked}
    return Attempt(job, state, words, "own record", live=state == "RUNNING", **known)


def band(value: Any, bins: int, things: int) -> Band:
    """A channel without noise."""
    values = np.broadcast_to(np.asarray(value, np.float32), (bins, things)).copy()
    return Band(values, values, values)


def made(
    nodes: int = 1,
    gpus: int = 4,
    bins: int = 360,
    width: float = 10.0,
    ranks: int | None = None,
    heads: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    **changes: Any,
) -> Recording:
    """A healthy recording of an hour; `changes` are channels by name, or other attributes.

    A channel of a GPU is given as anything that broadcasts to (bins, GPUs), of a node with
    (bins, nodes), of a rank with (bins, ranks) under the names of `RANK` with `rank_` before them.
    """
    each = Gpu(0, "NVIDIA A100-SXM4-40GB", "GPU-0", float(MEMORY), POWER, 1410.0)
    local = (gpus or 1) if ranks is None else ranks
    head = Head(
        *("", BEGIN, width, "1.0", 48, tuple(range(48)), 512e9),
        gpus=tuple(replace(each, index=index) for index in range(gpus)),
        ranks=local,
    )
    names = tuple(f"jrc{node + 1:04d}" for node in range(nodes))
    all_heads = tuple(replace(head, node=name, **(heads or {})) for name in names)
    end = BEGIN + bins * width
    known: dict[str, Any] = {
        **{"run": "20251122-180000-abcd", "name": "train", "command": "rankup run train.py"},
        **{"directory": "/p/runs/train/20251122-180000-abcd", "nodes": nodes, "ranks": local},
        **{"gpus": gpus, "unit": "core-h", "per_node_hour": 48.0},
        "attempts": (attempt(BEGIN, end, "COMPLETED", limit=7200.0, nodes=names),),
    }
    channels = {name: changes.pop(name) for name in list(changes) if name in {*HEALTHY, *HOST}}
    of_rank = {name: changes.pop(f"rank_{name}") for name in RANK if f"rank_{name}" in changes}
    # `memory` is a channel of GPUs; that of nodes is given as `host_memory`.
    host = {**HOST, **{name: value for name, value in channels.items() if name != "memory"}}
    host["memory"] = changes.pop("host_memory", HOST["memory"])
    recording = Recording(
        facts=Facts(**{**known, **(facts or {})}),
        begin=BEGIN,
        end=end,
        width=width,
        bins=bins,
        heads=all_heads,
        gpus=tuple(gpu for one in all_heads for gpu in one.gpus),
        gpu_node=np.repeat(np.arange(nodes), gpus),
        ranks=np.arange(nodes * local),
        rank_node=np.repeat(np.arange(nodes), local),
        gpu={
            name: band(channels.get(name, value), bins, nodes * gpus)
            for name, value in HEALTHY.items()
        },
        host={name: band(host[name], bins, nodes) for name in form.HOST},
        rank={name: band({**RANK, **of_rank}[name], bins, nodes * local) for name in form.RANK},
        covered=np.ones((bins, nodes), np.float32),
        core_use=tuple(np.full(48, 16, np.float32) for _ in range(nodes)),
        steps=NO_STEPS,
        samples=bins * nodes,
    )
    return replace(recording, **changes)


def per_gpu(channel: str, first: int, gpus: int = 4) -> np.ndarray[Any, Any]:
    """Values of a channel where only the first GPUs are used."""
    return np.array([HEALTHY[channel]] * first + [UNUSED[channel]] * (gpus - first))
