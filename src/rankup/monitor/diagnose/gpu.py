"""GPUs that are unused, idle or little used, busy without computing, or slowed down.

A GPU that computes hard runs at its power limit, and a little below its highest clock: that is as
it should be. Only a clock far below it costs something worth a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import billing, words
from ..billing import power_share
from ..recording import Recording
from ..thresholds import LIMITS, advice
from . import common
from .common import Diagnosis, Mask, Window, gpu_seconds, highest, judged, mean, stretches


def unused(recording: Recording) -> Iterator[Diagnosis]:
    """RK701: billed GPUs that no process of the job touched."""
    which = unused_gpus(recording)
    columns = tuple(np.flatnonzero(which).tolist())
    if not columns:
        return
    seconds = gpu_seconds(recording)
    memory = float(np.nanmax(np.nan_to_num(highest(recording.gpu["memory"].high, seconds)[which])))
    processes = mean(recording.gpu["processes"].mean, seconds)[which]
    seen = "no process" if np.isfinite(processes).all() else "hardly any memory"
    span = words.duration(sum(billing.bill(recording).seconds))
    billed = int(billing.billed(recording).sum())
    yield Diagnosis(
        common.UNUSED,
        "warning",
        "GPU",
        f"{words.gpus(recording, columns)} did nothing for {span}: "
        f"0 % use, {words.memory(memory)}, {seen}; {len(columns)} of {billed} billed GPUs",
        _start_more(recording, columns, billed),
        gpus=columns,
        share=1.0,
    )


def idle(recording: Recording) -> Iterator[Diagnosis]:
    """RK702: GPUs that a process holds and hardly uses, for the whole run or a long part of it."""
    if not _long_enough(recording):
        return
    seconds = gpu_seconds(recording)
    use = mean(recording.gpu["util"].mean, seconds)
    others = billing.billed(recording) & ~unused_gpus(recording)
    always = others & (use < LIMITS.idle_util)
    columns = tuple(np.flatnonzero(always).tolist())
    if columns:
        memory = float(np.nanmean(mean(recording.gpu["memory"].mean, seconds)[always]))
        yield Diagnosis(
            common.IDLE,
            "warning",
            "GPU",
            f"{words.gpus(recording, columns)} idled: {np.nanmean(use[always]):.1f} % use on "
            f"average, though something holds {words.memory(memory)} there",
            "see that each rank computes on a GPU of its own: "
            "`torch.cuda.set_device(local_rank)` or `rankup.setup()` before the model is made",
            gpus=columns,
            share=1.0,
        )
    yield from _idle_stretches(recording, others & ~always)


def low(recording: Recording) -> Iterator[Diagnosis]:
    """RK703: GPUs that are used, but little."""
    if not _long_enough(recording):
        return
    use = mean(recording.gpu["util"].mean, gpu_seconds(recording))
    which = billing.billed(recording) & ~unused_gpus(recording)
    which &= (use >= LIMITS.idle_util) & (use < LIMITS.low_util)
    columns = tuple(np.flatnonzero(which).tolist())
    if not columns:
        return
    workers = _workers(recording)
    todo = "a larger `--micro-batch` gives the GPU more to do between two launches; " + (
        "`DataLoader(num_workers=4, pin_memory=True)` keeps data ready"
        if workers == 0
        else "`py-spy dump --pid` on a rank shows what the CPU does meanwhile"
    )
    yield Diagnosis(
        common.LOW,
        "warning",
        "GPU",
        f"{words.gpus(recording, columns)} worked little: "
        f"{np.nanmean(use[which]):.0f} % use on average"
        + (" (no DataLoader workers were seen)" if workers == 0 else ""),
        todo,
        gpus=columns,
        share=1.0,
    )


def waiting(recording: Recording) -> Iterator[Diagnosis]:
    """RK725: GPUs that say they are busy, and yet draw too little power to compute."""
    if not _long_enough(recording):
        return
    seconds = gpu_seconds(recording)
    use = mean(recording.gpu["util"].mean, seconds)
    power = mean(power_share(recording, np.arange(len(recording.gpus))), seconds)
    which = billing.billed(recording) & (use >= LIMITS.busy_util) & (power < LIMITS.busy_power)
    columns = tuple(np.flatnonzero(which).tolist())
    if not columns:
        return
    several = len(recording.gpus) > 1
    yield Diagnosis(
        common.WAITING,
        "warning",
        "GPU",
        f"{words.gpus(recording, columns)} said {np.nanmean(use[which]):.0f} % use and drew "
        f"only {words.percent(np.nanmean(power[which]))} of the power limit: waiting for "
        "other ranks, or kernels too small to matter",
        "a larger `--micro-batch`, `--compile`"
        + (
            ", or fewer exchanges (gradient accumulation, `--strategy` for a slow network); "
            "compare with 1 GPU: `rankup run --nproc 1`"
            if several
            else ""
        ),
        gpus=columns,
        share=1.0,
    )


def unused_gpus(recording: Recording) -> Mask:
    """(GPUs,) billed GPUs that did nothing: next to no use, no process, hardly any memory."""
    if not _long_enough(recording):
        return np.zeros(len(recording.gpus), bool)
    seconds = gpu_seconds(recording)
    util = recording.gpu["util"].mean
    calm = mean(np.where(np.isfinite(util), util <= LIMITS.unused_util, np.nan), seconds)
    memory = highest(recording.gpu["memory"].high, seconds)
    processes = mean(recording.gpu["processes"].mean, seconds)
    nobody = ~(processes > 0.05)  # not known counts as nobody
    empty = ~(memory >= LIMITS.unused_memory)
    return billing.billed(recording) & (calm >= LIMITS.unused_share) & nobody & empty


def _idle_stretches(recording: Recording, others: Mask) -> Iterator[Diagnosis]:
    mask = judged(recording)
    use = recording.gpu["util"].high
    least = max(LIMITS.idle_stretch, LIMITS.idle_share * float(mask.sum()) * recording.width)
    found: dict[tuple[Window, ...], list[int]] = {}
    for column in np.flatnonzero(others).tolist():
        windows = stretches((use[:, column] < LIMITS.idle_util) & mask, recording, least)
        if windows:
            found.setdefault(windows, []).append(column)
    if not found:
        return
    columns = tuple(sorted(column for each in found.values() for column in each))
    windows = tuple(sorted({window for each in found for window in each}))
    begin, end = max(windows, key=lambda window: window[1] - window[0])
    last = end >= recording.end - LIMITS.warm_up
    yield Diagnosis(
        common.IDLE,
        "warning",
        "GPU",
        f"{words.gpus(recording, columns)} idled for {words.duration(end - begin)}, "
        + words.window(begin, end)
        + (", until the job's end" if last else ""),
        "let the script end when the work is done: `rankup logs` shows what it did at that time"
        if last
        else "`rankup logs` shows what the script did at that time",
        windows=windows,
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


def _workers(recording: Recording) -> float | None:
    """Mean number of data workers of a rank; None where no rank was seen."""
    workers = recording.rank["workers"].mean if "workers" in recording.rank else None
    if workers is None or not np.isfinite(workers).any():
        return None
    return float(np.nanmean(workers))


def _long_enough(recording: Recording) -> bool:
    if not len(recording.gpus) or recording.facts.gpus == 0:
        return False
    return float(gpu_seconds(recording).sum(axis=0).max(initial=0)) >= LIMITS.judged_least


def power_limited(recording: Recording) -> Iterator[Diagnosis]:
    """RK711: the power limit keeps a GPU's clock far below the highest one."""
    if not _long_enough(recording):
        return
    seconds = gpu_seconds(recording)
    share = mean(recording.gpu["throttle_power"].mean, seconds)
    clock = mean(recording.gpu["clock"].mean, seconds) / _clock_max(recording)
    which = (share >= LIMITS.throttle_power) & (clock < LIMITS.throttle_clock)
    columns = tuple(np.flatnonzero(which).tolist())
    if not columns:
        return
    limits = [recording.gpus[column].power_limit for column in columns]
    watts = min((limit for limit in limits if limit), default=None)
    yield Diagnosis(
        common.POWER,
        "warning",
        "GPU",
        f"{words.gpus(recording, columns)} ran at {words.percent(np.nanmean(clock[which]))} "
        "of the highest clock, held back by the power limit "
        f"{words.percent(np.nanmean(share[which]))} of the time"
        + (f" ({watts:.0f} W)" if watts else ""),
        "ask the site whether the power limit of these nodes is lowered (`nvidia-smi -q -d "
        "POWER`); lower precision (bf16) does more for each watt",
        gpus=columns,
    )


