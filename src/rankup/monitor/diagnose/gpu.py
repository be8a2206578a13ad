"""GPUs that are unused, idle or little used, slowed down; their memory; and GPUs or ranks that
have less to do than the others.

A GPU that computes hard runs at its power limit, and a little below its highest clock: that is as
it should be. Only a clock far below it costs something worth a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .. import words
from ..recording import Recording, weighted
from ..thresholds import LIMITS, advice
from .common import Diagnosis, Look, Mask, Values, Window, lasts, longest, places


def unused(look: Look) -> Iterator[Diagnosis]:
    """RK701: billed GPUs that no process of the job touched."""
    columns = places(look.unused)
    if not columns:
        return
    memory = float(np.nanmax(np.nan_to_num(look.peak("memory")[look.unused])))
    known = np.isfinite(look.gpu("processes")[look.unused]).all()
    billed = int(look.billed.sum())
    yield Diagnosis(
        "RK701",
        "warning",
        "GPU",
        f"{words.gpus(look.recording, columns)} did nothing for {words.duration(look.ran)}: "
        f"0 % use, {words.memory(memory)}, {'no process' if known else 'hardly any memory'}; "
        f"{len(columns)} of {billed} billed GPUs",
        _start_more(look.recording, columns, billed),
        gpus=columns,
        share=1.0,
    )


def idle(look: Look) -> Iterator[Diagnosis]:
    """RK702: GPUs that a process holds and hardly uses, for the whole run or a long part of it."""
    if not look.long_enough:
        return
    always = look.used & (look.use < LIMITS.idle_util)
    if columns := places(always):
        memory = float(np.nanmean(look.gpu("memory")[always]))
        yield Diagnosis(
            "RK702",
            "warning",
            "GPU",
            f"{words.gpus(look.recording, columns)} idled: {np.nanmean(look.use[always]):.1f} % "
            f"use on average, though something holds {words.memory(memory)} there",
            "see that each rank computes on a GPU of its own: "
            "`torch.cuda.set_device(local_rank)` or `rankup.setup()` before the model is made",
            gpus=columns,
            share=1.0,
        )
    yield from _idle_stretches(look, look.used & ~always)


def _idle_stretches(look: Look, others: Mask) -> Iterator[Diagnosis]:
    recording = look.recording
    use = recording.gpu["util"].high
    judged = float(look.judged.sum()) * recording.width
    least = max(LIMITS.idle_stretch, LIMITS.idle_share * judged)
    found: dict[int, tuple[Window, ...]] = {}
    for column in places(others):
        if windows := look.stretches((use[:, column] < LIMITS.idle_util) & look.judged, least):
            found[column] = windows
    if not found:
        return
    windows = tuple(sorted({window for each in found.values() for window in each}))
    begin, end = longest(windows)
    last = look.until_the_end((begin, end))
    yield Diagnosis(
        "RK702",
        "warning",
        "GPU",
        f"{words.gpus(recording, found)} idled for {words.duration(end - begin)}, "
        + words.window(begin, end)
        + (", until the job's end" if last else ""),
        ("let the script end when the work is done: " if last else "")
        + f"`rankup logs` shows what {'it' if last else 'the script'} did at that time",
        windows=windows,
        gpus=tuple(found),
        share=1.0,
    )


def low(look: Look) -> Iterator[Diagnosis]:
    """RK703: GPUs that are used, but little."""
    if not look.long_enough:
        return
    which = look.used & (look.use >= LIMITS.idle_util) & (look.use < LIMITS.low_util)
    columns = places(which)
    if not columns:
        return
    workers = look.recording.rank["workers"].mean
    alone = bool(np.isfinite(workers).any()) and float(np.nanmean(workers)) == 0
    yield Diagnosis(
        "RK703",
        "warning",
        "GPU",
        f"{words.gpus(look.recording, columns)} worked little: "
        f"{np.nanmean(look.use[which]):.0f} % use on average"
        + (" (no DataLoader workers were seen)" if alone else ""),
        "a larger `--micro-batch` gives the GPU more to do between two launches; "
        + (
            "`DataLoader(num_workers=4, pin_memory=True)` keeps data ready"
            if alone
            else "`py-spy dump --pid` on a rank shows what the CPU does meanwhile"
        ),
        gpus=columns,
        share=1.0,
    )


def _start_more(recording: Recording, columns: tuple[int, ...], billed: int) -> str:
    """What uses the GPUs that were not, or gives them back."""
    nodes = len(recording.heads)
    whole = sum(
        bool(own := set(np.flatnonzero(recording.gpu_node == node).tolist())) and own <= {*columns}
        for node in range(nodes)
    )
    per_node = max(1, recording.facts.gpus or len(recording.gpus) // max(1, nodes))
    ranks = recording.facts.ranks
    return advice(len(columns), billed, ranks, per_node, nodes - whole if whole else 0)


def slowed(look: Look) -> Iterator[Diagnosis]:
    """RK712: heat, a slowdown of the hardware or the power limit keeps a GPU's clock down."""
    if look.long_enough:
        yield from _by_heat(look)
        yield from _by_power(look)


