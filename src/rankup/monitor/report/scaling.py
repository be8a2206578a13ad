"""Several runs of the same work on more and more GPUs: what the added ones gave and cost.

Speed-up and efficiency are strong scaling's (Amdahl): speed relative to the run on the fewest GPUs,
and that over the ratio of GPUs. Where more GPUs stop paying is told by what each *added* GPU gave,
as a share of what one of the first ones gives; the mean efficiency hides that for long.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...base.errors import UserError
from ...base.text import columns
from .. import billing, words
from ..recording import Recording

# Of what a GPU of the first run gives. Ours: below it the added ones cost more than twice as much
# for the same work.
PAYS = 0.5
FEWEST_STEPS = 10
SAME = 0.02  # relative: a global batch or a number of steps that differs by less is the same

# Options of `rankup run` that say where and how long, not what.
_PLACEMENT = {
    "--nodes",
    "-N",
    "--nproc",
    "--gpus",
    "--time",
    "-t",
    "--partition",
    "-p",
    "--account",
    "-A",
    "--name",
    "--out",
    "--runs",
    "--micro-batch",
}


@dataclass(frozen=True)
class Point:
    """A run in a series.

    Attributes:
        count: GPUs billed, or ranks where a run has no GPUs.
        speed: in the unit of the series; None where the run tells none.
        speed_up, efficiency: against the first run, and against ideal; None without a speed.
        marginal: what each GPU added since the next smaller run gave, as a share of what a GPU of
            the first run gives; None for the first.
        seconds: that the run was running, all attempts together.
        cost: billed, in `unit`.
        per_work: billed for as much work as the first run did in an hour.
        batch: units of one step, all ranks together; steps: last step; loss: of the last steps.
    """

    run: str
    name: str
    count: int
    nodes: int
    speed: float | None
    seconds: float
    cost: float
    unit: str
    batch: float | None
    steps: int
    loss: float | None
    speed_up: float | None = None
    efficiency: float | None = None
    marginal: float | None = None
    per_work: float | None = None


@dataclass(frozen=True)
class Scaling:
    """A series of runs, on the fewest GPUs first.

    Attributes:
        thing: "GPU" or "rank".
        speed_unit: of all speeds ("tokens/s", "steps/s", "runs/h"); empty where there is none.
        measured: how the speed was measured, in words.
        pays_up_to: GPUs up to which every added one pays; None where it cannot be told.
        headline, sentences: what to take away.
        warnings: why the runs may not be comparable.
    """

    points: tuple[Point, ...]
    thing: str
    speed_unit: str
    measured: str
    pays_up_to: int | None
    headline: str
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]


def scaling(recordings: Sequence[Recording], counts: Sequence[int] | None = None) -> Scaling:
    """Compare runs of the same work.

    Args:
        counts: GPUs that each run used, or ranks; by default those that it was billed for.

    Raises:
        UserError: there are fewer than two.
    """
    if len(recordings) < 2:
        raise UserError(
            f"found {len(recordings)} run; a scaling report compares two or more: "
            "name the runs of the series, as in `rankup report RUN1 RUN2 RUN3`"
        )
    on_gpus = all(_gpus(one) for one in recordings)
    thing = "GPU" if on_gpus else "rank"
    found, unit, measured = speeds(recordings)
    used = counts or [_gpus(one) if on_gpus else _ranks(one) for one in recordings]
    points = [
        _point(one, count, speed) for one, count, speed in zip(recordings, used, found, strict=True)
    ]
    points.sort(key=lambda point: (point.count, -(point.speed or 0)))
    related = _related(points)
    warnings = _warnings(recordings, related)
    limit = _pays_up_to(related)
    headline, sentences = _words(related, thing, limit)
    return Scaling(related, thing, unit, measured, limit, headline, sentences, warnings)


def scaling_text(found: Scaling) -> str:
    """A table for a terminal of 80 columns, and the sentences."""
    head = (f"{found.thing}s", "nodes", found.speed_unit or "speed", "speed-up", "efficiency")
    lines = [(*head, "time", f"cost {found.points[0].unit}")]
    lines += [
        (
            str(point.count),
            str(point.nodes),
            digits(point.speed),
            digits(point.speed_up),
            percent(point.efficiency),
            words.duration(point.seconds),
            words.amount(point.cost),
        )
        for point in found.points
    ]
    said = [found.headline, *found.sentences, *(f"Careful: {one}" for one in found.warnings)]
    return "\n".join([*columns(lines), "", *said])


def _gpus(recording: Recording) -> int:
    per_node = recording.facts.gpus
    if per_node is not None:
        return per_node * (len(recording.heads) or recording.facts.nodes)
    return int(billing.billed(recording).sum())


def _ranks(recording: Recording) -> int:
    per_node = recording.facts.ranks
    if per_node:
        return per_node * (len(recording.heads) or recording.facts.nodes)
    return len(recording.ranks) or 1


def _point(recording: Recording, count: int, speed: float | None) -> Point:
    paid, steps = billing.bill(recording), recording.steps
    rate, seconds = median(steps.rate), median(steps.seconds)
    loss = steps.loss[np.isfinite(steps.loss)]
    return Point(
        run=recording.facts.run,
        name=recording.facts.name,
        count=count,
        nodes=len(recording.heads) or recording.facts.nodes,
        speed=speed,
        seconds=sum(paid.seconds),
        cost=paid.units,
        unit=paid.unit,
        batch=rate * seconds if rate and seconds else None,
        steps=int(steps.step.max()) if len(steps.step) else 0,
        loss=float(loss[-max(1, len(loss) // 50) :].mean()) if len(loss) else None,
    )


def _related(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points against the first one that tells a speed."""
    first = next((one for one in points if one.speed), None)
    if first is None or not first.speed:
        return tuple(points)
    each = first.speed / first.count
    found: list[Point] = []
    for point in points:
        if not point.speed:
            found.append(point)
            continue
        smaller = [one for one in _fastest(found) if one.count < point.count]
        before = max(smaller, key=lambda one: one.count, default=None)
        marginal = None
        if before is not None and before.speed:
            added = point.count - before.count
            marginal = (point.speed - before.speed) / added / each
        hourly = point.cost / point.seconds * 3600 if point.seconds else None
        found.append(
            replace(
                point,
                speed_up=point.speed / first.speed,
                efficiency=point.speed / point.count / each,
                marginal=marginal,
                per_work=hourly * first.speed / point.speed if hourly is not None else None,
            )
        )
    return tuple(found)


