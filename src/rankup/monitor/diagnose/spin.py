"""A run that stands still: GPUs spin in a collective that somebody does not join, or no step comes.

Such GPUs say 100 % use, since NCCL's kernel runs, and draw little power, since it only polls. Where
the training says its steps, none of them may end meanwhile: training that is slow is not a hang.
Where it says none, the power must be flat and very low, and no data may come in over PCIe.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.findings import Finding
from .. import billing, words
from ..recording import Array, Recording
from ..thresholds import LIMITS
from ..work import in_lives, power_share, work
from . import codes
from .diagnosis import Diagnosis, Window, merged
from .judged import Mask, stretches
from .pauses import pauses


def spinning(recording: Recording) -> Iterator[Diagnosis]:
    """RK706: 100 % use at little power for minutes, and no step comes to its end."""
    found = _spins(recording)
    if not found:
        return
    columns = tuple(sorted(found))
    windows = merged(window for each in found.values() for window in each)
    begin, end = max(windows, key=lambda window: window[1] - window[0])
    last = end >= recording.end - LIMITS.warm_up
    power = power_share(recording, np.array(columns, np.int64))
    inside = (recording.times >= begin) & (recording.times <= end)
    drawn = float(np.nanmean(power[inside])) if inside.any() else float("nan")
    others = _others(recording, columns, inside)
    yield Diagnosis(
        Finding(
            codes.SPINNING,
            "error" if last else "warning",
            "GPU",
            f"{words.gpus(recording, columns)} waited in a collective for "
            f"{words.duration(end - begin)}, {words.window(begin, end)}"
            f"{', until the end' if last else ''}: 100 % use at {words.percent(drawn)} of the "
            "power limit"
            + (f"; {others} did not take part" if others else "")
            + (f" ({len(windows)} times)" if len(windows) > 1 else ""),
            "all ranks must call the same collectives in the same order: look for code behind "
            "`if rank == 0`, or loaders of unequal length; `rankup logs "
            f"{words.argument(recording.facts)}` names the rank that stopped, "
            "`TORCH_NCCL_DUMP_ON_TIMEOUT=1` the collective",
        ),
        windows=windows,
        gpus=columns,
        share=1.0,
    )


def stalled(recording: Recording) -> Iterator[Diagnosis]:
    """RK726: no step ended for a long time, hardly anything was computed, and nothing says why."""
    steps = recording.steps
    known = np.isfinite(steps.seconds)
    if not known.any():
        return
    least = max(LIMITS.stall_least, LIMITS.stall_times * float(np.median(steps.seconds[known])))
    explained = [pause for pause in pauses(recording) if pause.why in ("checkpoint", "validation")]
    windows = tuple(
        (begin, end)
        for begin, end in _without_steps(recording, least)
        if not any(pause.begin < end and pause.end > begin for pause in explained)
    )
    windows = tuple(one for one in windows if _still(recording, one))
    if not windows:
        return
    begin, end = max(windows, key=lambda window: window[1] - window[0])
    last = end >= recording.end - LIMITS.warm_up
    yield Diagnosis(
        Finding(
            codes.STALLED,
            "warning",
            "steps",
            f"no step ended for {words.duration(end - begin)}, {words.window(begin, end)}"
            + (", until the end" if last else "")
            + f"; a step usually takes {words.duration(float(np.median(steps.seconds[known])))}",
            f"`rankup logs {words.argument(recording.facts)}` shows what the script said then; "
            "`py-spy dump --pid` on a rank shows where it stands",
        ),
        windows=windows,
        share=1.0,
    )


def _still(recording: Recording, window: Window) -> bool:
    """Whether little was computed in a window: a test or an export is work without steps."""
    done = work(recording)
    inside = (recording.times > window[0]) & (recording.times < window[1])
    seconds = done.seconds * inside[:, None]
    known = float(seconds.sum(dtype=np.float64))
    return known > 0 and float(np.nansum(done.share * seconds)) / known < LIMITS.stall_work


def _spins(recording: Recording) -> dict[int, tuple[Window, ...]]:
    """Windows in which each GPU spins, by column."""
    columns = np.flatnonzero(billing.billed(recording))
    if not len(columns) or not recording.bins or recording.facts.gpus == 0:
        return {}
    power = power_share(recording, columns)
    use = recording.gpu["util"].mean[:, columns]
    traffic = recording.gpu["pcie_rx"].mean[:, columns]
    alive = in_lives(recording)
    stepless = _stepless(recording)
    if stepless is not None:
        alive = alive & stepless
    for pause in pauses(recording):
        if pause.why in ("checkpoint", "validation"):
            alive &= ~((recording.times >= pause.begin) & (recording.times <= pause.end))
    spin = (use >= LIMITS.spin_util) & (power < LIMITS.spin_power) & alive[:, None]
    found = {}
    for place in np.flatnonzero(spin.sum(axis=0) * recording.width >= LIMITS.spin_least).tolist():
        windows = stretches(spin[:, place], recording, LIMITS.spin_least)
        if stepless is None:
            own = power[:, place], traffic[:, place], spin[:, place]
            windows = tuple(one for one in windows if _flat(*own, one, recording))
        if windows:
            found[int(columns[place])] = windows
    return found


def _flat(power: Array, traffic: Array, spin: Mask, window: Window, recording: Recording) -> bool:
    """Whether a GPU's power is flat and low in a window, and no data comes in.

    An evaluation may be as flat, and draw less than the training, but it reads batches.
    """
    inside = (recording.times > window[0]) & (recording.times < window[1])
    # The first and last bin may hold some work.
    within = np.flatnonzero(inside)[1:-1]
    drawn = power[within][np.isfinite(power[within])]
    if not len(drawn):
        return False
    low, high = np.percentile(drawn, [5, 95])
    flat = high - low < LIMITS.spin_swing and np.median(drawn) < LIMITS.busy_power
    received = traffic[within][np.isfinite(traffic[within])]
    usual = traffic[~spin & np.isfinite(traffic)]
    if not (len(received) and len(usual)):
        return bool(flat)
    return bool(flat and np.median(received) <= LIMITS.spin_traffic * np.percentile(usual, 75))


def _stepless(recording: Recording) -> Mask | None:
    """(bins,) whether no step ends for so long that training cannot go on; None without steps."""
    seconds = recording.steps.seconds
    known = seconds[np.isfinite(seconds)]
    if not len(known):
        return None
    least = max(LIMITS.spin_least, LIMITS.pause_times * float(np.median(known)))
    mask = np.zeros(recording.bins, bool)
    for begin, end in _without_steps(recording, least, trailing=True):
        mask |= (recording.times >= begin) & (recording.times <= end)
    return mask


def _without_steps(recording: Recording, least: float, trailing: bool = False) -> list[Window]:
    """Times between two steps of a life, or from its last one to its end, of at least `least`.

    What follows the last step of a finished training is not meant (an export, a test), unless
    `trailing`; neither is a life's time up to its first step.
    """
    times = recording.steps.time
    found: list[Window] = []
    for life in billing.lives(recording):
        end = billing.end_of(life, recording)
        own = np.sort(times[(times >= life.begin) & (times <= end)])
        if not len(own):
            continue
        if trailing or recording.steps.final is None:
            own = np.append(own, end)
        long = np.flatnonzero(np.diff(own) >= least).tolist()
        found += [(float(own[at]), float(own[at + 1])) for at in long]
    return found


def _others(recording: Recording, columns: tuple[int, ...], inside: Mask) -> str:
    """Billed GPUs that had little to do meanwhile, where they are fewer than those that waited."""
    billed = np.flatnonzero(billing.billed(recording))
    rest = np.array([column for column in billed.tolist() if column not in columns], np.int64)
    if not len(rest) or len(rest) >= len(columns) or not inside.any():
        return ""
    use = recording.gpu["util"].mean[inside][:, rest]
    idle = rest[np.nan_to_num(use, nan=100).mean(axis=0) < LIMITS.low_util]
    return words.gpus(recording, idle.tolist()) if len(idle) else ""