def _by_heat(look: Look) -> Iterator[Diagnosis]:
    heat, hardware = look.gpu("throttle_heat"), look.gpu("throttle_hardware")
    share = np.fmax(heat, hardware)
    which = share >= LIMITS.throttle_heat
    columns = places(which)
    if not columns:
        return
    hottest = float(np.nanmax(look.peak("temperature")[which], initial=0))
    nodes = tuple(sorted({int(look.recording.gpu_node[column]) for column in columns}))
    what = "heat" if np.nansum(heat[which]) >= np.nansum(hardware[which]) else "its hardware"
    yield Diagnosis(
        "RK712",
        "warning",
        words.node_names(look.recording, nodes),
        f"{words.gpus(look.recording, columns)} slowed down by {what} "
        f"{words.percent(np.nanmean(share[which]))} of the time"
        + (f", up to {hottest:.0f} °C" if hottest > 0 else ""),
        "tell the site: nodes are cooled so that this does not happen; until then "
        f"`sbatch --exclude={words.node_names(look.recording, nodes[:1])}`",
        gpus=columns,
        nodes=nodes,
    )


def _by_power(look: Look) -> Iterator[Diagnosis]:
    """A GPU that computes hard is at its limit; a clock far below the highest is what costs."""
    share = look.gpu("throttle_power")
    highest = np.array([gpu.clock_max or np.nan for gpu in look.recording.gpus])
    clock = look.gpu("clock") / highest
    which = (share >= LIMITS.throttle_power) & (clock < LIMITS.throttle_clock)
    columns = places(which)
    if not columns:
        return
    limits = [look.recording.gpus[column].power_limit for column in columns]
    watts = min((limit for limit in limits if limit), default=None)
    yield Diagnosis(
        "RK712",
        "warning",
        "GPU",
        f"{words.gpus(look.recording, columns)} ran at {words.percent(np.nanmean(clock[which]))} "
        "of the highest clock, held back by the power limit "
        f"{words.percent(np.nanmean(share[which]))} of the time"
        + (f" ({watts:.0f} W)" if watts else ""),
        "ask the site whether the power limit of these nodes is lowered (`nvidia-smi -q -d "
        "POWER`); lower precision (bf16) does more for each watt",
        gpus=columns,
    )


def gpu_memory(look: Look) -> Iterator[Diagnosis]:
    """RK708: the peak of GPUs in use is close to their memory."""
    if not look.long_enough:
        return
    which = look.used & (look.use >= LIMITS.idle_util)
    size = np.array([gpu.memory or np.nan for gpu in look.recording.gpus])
    peaks = np.where(which, look.peak("memory") / size, np.nan)
    columns = places(peaks >= LIMITS.memory_near)
    if not columns:
        return
    top, fullest = float(np.nanmax(peaks)), int(np.nanargmax(peaks))
    held = words.memory(top * size[fullest])
    whole = f"{words.memory(size[fullest])} ({words.percent(top)})"
    yield Diagnosis(
        "RK708",
        "warning",
        "GPU memory",
        f"{words.gpus(look.recording, columns)} came to {held} of {whole}: "
        "a longer sequence or a little fragmentation ends the run",
        "a smaller `--micro-batch`, `--strategy fsdp`, or activation checkpointing",
        gpus=columns,
    )


