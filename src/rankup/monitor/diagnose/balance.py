"""GPUs, and on nodes without any ranks, that do unequal work: the others wait for one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...base.findings import Finding
from .. import billing, words
from ..recording import Recording
from ..thresholds import LIMITS
from ..work import power_share
from . import codes
from .diagnosis import Diagnosis
from .gpu import unused_gpus
from .judged import gpu_seconds, judged, mean

Values = NDArray[np.float64]


def imbalance(recording: Recording) -> Iterator[Diagnosis]:
    """RK705: some GPUs or ranks work clearly less, or more, than the others."""
    if recording.facts.gpus == 0 or not len(recording.gpus):
        yield from _of_ranks(recording)
        return
    seconds = gpu_seconds(recording)
    if float(seconds.sum(axis=0).max(initial=0)) < LIMITS.judged_least:
        return
    use = mean(recording.gpu["util"].mean, seconds)
    which = billing.billed(recording) & ~unused_gpus(recording) & (use >= LIMITS.idle_util)
    columns = np.flatnonzero(which)
    if len(columns) < 2:
        return
    share = mean(power_share(recording, np.arange(len(recording.gpus))), seconds)[columns]
    power = np.clip(share - LIMITS.power_floor, 0, None) / (1 - LIMITS.power_floor)
    by_use = _difference(use[columns])
    by_power = _difference(power)
    if by_use > LIMITS.imbalance:
        yield _between_gpus(recording, columns, use[columns], by_use, "use", " %")
    elif by_power > LIMITS.imbalance_power and np.nanmax(share) >= LIMITS.spin_power:
        yield _between_gpus(recording, columns, share * 100, by_power, "power", " % of the limit")


def outliers(values: Values) -> tuple[NDArray[np.bool_], bool]:
    """Which of the values stand apart, the smaller group, and whether they are lower.

    The groups lie on both sides of the middle between the lowest and the highest; of equal groups
    the lower one stands apart.
    """
    below = values < (np.nanmin(values) + np.nanmax(values)) / 2
    lower = bool(2 * below.sum() <= len(values))
    return (below if lower else ~below), lower


def _between_gpus(
    recording: Recording,
    columns: NDArray[np.int64],
    values: Values,
    by: float,
    what: str,
    unit: str,
) -> Diagnosis:
    apart, lower = outliers(values)
    chosen = tuple(columns[apart].tolist())
    nodes = tuple(sorted({int(recording.gpu_node[column]) for column in chosen}))
    named = words.gpus(recording, chosen)
    place = words.node_names(recording, nodes) if len(nodes) <= 2 else "GPU"
    rather = "less" if lower else "more"
    clock = _clocks(recording, columns, apart)
    whole = len(nodes) == 1 and len(recording.heads) > 1
    name = words.node_names(recording, nodes[:1])
    if clock:
        todo = f"the slow clock points to heat or power: run without the node, `--exclude={name}`"
    elif whole:
        todo = (
            f"look at {name} alone (its files, its CPU load, its clocks); if it stays slow, "
            f'`rankup run` without it (`sbatch = ["--exclude={name}"]`) and tell the site'
        )
    else:
        todo = (
            "give every rank the same work: `rankup.shard(loader)` deals it evenly; batches of "
            "similar length, and no work on rank 0 alone (logging, evaluation)"
        )
    return Diagnosis(
        Finding(
            codes.IMBALANCE,
            "warning",
            place,
            f"{named} did {rather} than the others: {what} {np.nanmean(values[apart]):.0f}{unit} "
            f"against {np.nanmean(values[~apart]):.0f}{unit}{clock}, and each step lasts as long "
            "as its slowest rank",
            todo,
        ),
        gpus=tuple(columns.tolist()),
        nodes=nodes,
        share=min(1.0, by),
    )


def _clocks(recording: Recording, columns: NDArray[np.int64], apart: NDArray[np.bool_]) -> str:
    clocks = mean(recording.gpu["clock"].mean, gpu_seconds(recording))[columns]
    if not (np.isfinite(clocks[apart]).any() and np.isfinite(clocks[~apart]).any()):
        return ""
    slow, usual = np.nanmean(clocks[apart]), np.nanmean(clocks[~apart])
    return f" (clock {slow:.0f} against {usual:.0f} MHz)" if slow < 0.85 * usual else ""


def _of_ranks(recording: Recording) -> Iterator[Diagnosis]:
    if len(recording.ranks) < 2:
        return
    covered = np.nan_to_num(recording.covered) * judged(recording)[:, None] * recording.width
    seconds = covered[:, recording.rank_node]
    if float(seconds.sum(axis=0).max(initial=0)) < LIMITS.judged_least:
        return
    use = mean(recording.rank["cpu"].mean, seconds)
    by = _difference(use)
    # Ranks that hardly compute at all wait for something else.
    if not (by > LIMITS.imbalance and np.nanmax(use) >= LIMITS.cpu_full):
        return
    apart, lower = outliers(use)
    ranks = recording.ranks[apart]
    nodes = tuple(sorted({int(node) for node in recording.rank_node[apart]}))
    word = "rank" if len(ranks) == 1 else "ranks"
    yield Diagnosis(
        Finding(
            codes.IMBALANCE,
            "warning",
            words.node_names(recording, nodes) if len(nodes) <= 2 else "ranks",
            f"{word} {words.numbers(ranks.tolist())} computed {'less' if lower else 'more'} than "
            f"the others: {np.nanmean(use[apart]):.0f} % of a core against "
            f"{np.nanmean(use[~apart]):.0f} %, and each step lasts as long as its slowest rank",
            "give every rank the same work: `rankup.shard(loader)` deals it evenly",
        ),
        nodes=nodes,
        share=min(1.0, by),
    )


def _difference(values: Values) -> float:
    """(most - least) / most; 0 where that says nothing."""
    known = values[np.isfinite(values)]
    if len(known) < 2 or known.max() <= 0:
        return 0.0
    return float((known.max() - known.min()) / known.max())
