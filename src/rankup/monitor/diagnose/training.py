"""Training that waits for its data, its checkpoints or a rank that does not come; and its loss.

GPUs that spin in a collective, which somebody does not join, say 100 % use, since NCCL's kernel
runs, and draw little power, since it only polls. Where the training says its steps, none of them
may end meanwhile: training that is slow is not a hang. Where it says none, the power must be flat
and very low, and no data may come in over PCIe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...base import amounts
from .. import billing, words
from ..recording import Array, Recording, weighted
from ..thresholds import LIMITS
from .common import (
    Diagnosis,
    Look,
    Mask,
    Pause,
    Values,
    Window,
    lasts,
    longest,
    merged,
    percentile,
    places,
)


@dataclass(frozen=True)
class _Feeding:
    """How ranks get their data: means over judged time, NaN where not known.

    Attributes:
        workers: data workers of a rank.
        busy: % of a core of each worker.
        read: bytes/s that network file systems give a node; operations: per second.
    """

    workers: float
    busy: float
    read: float
    operations: float

    @property
    def from_files(self) -> bool:
        """Whether the workers themselves wait, and there are network file systems to wait for."""
        active = self.read > 0 or self.operations > 0
        return active and self.workers >= 1 and self.busy < LIMITS.workers_idle


def starved(look: Look) -> Iterator[Diagnosis]:
    """RK704: ranks wait for batches (`data_wait`), or use swings while the workers are at it."""
    feeding = _feeding(look)
    wait = data_wait(look)
    if wait >= LIMITS.data_wait:
        seen = f"ranks waited for data {words.percent(wait)} of the time"
        yield _starved(look.recording, seen, wait, feeding, ())
    elif math.isnan(wait) and (feeding.busy >= LIMITS.workers_busy or feeding.from_files):
        columns, seen = _saw(look)
        if columns:
            yield _starved(look.recording, seen, 1.0, feeding, columns)


def data_wait(look: Look) -> float:
    """Share of the time of judged steps that ranks waited for data; NaN where no step says it."""
    recording, steps = look.recording, look.recording.steps
    if not recording.bins:
        return math.nan
    place = (steps.time - recording.begin - steps.seconds / 2) / recording.width
    place = np.clip(np.nan_to_num(place), 0, recording.bins - 1).astype(np.int64)
    known = np.isfinite(steps.data_wait) & (steps.seconds > 0) & look.judged[place]
    if not known.any():
        return math.nan
    seconds = steps.seconds[known]
    if float(seconds.sum()) < LIMITS.judged_least:
        return math.nan
    return float((steps.data_wait[known] * seconds).sum() / seconds.sum())


def _starved(
    recording: Recording, seen: str, share: float, feeding: _Feeding, columns: tuple[int, ...]
) -> Diagnosis:
    workers = feeding.workers
    if workers >= 1 and feeding.busy >= LIMITS.workers_busy:
        seen += (
            f", and the {workers:.0f} workers of a rank were busy ({feeding.busy:.0f} % of a core "
            "each)"
        )
    elif workers < 0.5:
        seen += ", which loads it by itself: no DataLoader workers were seen"
    elif feeding.from_files:
        seen += (
            f", and the {workers:.0f} workers of a rank waited too ({feeding.busy:.0f} % of a core "
            f"each) for files that come at {amounts.size(feeding.read)}/s per node"
        )
    cores = _cores_left(recording, workers)
    if feeding.from_files:  # more workers would only make the queue longer
        todo = (
            "`rankup pack` makes a few large files of many small ones; `rankup run --stage DATA …` "
            "copies them into the node's memory first"
        )
    elif workers >= 1 and cores <= workers:
        todo = (
            f"the {workers:.0f} workers already have all cores: make a sample cheaper to decode "
            "(smaller images, `rankup pack`), or decode on the GPU (docs/dali.md)"
        )
    else:
        asked = int(min(max(4, 2 * round(workers)), cores)) if workers >= 0 else 4
        todo = (
            f"`DataLoader(num_workers={asked}, pin_memory=True, persistent_workers=True, …)`; "
            "`rankup bench-data` says how fast the data can be fed"
        )
    return Diagnosis("RK704", "warning", "data", seen, todo, gpus=columns, share=share)


def _cores_left(recording: Recording, workers: float) -> float:
    """Usable cores per rank, but the rank's own; infinite where not known."""
    heads = recording.heads
    ranks = max(1.0, len(recording.ranks) / max(1, len(heads)))
    usable = min((len(head.usable) for head in heads if head.usable), default=0)
    return max(1.0, usable // ranks - 1) if usable else math.inf


def _saw(look: Look) -> tuple[tuple[int, ...], str]:
    """GPUs whose use swings between much and nothing, and what was seen of it."""
    if not len(look.recording.gpus) or not lasts(look.seconds):
        return (), ""
    util, use = look.recording.gpu["util"], look.use
    swing = percentile(util.high, look.seconds, 90) - percentile(util.low, look.seconds, 10)
    which = look.used & (use >= LIMITS.saw_low) & (use < LIMITS.saw_high)
    which &= swing >= LIMITS.saw_swing
    columns = places(which)
    if not columns:
        return (), ""
    return columns, (
        f"the use of {words.gpus(look.recording, columns)} swings by "
        f"{np.nanmean(swing[which]):.0f} points around {np.nanmean(use[which]):.0f} %"
    )


def _feeding(look: Look) -> _Feeding:
    recording = look.recording
    times = look.judged[:, None] & (recording.covered > 0)
    of_ranks = times[:, recording.rank_node].astype(np.float32)
    workers = recording.rank["workers"].mean
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.where(workers >= 0.5, recording.rank["workers_cpu"].mean / workers, np.nan)
    return _Feeding(
        workers=_all(weighted(workers, of_ranks)),
        busy=_all(weighted(each, of_ranks)),
        read=_all(weighted(recording.host["fs_read"].mean, look.node_seconds)),
        operations=_all(weighted(recording.host["fs_operations"].mean, look.node_seconds)),
    )


def _all(values: Values) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def checkpoint_stalls(look: Look) -> Iterator[Diagnosis]:
    """RK715: a good part of the time, steps waited until a checkpoint was written."""
    windows = merged((p.begin, p.end) for p in look.pauses if p.why == "checkpoint")
    stalled = sum(end - begin for begin, end in windows)
    time = look.ran
    if not time or stalled < LIMITS.checkpoint_least or stalled / time < LIMITS.checkpoint_share:
        return
    yield Diagnosis(
        "RK715",
        "warning",
        "checkpoints",
        f"training waited {words.duration(stalled)} for "
        f"{words.plural(len(windows), 'checkpoint')} ({words.percent(stalled / time)} of "
        f"the time, {words.duration(stalled / len(windows))} each)",
        "fewer of them (`--checkpoint-every`), write them beside the training "
        "(`--async-checkpoints`), all ranks together (`rankup.save_sharded_model`)",
        windows=windows,
        share=1.0,
    )


def _try(recording: Recording) -> str:
    """Advice: the options of a recipe, or words that fit any script."""
    if recording.facts.kind == "recipe":
        return "a smaller `--lr`, a longer `--warmup`, a lower `--clip`"
    return "a smaller learning rate, a longer warm-up, clipped gradients"


def not_a_number(look: Look) -> Iterator[Diagnosis]:
    """RK720: steps whose loss is NaN or infinite."""
    recording, steps = look.recording, look.recording.steps
    strange = steps.not_finite
    if not len(strange):
        return
    first = int(strange.min())
    at = np.flatnonzero(steps.step == first)
    windows: tuple[tuple[float, float], ...] = ()
    when = ""
    if len(at):
        begin = float(steps.time[at[0]])
        when = f" ({words.clock(begin)})"
        if recording.end > begin:
            windows = ((begin, recording.end),)
    good = steps.loss[np.isfinite(steps.loss) & (steps.step > int(strange.max()))]
    scope = (
        f"in {words.plural(len(strange), 'step')} from step {first} on"
        if len(good)
        else f"from step {first} on{when}, to the end"
    )
    yield Diagnosis(
        "RK720",
        "warning" if len(good) else "error",
        "loss",
        f"the loss is not a number {scope}",
        f"{_try(recording)}; with float16 a `GradScaler`, or bf16; the checkpoints before are "
        "sound",
        windows=windows,
    )


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
    """RK727: a step took many times what its neighbours take, and nobody says what for."""
    recording, usual = look.recording, _usual(look.recording)
    if usual is None:
        return
    least = max(LIMITS.stall_least, LIMITS.stall_times * usual)
    stalls = [p for p in look.pauses if p.why == "stall" and p.end - p.begin >= least]
    if not stalls:
        return
    worst = max(stalls, key=lambda pause: pause.end - pause.begin)
    took, steps = worst.end - worst.begin, recording.steps
    number = int(steps.step[np.argmin(np.abs(steps.time - worst.end))])
    lost = sum(pause.end - pause.begin for pause in stalls)
    more = f"; {len(stalls)} such steps, {words.duration(lost)} in all" if len(stalls) > 1 else ""
    yield Diagnosis(
        "RK727",
        "warning",
        "steps",
        f"step {number:,} took {words.duration(took)}, {words.window(worst.begin, worst.end)}, "
        f"where others take {usual:.2g} s{_who_waited(look, worst)}{more}",
        f"`rankup logs {words.argument(recording.facts)}` has what was printed then; look for "
        "files that come late, and for what one rank does by itself: an evaluation, a download",
        windows=merged((pause.begin, pause.end) for pause in stalls),
        share=1.0,
    )


def _who_waited(look: Look, pause: Pause) -> str:
    """Say which GPUs spun in a collective during a pause, and which were fewer and did not."""
    recording = look.recording
    inside = (recording.times > pause.begin) & (recording.times < pause.end)
    if not inside.any() or not look.billed.any():
        return ""
    with np.errstate(invalid="ignore"):
        use = np.nanmean(recording.gpu["util"].mean[inside], axis=0)
        power = np.nanmean(look.power_share[inside], axis=0)
        waited = look.billed & (use >= LIMITS.spin_util) & (power < LIMITS.spin_power)
    late = look.billed & ~waited & np.isfinite(use)
    if not waited.any() or not late.any() or late.sum() >= waited.sum():
        return ""
    names = [words.gpus(recording, places(which)) for which in (waited, late)]
    return f": {names[0]} waited in a collective for {names[1]}"


def _usual(recording: Recording) -> float | None:
    """Median seconds of a step; None where no step says it."""
    seconds = recording.steps.seconds
    known = seconds[np.isfinite(seconds)]
    return float(np.median(known)) if len(known) else None


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
    flat = high - low < LIMITS.spin_swing and np.median(drawn) < LIMITS.spin_flat
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
    for begin, end in _without_steps(look, least):
        mask |= (times >= begin) & (times <= end)
    return mask


def _without_steps(look: Look, least: float) -> list[Window]:
    """Times between two steps of an attempt, or from its last one to its end, of at least `least`.

    An attempt's time up to its first step is not meant.
    """
    times = look.recording.steps.time
    found: list[Window] = []
    for attempt in look.attempts:
        end = billing.end_of(attempt, look.recording)
        own = np.sort(times[(times >= attempt.begin) & (times <= end)])
        if len(own):
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