def _fastest(points: Sequence[Point]) -> list[Point]:
    """The fastest run on each number of GPUs; those without a speed are left out."""
    best: dict[int, Point] = {}
    for point in points:
        known = best.get(point.count)
        if point.speed and (known is None or (known.speed or 0) < point.speed):
            best[point.count] = point
    return list(best.values())


def _pays_up_to(points: Sequence[Point]) -> int | None:
    known = _fastest(points)
    if len(known) < 2:
        return None
    limit = known[0].count
    for point in known[1:]:
        if point.marginal is None or point.marginal < PAYS:
            break
        limit = point.count
    return limit


def _words(points: Sequence[Point], thing: str, limit: int | None) -> tuple[str, tuple[str, ...]]:
    known = _fastest(points)
    if limit is None or not known:
        return f"How these runs scale cannot be told from one number of {thing}s.", ()
    first, last = known[0], known[-1]
    sentences = [
        f"{last.count} {thing}s were {digits(last.speed_up)} times as fast as {first.count}, "
        f"{percent(last.efficiency)} of ideal."
    ]
    poor = next((one for one in known if one.count > limit), None)
    if poor is not None:
        gave = "nothing" if (poor.marginal or 0) <= 0 else percent(poor.marginal)
        which = "the first" if first.count == 1 else f"one of the first {first.count}"
        sentences.append(
            f"Each {thing} added from {limit} to {poor.count} gave {gave} of what {which} gives."
        )
        headline = f"More than {words.plural(limit, thing)} did not pay."
    else:
        headline = f"Every {thing} paid, up to {last.count}."
    if first.per_work and last.per_work:
        sentences.append(
            f"The same work cost {last.per_work / first.per_work:.2g} times as much on "
            f"{last.count} {thing}s as on {first.count}."
        )
    return headline, tuple(sentences)


