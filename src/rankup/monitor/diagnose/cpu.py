"""Cores: more work than there are, or ranks that may use only a few of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...base.findings import Finding
from .. import words
from ..lines import Head
from ..recording import Recording
from ..thresholds import LIMITS
from ..work import work
from . import codes
from .diagnosis import Diagnosis
from .judged import mean, node_seconds


def cores(recording: Recording) -> Iterator[Diagnosis]:
    """RK709 and RK710: more processes want to run than there are cores; or than they may use."""
    seconds = node_seconds(recording)
    if float(seconds.sum(axis=0).max(initial=0)) < LIMITS.judged_least:
        return
    load = mean(recording.host["load"].mean, seconds)
    use = mean(recording.host["cpu"].mean, seconds)
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
        yield _few(recording, tuple(few), seen)
    if over:
        yield _over(recording, tuple(over), load)


def _trapped(recording: Recording, node: int, head: Head, load: float, use: float) -> str:
    """What shows that the ranks of a node may use only some of its cores; empty: nothing does."""
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


def _few(recording: Recording, nodes: tuple[int, ...], seen: str) -> Diagnosis:
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
        Finding(codes.FEW_CORES, "warning", words.node_names(recording, nodes), seen, todo),
        nodes=nodes,
        share=_slack(recording),
    )


def _over(
    recording: Recording, nodes: tuple[int, ...], load: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> Diagnosis:
    worst = max(nodes, key=lambda node: load[node])
    head = recording.heads[worst]
    ranks = max(1, int((recording.rank_node == worst).sum()))
    seconds = node_seconds(recording)[:, recording.rank_node]
    workers = np.nan_to_num(mean(recording.rank["workers"].mean, seconds))
    own = float(workers[recording.rank_node == worst].sum())
    each = max(1, head.cores // ranks)
    threads = head.environment.get("OMP_NUM_THREADS")
    return Diagnosis(
        Finding(
            codes.OVERSUBSCRIBED,
            "warning",
            words.node_names(recording, nodes),
            f"load {load[worst]:.0f} on the {head.cores} cores of "
            f"{words.node_names(recording, [worst])} ({words.plural(ranks, 'rank')}, "
            f"{own:.0f} workers): processes take turns",
            f"`DataLoader(num_workers={max(1, each - 1)})` at most, and "
            f"`export OMP_NUM_THREADS={max(1, each // (1 + round(own / ranks)))}`"
            + (f" (it is {words.shown(threads)})" if threads else ""),
        ),
        nodes=nodes,
        share=_slack(recording),
    )


def _slack(recording: Recording) -> float:
    """The share of the time that did no work, less what a healthy run has of that anyway."""
    efficiency = work(recording).efficiency
    return 0.0 if efficiency is None else max(0.0, LIMITS.usual - efficiency)


def _whole(head: Head) -> bool:
    return head.cores > 0 and len(head.usable) >= head.cores


def _number(text: str | None) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        return 0
    return value if math.isfinite(value) and value > 0 else 0
