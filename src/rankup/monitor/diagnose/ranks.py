"""Ranks that wait for one another: a run that stands still, and work that is divided unevenly.

GPUs that spin in a collective, which somebody does not join, say 100 % use, since NCCL's kernel
runs, and draw little power, since it only polls. Where the training says its steps, none of them
may end meanwhile: training that is slow is not a hang. Where it says none, the power must be flat
and very low, and no data may come in over PCIe.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .. import billing, words
from ..recording import Array, Recording, weighted
from ..thresholds import LIMITS
from .common import Diagnosis, Look, Mask, Values, Window, lasts, longest, merged, places


def spinning(look: Look) -> Iterator[Diagnosis]:
    """RK706: 100 % use at little power for minutes, and no step comes to its end."""
    recording, found = look.recording, _spins(look)
    if not found:
        return
    columns = tuple(found)
    windows = merged(window for each in found.values() for window in each)
    begin, end = longest(windows)
    last = look.until_the_end((begin, end))
    inside = (recording.times >= begin) & (recording.times <= end)
    power = look.power_share[inside][:, columns]
    drawn = float(np.nanmean(power)) if inside.any() else float("nan")
    others = _others(look, columns, inside)
    yield Diagnosis(
        "RK706",
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
        windows=windows,
        gpus=columns,
        share=1.0,
    )


def stalled(look: Look) -> Iterator[Diagnosis]:
    """RK726: no step ended for a long time, hardly anything was computed, and nothing says why."""
    recording, usual = look.recording, _usual(look.recording)
    if usual is None:
        return
    explained = [pause for pause in look.pauses if pause.why in ("checkpoint", "validation")]
    windows = tuple(
        (begin, end)
        for begin, end in _without_steps(look, max(LIMITS.stall_least, LIMITS.stall_times * usual))
        if not any(pause.begin < end and pause.end > begin for pause in explained)
        and _still(look, (begin, end))
    )
    if not windows:
        return
    begin, end = longest(windows)
    yield Diagnosis(
        "RK726",
        "warning",
        "steps",
        f"no step ended for {words.duration(end - begin)}, {words.window(begin, end)}"
        + (", until the end" if look.until_the_end((begin, end)) else "")
        + f"; a step usually takes {words.duration(usual)}",
        f"`rankup logs {words.argument(recording.facts)}` shows what the script said then; "
        "`py-spy dump --pid` on a rank shows where it stands",
        windows=windows,
        share=1.0,
    )


def _usual(recording: Recording) -> float | None:
    """Median seconds of a step; None where no step says it."""
    seconds = recording.steps.seconds
    known = seconds[np.isfinite(seconds)]
    return float(np.median(known)) if len(known) else None


def _still(look: Look, window: Window) -> bool:
    """Return True if little was computed in a window: a test or an export is work without steps."""
    done, times = look.work, look.recording.times
    inside = (times > window[0]) & (times < window[1])
    seconds = done.seconds * inside[:, None]
    known = float(seconds.sum(dtype=np.float64))
    return known > 0 and float(np.nansum(done.share * seconds)) / known < LIMITS.stall_work


def _spins(look: Look) -> dict[int, tuple[Window, ...]]:
    """Windows in which each GPU spins, by column."""
    recording = look.recording
    columns = np.flatnonzero(look.billed)
    if not len(columns) or not recording.bins or recording.facts.gpus == 0:
        return {}
    power = look.power_share[:, columns]
    use = recording.gpu["util"].mean[:, columns]
    traffic = recording.gpu["pcie_rx"].mean[:, columns]
    alive = look.in_attempts.copy()
    stepless = _stepless(look)
    if stepless is not None:
        alive &= stepless
    for pause in look.pauses:
        if pause.why in ("checkpoint", "validation"):
            alive &= ~((recording.times >= pause.begin) & (recording.times <= pause.end))
    spin = (use >= LIMITS.spin_util) & (power < LIMITS.spin_power) & alive[:, None]
    found = {}
    for place in np.flatnonzero(spin.sum(axis=0) * recording.width >= LIMITS.spin_least).tolist():
        windows = look.stretches(spin[:, place], LIMITS.spin_least)
        if stepless is None:
            own = power[:, place], traffic[:, place], spin[:, place]
            windows = tuple(one for one in windows if _flat(*own, one, recording))
        if windows:
            found[int(columns[place])] = windows
    return found


def _flat(power: Array, traffic: Array, spin: Mask, window: Window, recording: Recording) -> bool:
    """Return True if a GPU's power is flat and low in a window, and no data comes in.

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


def _stepless(look: Look) -> Mask | None:
    """(bins,) whether no step ends for so long that training cannot go on; None without steps."""
    usual, times = _usual(look.recording), look.recording.times
    if usual is None:
        return None
    mask = np.zeros(len(times), bool)
    least = max(LIMITS.spin_least, LIMITS.pause_times * usual)
    for begin, end in _without_steps(look, least, trailing=True):
        mask |= (times >= begin) & (times <= end)
    return mask


def _without_steps(look: Look, least: float, trailing: bool = False) -> list[Window]:
    """Times between two steps of an attempt, or from its last one to its end, of at least `least`.

    What follows the last step of a finished training is not meant (an export, a test), unless
    `trailing`; neither is an attempt's time up to its first step.
    """
    steps = look.recording.steps
    times = steps.time
    found: list[Window] = []
    for attempt in look.attempts:
        end = billing.end_of(attempt, look.recording)
        own = np.sort(times[(times >= attempt.begin) & (times <= end)])
        if not len(own):
            continue
        if trailing or steps.final is None:
            own = np.append(own, end)
        long = np.flatnonzero(np.diff(own) >= least).tolist()
        found += [(float(own[at]), float(own[at + 1])) for at in long]
    return found


def _others(look: Look, columns: tuple[int, ...], inside: Mask) -> str:
    """Billed GPUs that had little to do meanwhile, where they are fewer than those that waited."""
    rest = np.array([column for column in places(look.billed) if column not in columns], np.int64)
    if not len(rest) or len(rest) >= len(columns) or not inside.any():
        return ""
    use = look.recording.gpu["util"].mean[inside][:, rest]
    idle = rest[np.nan_to_num(use, nan=100).mean(axis=0) < LIMITS.low_util]
    return words.gpus(look.recording, idle.tolist()) if len(idle) else ""


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