def _warnings(recordings: Sequence[Recording], points: Sequence[Point]) -> tuple[str, ...]:
    found = []
    targets = sorted({_work(one.facts.command) for one in recordings})
    if len(targets) > 1:
        shown = "; ".join(words.shown(one) for one in targets[:3])
        found.append(f"the runs did not start the same thing: {shown}.")
    batches = [point.batch for point in points if point.batch]
    if batches and max(batches) > min(batches) * (1 + SAME):
        listed = ", ".join(
            f"{point.batch:,.0f} on {point.count}" for point in points if point.batch
        )
        found.append(
            f"the global batch differs ({listed}): speeds compare, the loss over steps does not. "
            "Keep it fixed for the same run, only faster."
        )
    steps = [point.steps for point in points if point.steps]
    if steps and max(steps) > min(steps) * (1 + SAME):
        found.append(
            f"the runs went on for {min(steps):,} to {max(steps):,} steps: times and costs of "
            "whole runs do not compare, speeds do."
        )
    if len({point.unit for point in points}) > 1:
        found.append("the runs are billed in different units.")
    slow = [point for point in points if not point.speed]
    if slow:
        names = ", ".join(words.shown(point.run) for point in slow)
        found.append(f"no speed is known of {names}.")
    return tuple(found)


def _work(command: str) -> str:
    """A command without what says where it runs and for how long."""
    try:
        pieces = shlex.split(command)
    except ValueError:
        return command
    kept, skip = [], False
    for piece in pieces:
        if skip:
            skip = False
        elif piece in _PLACEMENT:
            skip = True
        elif piece.split("=")[0] not in _PLACEMENT:
            kept.append(piece)
    return shlex.join(kept)


def digits(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def speeds(recordings: Sequence[Recording]) -> tuple[list[float | None], str, str]:
    """Speed of each run, its unit, and how it was measured: the best way that two runs allow."""
    units = {one.steps.unit or "units" for one in recordings if len(one.steps.step)}
    ways: list[tuple[Callable[[Recording], float | None], str, str]] = []
    if len(units) == 1:
        unit = f"{words.shown(units.pop())}/s"
        ways.append((_rate, unit, "median over the steps of the units per second of all ranks"))
    ways.append((_steps_rate, "steps/s", "median over the steps; a step is taken to be as much"))
    ways.append((_run_rate, "runs/h", "time of the whole run; start-up counts too"))
    for measure, unit, how in ways:
        found = [measure(one) for one in recordings]
        if sum(speed is not None for speed in found) >= 2:
            return found, unit, how
    return [None] * len(recordings), "", "no two runs tell how fast they were"


def _rate(recording: Recording) -> float | None:
    return median(recording.steps.rate)


def _steps_rate(recording: Recording) -> float | None:
    seconds = median(recording.steps.seconds)
    return 1 / seconds if seconds else None


def _run_rate(recording: Recording) -> float | None:
    attempts = billing.attempts(recording)
    seconds = sum(billing.length(attempt, recording) for attempt in attempts)
    return 3600 / seconds if seconds and attempts[-1].state == "COMPLETED" else None


def median(values: NDArray[np.float64]) -> float | None:
    """Of the steps after warm-up; None where there are too few."""
    there = values[np.isfinite(values)]
    if len(there) < FEWEST_STEPS:
        return None
    # The first tenth is warm-up: compilation, caches, the first batches.
    return float(np.median(there[len(there) // 10 :])) or None
