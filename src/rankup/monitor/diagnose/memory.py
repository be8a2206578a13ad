"""Memory: of GPUs far from full or nearly full, of nodes nearly full, and swap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...base.findings import Finding
from .. import billing, words
from ..recording import Recording
from ..thresholds import LIMITS
from ..work import in_lives, power_share
from . import codes
from .diagnosis import Diagnosis
from .gpu import unused_gpus
from .judged import gpu_seconds, highest, mean


def gpu_memory(recording: Recording) -> Iterator[Diagnosis]:
    """RK707 and RK708: the peak of all GPUs in use is far below their memory, or close to it."""
    if not len(recording.gpus) or recording.facts.gpus == 0:
        return
    seconds = gpu_seconds(recording)
    if float(seconds.sum(axis=0).max(initial=0)) < LIMITS.judged_least:
        return
    use = mean(recording.gpu["util"].mean, seconds)
    which = billing.billed(recording) & ~unused_gpus(recording) & (use >= LIMITS.idle_util)
    size = np.array([gpu.memory or np.nan for gpu in recording.gpus])
    peaks = np.where(which, highest(recording.gpu["memory"].high, seconds) / size, np.nan)
    if not np.isfinite(peaks).any():
        return
    top = float(np.nanmax(peaks))
    fullest = int(np.nanargmax(peaks))
    held = words.memory(top * size[fullest])
    whole = words.memory(size[fullest])
    if top >= LIMITS.memory_near:
        columns = tuple(np.flatnonzero(peaks >= LIMITS.memory_near).tolist())
        yield Diagnosis(
            Finding(
                codes.MEMORY_NEAR,
                "warning",
                "GPU memory",
                f"{words.gpus(recording, columns)} came to {held} of {whole} "
                f"({words.percent(top)}): a longer sequence or a little fragmentation ends the run",
                "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, a smaller `--micro-batch`, or "
                "`--strategy fsdp`",
            ),
            gpus=columns,
        )
    power = mean(power_share(recording, np.arange(len(recording.gpus))), seconds)[which]
    if top < LIMITS.memory_far and not np.nanmax(power, initial=0) >= LIMITS.memory_far_power:
        columns = tuple(np.flatnonzero(which).tolist())
        fits = max(2, 2 ** int(np.log2(0.8 / max(top, 0.01))))
        yield Diagnosis(
            Finding(
                codes.MEMORY_FAR,
                "warning",
                "GPU memory",
                f"{words.gpus(recording, columns)} never held more than {held} of {whole} "
                f"({words.percent(top)})",
                f"a `--micro-batch` {fits} times as large fits, with the same `--global-batch`, "
                "and gives each kernel more to do",
            ),
            gpus=columns,
        )


def swap(recording: Recording) -> Iterator[Diagnosis]:
    """RK713: a node's swap grew while the run was on it."""
    used = recording.host["swap"]
    first = _first(used.mean)
    grown = highest(used.high, _seconds(recording)) - first
    nodes = tuple(np.flatnonzero(grown >= LIMITS.swap_least).tolist())
    if not nodes:
        return
    yield Diagnosis(
        Finding(
            codes.SWAP,
            "warning",
            words.node_names(recording, nodes),
            f"{words.memory(float(np.nanmax(grown)))} went into swap on "
            f"{words.plural(len(nodes), 'node')}: memory that is read back from a disk is "
            "thousands of times slower",
            "fewer DataLoader workers, or a smaller `prefetch_factor`; load data by parts "
            "(`rankup.data.open` maps files instead of reading them)",
        ),
        nodes=nodes,
    )


def host_memory(recording: Recording) -> Iterator[Diagnosis]:
    """RK714: what counts against the cgroup's limit, or else the node's memory, is nearly full."""
    seconds = _seconds(recording)
    cgroup = highest(recording.host["cgroup"].high, seconds)
    whole = highest(recording.host["memory"].high, seconds)
    limit = np.array([head.memory_limit or np.nan for head in recording.heads], float)
    size = np.array([head.memory or np.nan for head in recording.heads], float)
    limited = np.isfinite(cgroup) & np.isfinite(limit)
    share = np.where(limited, cgroup / limit, whole / size)
    nodes = tuple(np.flatnonzero(share >= LIMITS.host_near).tolist())
    if not nodes:
        return
    worst = nodes[int(np.argmax(share[list(nodes)]))]
    is_limit = bool(limited[worst])
    used, most = (cgroup, limit) if is_limit else (whole, size)
    yield Diagnosis(
        Finding(
            codes.HOST_MEMORY,
            "warning",
            words.node_names(recording, nodes),
            f"{words.memory(float(used[worst]))} of {words.memory(float(most[worst]))} "
            f"({words.percent(share[worst])}) of the {'memory limit' if is_limit else 'memory'} "
            f"were used on {words.node_names(recording, [worst])}: at 100 % the "
            "kernel kills a process",
            "fewer DataLoader workers (each has its own copy of what the data set holds), or a "
            "larger `--mem`"
            if is_limit
            else "fewer DataLoader workers (each has its own copy of what the data set holds)",
        ),
        nodes=nodes,
    )


def _seconds(recording: Recording) -> NDArray[np.float32]:
    inside = in_lives(recording)[:, None]
    return np.nan_to_num(recording.covered * np.float32(recording.width) * inside)


def _first(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """(nodes,) first known value of each column."""
    known = np.isfinite(values)
    if not len(values):
        return np.full(values.shape[1], np.nan)
    place = known.argmax(axis=0)
    found = values[place, np.arange(values.shape[1])].astype(np.float64)
    return np.where(known.any(axis=0), found, np.nan)
