"""Cores, too few or more asked of than there are; memory of the nodes; swap."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .. import words
from ..lines import Head
from ..recording import Recording, weighted
from ..thresholds import LIMITS
from .common import Diagnosis, Look, Values, highest, lasts, places


def cores(look: Look) -> Iterator[Diagnosis]:
    """RK709 and RK710: more processes want to run than there are cores; or than they may use."""
    recording, seconds = look.recording, look.node_seconds
    if not lasts(seconds):
        return
    load = weighted(recording.host["load"].mean, seconds)
    use = weighted(recording.host["cpu"].mean, seconds)
    few: list[int] = []
    over: list[int] = []
    seen = ""
    for node, head in enumerate(recording.heads):
        trapped = _trapped(recording, node, head, float(load[node]), float(use[node]))
        if trapped:
            few.append(node)
            seen = seen or trapped
        # Of a part of a node the load says nothing: the rest of it is somebody else's.
        elif (
            _whole(head) and load[node] > LIMITS.load * head.cores and use[node] >= LIMITS.load_use
        ):
            over.append(node)
    if few:
        yield _few(look, tuple(few), seen)
    if over:
        yield _over(look, tuple(over), load)


def _trapped(recording: Recording, node: int, head: Head, load: float, use: float) -> str:
    """Say by what a node's ranks are seen to use only some of its cores; empty: they are not."""
    name = words.node_names(recording, [node])
    usable = len(head.usable)
    if not usable:
        return ""
    ranks = int((recording.rank_node == node).sum())
    asked = _number(head.environment.get("SLURM_CPUS_PER_TASK"))
    if usable < max(ranks, asked / 2) and use >= LIMITS.one_core:
        wanted = f"{asked} were asked for" if asked else f"{ranks} ranks run there"
        return (
            f"the job may use {words.plural(usable, 'core')} of {head.cores} on {name} "
            f"({use:.0f} % busy), though {wanted}"
        )
    if _whole(head) and load > LIMITS.load * head.cores and use < LIMITS.load_use:
        return (
            f"load {load:.0f} on {name} at {use:.0f} % use of its {head.cores} cores: many "
            "processes wait for few of them"
        )
    busy = np.sort(recording.core_use[node])[::-1]
    one = (
        usable >= 4
        and len(busy) >= 4
        and busy[0] >= LIMITS.one_core
        and busy[1] < LIMITS.other_cores
    )
    if ranks >= 2 and one:
        return f"{ranks} ranks on {name} share one core; the other {usable - 1} idle"
    return ""


def _few(look: Look, nodes: tuple[int, ...], seen: str) -> Diagnosis:
    recording = look.recording
    environment = recording.heads[nodes[0]].environment
    asked = environment.get("SLURM_CPUS_PER_TASK")
    missing = "SRUN_CPUS_PER_TASK" not in environment
    taken_over = 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
    if not missing:  # as in every job of `rankup run`, which does what is said below
        todo = "whole nodes (`--sbatch=--exclusive`), or fewer ranks per node (`--nproc`)"
    elif asked:
        todo = (
            f"`{taken_over}` before `srun`, which does not take `--cpus-per-task` over from "
            "`sbatch`, and `srun --cpu-bind=none`; `rankup run` does both"
        )
    else:
        todo = (
            f"`#SBATCH --cpus-per-task=` cores per node / ranks per node, `{taken_over}`, and "
            "`srun --cpu-bind=none`; `rankup run` does all three"
        )
    if asked and missing:
        seen += "; SRUN_CPUS_PER_TASK is not set"
    return Diagnosis(
        "RK710",
        "warning",
        words.node_names(recording, nodes),
        seen,
        todo,
        nodes=nodes,
        share=_slack(look),
    )


