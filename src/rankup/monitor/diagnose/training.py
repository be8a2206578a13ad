"""Training that waits for its data or its checkpoints, and what its loss says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...base import amounts
from .. import words
from ..recording import Recording, weighted
from ..thresholds import LIMITS
from .common import Diagnosis, Look, Values, lasts, merged, percentile, places


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
    """RK704: ranks wait for batches (`data_wait`), or use swings while the workers are busy."""
    feeding = _feeding(look)
    wait = data_wait(look)
    if wait >= LIMITS.data_wait:
        if feeding.from_files:
            return
        seen = f"ranks waited for data {words.percent(wait)} of the time"
        yield _starved(look.recording, seen, wait, feeding, ())
    elif math.isnan(wait) and feeding.busy >= LIMITS.workers_busy:
        columns, seen = _saw(look)
        if columns:
            yield _starved(look.recording, seen, 1.0, feeding, columns)


def slow_files(look: Look) -> Iterator[Diagnosis]:
    """RK719: ranks wait for data, and so do their workers: the file system is what is slow."""
    feeding = _feeding(look)
    if not feeding.from_files:
        return
    wait = data_wait(look)
    columns: tuple[int, ...] = ()
    if wait >= LIMITS.data_wait:
        seen, share = f"ranks waited for data {words.percent(wait)} of the time", wait
    elif math.isnan(wait):
        columns, seen = _saw(look)
        share = 1.0
        if not columns:
            return
    else:
        return
    each = feeding.read / feeding.operations if feeding.operations > 0 else math.nan
    small = each < LIMITS.small_read and feeding.operations >= LIMITS.many_operations
    yield Diagnosis(
        "RK719",
        "warning",
        "data",
        f"{seen}, and the {feeding.workers:.0f} workers of a rank waited too "
        f"({feeding.busy:.0f} % of a core each): files come at "
        f"{amounts.size(feeding.read)}/s per node"
        + (f", {amounts.number(feeding.operations)} operations/s" if small else ""),
        "`rankup pack` makes a few large files of many small ones; `rankup run --stage DATA …` "
        "copies them into the node's memory first",
        gpus=columns,
        share=share,
    )


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
    cores = _cores_left(recording, workers)
    if workers >= 1 and cores <= workers:
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


def flat_or_rising(look: Look) -> Iterator[Diagnosis]:
    """RK721: after hundreds of steps from scratch the loss is where it was, or well above its low.

    Means of tenths of the steps, so that one batch decides nothing.
    """
    recording, steps = look.recording, look.recording.steps
    known = np.isfinite(steps.loss)
    loss, number = steps.loss[known], steps.step[known]
    if len(loss) < LIMITS.loss_steps:
        return
    parts = np.array_split(loss, 10)
    means = np.array([part.mean() for part in parts])
    noise = float(np.median([part.std() / np.sqrt(len(part)) for part in parts]))
    lowest, last, first = float(means.min()), float(means[-1]), float(means[0])
    size = max(abs(first), abs(lowest), 1e-12)
    at = int(number[len(loss) // 10 * int(means.argmin())])
    recipe = recording.facts.kind == "recipe"
    best = "; `rankup export --best` takes the checkpoint that validated best" if recipe else ""
    if last - lowest > max(LIMITS.loss_rise * size, 5 * noise):
        yield Diagnosis(
            "RK721",
            "warning",
            "loss",
            f"the loss rises: {lowest:.4g} around step {at}, {last:.4g} at the end",
            f"{_try(recording)}{best}",
        )
    # A fine-tuning that starts near its end may be flat; so may a run that goes on.
    elif number[0] <= 1 and first - last < LIMITS.loss_flat * size and _level(means, noise, size):
        yield Diagnosis(
            "RK721",
            "warning",
            "loss",
            f"the loss does not fall: {first:.4g} over the first tenth of "
            f"{words.plural(len(loss), 'step')}, {last:.4g} over the last",
            "see that the optimizer has the model's parameters and steps, that labels belong "
            f"to their samples, and try another {'`--lr`' if recipe else 'learning rate'}",
        )


def _level(means: Values, noise: float, size: float) -> bool:
    """Return True if no tenth is clearly lower than the first."""
    return bool(means[0] - means.min() < max(LIMITS.loss_flat * size, 3 * noise))
