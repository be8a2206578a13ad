"""GPUs that the driver slows down: their power limit, heat, or the hardware's own protection.

A GPU that computes hard runs at its power limit, and a little below its highest clock: that is as
it should be. Only a clock far below it costs something worth a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.findings import Finding
from .. import words
from ..recording import Recording
from ..thresholds import LIMITS
from . import codes
from .diagnosis import Diagnosis
from .judged import gpu_seconds, highest, mean


def power_limited(recording: Recording) -> Iterator[Diagnosis]:
    """RK711: the power limit keeps a GPU's clock far below the highest one."""
    if not _judged(recording):
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
        Finding(
            codes.POWER,
            "warning",
            "GPU",
            f"{words.gpus(recording, columns)} ran at {words.percent(np.nanmean(clock[which]))} "
            "of the highest clock, held back by the power limit "
            f"{words.percent(np.nanmean(share[which]))} of the time"
            + (f" ({watts:.0f} W)" if watts else ""),
            "ask the site whether the power limit of these nodes is lowered (`nvidia-smi -q -d "
            "POWER`); lower precision (bf16) does more for each watt",
        ),
        gpus=columns,
    )


def heat_limited(recording: Recording) -> Iterator[Diagnosis]:
    """RK712: heat, or a slowdown of the hardware, keeps a GPU's clock down."""
    if not _judged(recording):
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
        Finding(
            codes.HEAT,
            "warning",
            words.node_names(recording, nodes),
            f"{words.gpus(recording, columns)} slowed down by {what} "
            f"{words.percent(np.nanmean(share[which]))} of the time"
            + (f", up to {hottest:.0f} °C" if hottest > 0 else ""),
            "tell the site: nodes are cooled so that this does not happen; until then "
            f"`sbatch --exclude={words.node_names(recording, nodes[:1])}`",
        ),
        gpus=columns,
        nodes=nodes,
    )


def _judged(recording: Recording) -> bool:
    if not len(recording.gpus) or recording.facts.gpus == 0:
        return False
    return float(gpu_seconds(recording).sum(axis=0).max(initial=0)) >= LIMITS.judged_least


def _clock_max(recording: Recording) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([gpu.clock_max or np.nan for gpu in recording.gpus], np.float64)