def imbalance(look: Look) -> Iterator[Diagnosis]:
    """RK705: some GPUs or ranks work clearly less, or more, than the others."""
    if look.recording.facts.gpus == 0 or not len(look.recording.gpus):
        yield from _of_ranks(look)
        return
    columns = np.flatnonzero(look.used & (look.use >= LIMITS.idle_util))
    if not look.long_enough or len(columns) < 2:
        return
    use, share = look.use[columns], look.power[columns]
    power = np.clip(share - LIMITS.power_floor, 0, None) / (1 - LIMITS.power_floor)
    by_use, by_power = _difference(use), _difference(power)
    if by_use > LIMITS.imbalance:
        yield _between_gpus(look, columns, use, by_use, "use", " %")
    elif by_power > LIMITS.imbalance_power and np.nanmax(share) >= LIMITS.spin_power:
        yield _between_gpus(look, columns, share * 100, by_power, "power", " % of the limit")


def outliers(values: Values) -> tuple[Mask, bool]:
    """Return a mask of the values that stand apart, the smaller group, and True if they are lower.

    The groups lie on both sides of the middle between the lowest and the highest; of equal groups
    the lower one stands apart.
    """
    below = values < (np.nanmin(values) + np.nanmax(values)) / 2
    lower = bool(2 * below.sum() <= len(values))
    return (below if lower else ~below), lower


def _between_gpus(
    look: Look,
    columns: NDArray[np.int64],
    values: Values,
    by: float,
    what: str,
    unit: str,
) -> Diagnosis:
    recording = look.recording
    apart, lower = outliers(values)
    chosen = tuple(columns[apart].tolist())
    nodes = tuple(sorted({int(recording.gpu_node[column]) for column in chosen}))
    named = words.gpus(recording, chosen)
    place = words.node_names(recording, nodes) if len(nodes) <= 2 else "GPU"
    rather = "less" if lower else "more"
    clock = _clocks(look.gpu("clock")[columns], apart)
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
        "RK705",
        "warning",
        place,
        f"{named} did {rather} than the others: {what} {np.nanmean(values[apart]):.0f}{unit} "
        f"against {np.nanmean(values[~apart]):.0f}{unit}{clock}, and each step lasts as long "
        "as its slowest rank",
        todo,
        gpus=tuple(columns.tolist()),
        nodes=nodes,
        share=min(1.0, by),
    )


def _clocks(clocks: Values, apart: Mask) -> str:
    if not (np.isfinite(clocks[apart]).any() and np.isfinite(clocks[~apart]).any()):
        return ""
    slow, usual = np.nanmean(clocks[apart]), np.nanmean(clocks[~apart])
    return f" (clock {slow:.0f} against {usual:.0f} MHz)" if slow < 0.85 * usual else ""


def _of_ranks(look: Look) -> Iterator[Diagnosis]:
    recording = look.recording
    seconds = look.node_seconds[:, recording.rank_node]
    if len(recording.ranks) < 2 or not lasts(seconds):
        return
    use = weighted(recording.rank["cpu"].mean, seconds)
    by = _difference(use)
    # Ranks that hardly compute at all wait for something else.
    if not (by > LIMITS.imbalance and np.nanmax(use) >= LIMITS.cpu_full):
        return
    apart, lower = outliers(use)
    ranks = recording.ranks[apart]
    nodes = tuple(sorted({int(node) for node in recording.rank_node[apart]}))
    word = "rank" if len(ranks) == 1 else "ranks"
    yield Diagnosis(
        "RK705",
        "warning",
        words.node_names(recording, nodes) if len(nodes) <= 2 else "ranks",
        f"{word} {words.numbers(ranks.tolist())} computed {'less' if lower else 'more'} than "
        f"the others: {np.nanmean(use[apart]):.0f} % of a core against "
        f"{np.nanmean(use[~apart]):.0f} %, and each step lasts as long as its slowest rank",
        "give every rank the same work: `rankup.shard(loader)` deals it evenly",
        nodes=nodes,
        share=min(1.0, by),
    )


def _difference(values: Values) -> float:
    """(most - least) / most; 0 where that says nothing."""
    known = values[np.isfinite(values)]
    if len(known) < 2 or known.max() <= 0:
        return 0.0
    return float((known.max() - known.min()) / known.max())