def heat_limited(recording: Recording) -> Iterator[Diagnosis]:
    """RK712: heat, or a slowdown of the hardware, keeps a GPU's clock down."""
    if not _long_enough(recording):
        return
    seconds = gpu_seconds(recording)
    heat = mean(recording.gpu["throttle_heat"].mean, seconds)
    hardware = mean(recording.gpu["throttle_hardware"].mean, seconds)
    share = np.fmax(heat, hardware)
    which = share >= LIMITS.throttle_heat
    columns = tuple(np.flatnonzero(which).tolist())
    if not columns:
        return
    hottest = float(
        np.nanmax(highest(recording.gpu["temperature"].high, seconds)[which], initial=0)
    )
    nodes = tuple(sorted({int(recording.gpu_node[column]) for column in columns}))
    what = "heat" if np.nansum(heat[which]) >= np.nansum(hardware[which]) else "its hardware"
    yield Diagnosis(
        common.HEAT,
        "warning",
        words.node_names(recording, nodes),
        f"{words.gpus(recording, columns)} slowed down by {what} "
        f"{words.percent(np.nanmean(share[which]))} of the time"
        + (f", up to {hottest:.0f} °C" if hottest > 0 else ""),
        "tell the site: nodes are cooled so that this does not happen; until then "
        f"`sbatch --exclude={words.node_names(recording, nodes[:1])}`",
        gpus=columns,
        nodes=nodes,
    )


def _clock_max(recording: Recording) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([gpu.clock_max or np.nan for gpu in recording.gpus], np.float64)