def _over(look: Look, nodes: tuple[int, ...], load: Values) -> Diagnosis:
    recording = look.recording
    worst = max(nodes, key=lambda node: load[node])
    head = recording.heads[worst]
    ranks = max(1, int((recording.rank_node == worst).sum()))
    seconds = look.node_seconds[:, recording.rank_node]
    workers = np.nan_to_num(weighted(recording.rank["workers"].mean, seconds))
    own = float(workers[recording.rank_node == worst].sum())
    each = max(1, head.cores // ranks)
    threads = head.environment.get("OMP_NUM_THREADS")
    return Diagnosis(
        "RK709",
        "warning",
        words.node_names(recording, nodes),
        f"load {load[worst]:.0f} on the {head.cores} cores of "
        f"{words.node_names(recording, [worst])} ({words.plural(ranks, 'rank')}, "
        f"{own:.0f} workers): processes take turns",
        f"`DataLoader(num_workers={max(1, each - 1)})` at most, and "
        f"`export OMP_NUM_THREADS={max(1, each // (1 + round(own / ranks)))}`"
        + (f" (it is {words.shown(threads)})" if threads else ""),
        nodes=nodes,
        share=_slack(look),
    )


def _slack(look: Look) -> float:
    """The share of the time that did no work, less what a healthy run has of that anyway."""
    efficiency = look.work.efficiency
    return 0.0 if efficiency is None else max(0.0, LIMITS.usual - efficiency)


def _whole(head: Head) -> bool:
    return head.cores > 0 and len(head.usable) >= head.cores


def _number(text: str | None) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        return 0
    return value if math.isfinite(value) and value > 0 else 0


def swap(look: Look) -> Iterator[Diagnosis]:
    """RK713: a node's swap grew while the run was on it."""
    recording, used = look.recording, look.recording.host["swap"]
    grown = highest(used.high, look.covered(look.in_attempts)) - _first(used.mean)
    nodes = places(grown >= LIMITS.swap_least)
    if not nodes:
        return
    yield Diagnosis(
        "RK713",
        "warning",
        words.node_names(recording, nodes),
        f"{words.memory(float(np.nanmax(grown)))} went into swap on "
        f"{words.plural(len(nodes), 'node')}: memory that is read back from a disk is "
        "thousands of times slower",
        "fewer DataLoader workers, or a smaller `prefetch_factor`; load data by parts "
        "(`rankup.data.open` maps files instead of reading them)",
        nodes=nodes,
    )


def host_memory(look: Look) -> Iterator[Diagnosis]:
    """RK714: what counts against the cgroup's limit, or else the node's memory, is nearly full."""
    recording, seconds = look.recording, look.covered(look.in_attempts)
    cgroup = highest(recording.host["cgroup"].high, seconds)
    whole = highest(recording.host["memory"].high, seconds)
    limit = np.array([head.memory_limit or np.nan for head in recording.heads], float)
    size = np.array([head.memory or np.nan for head in recording.heads], float)
    limited = np.isfinite(cgroup) & np.isfinite(limit)
    share = np.where(limited, cgroup / limit, whole / size)
    nodes = places(share >= LIMITS.host_near)
    if not nodes:
        return
    worst = nodes[int(np.argmax(share[list(nodes)]))]
    is_limit = bool(limited[worst])
    used, most = (cgroup, limit) if is_limit else (whole, size)
    yield Diagnosis(
        "RK714",
        "warning",
        words.node_names(recording, nodes),
        f"{words.memory(float(used[worst]))} of {words.memory(float(most[worst]))} "
        f"({words.percent(share[worst])}) of the {'memory limit' if is_limit else 'memory'} "
        f"were used on {words.node_names(recording, [worst])}: at 100 % the "
        "kernel kills a process",
        "fewer DataLoader workers (each has its own copy of what the data set holds)"
        + (", or a larger `--mem`" if is_limit else ""),
        nodes=nodes,
    )


def _first(values: NDArray[np.float32]) -> Values:
    """(nodes,) first known value of each column."""
    known = np.isfinite(values)
    if not len(values):
        return np.full(values.shape[1], np.nan)
    place = known.argmax(axis=0)
    found = values[place, np.arange(values.shape[1])].astype(np.float64)
    return np.where(known.any(axis=0), found, np.nan)
