"""The page of a series of runs: what scaled, what it cost, and where to stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...base.text import clean
from .. import words
from ..cost import Cost
from ..diagnose import Diagnosis
from ..recording import Recording
from ..verdict import Verdict
from .job import Table, number, stamp
from .progress import curves
from .scaling import PAYS, Point, Scaling
from .shell import render

SCRIPTS = ("words.js", "figures.js", "scaling.js")

Run = tuple[Recording, Sequence[Diagnosis], Cost, Verdict]


def page(found: Scaling, runs: Sequence[Run]) -> str:
    """One file, like the page of a single run."""
    plots = [*_speed(found), *_loss(found, [recording for recording, *_ in runs]), *_cost(found)]
    level = "ok"
    if found.warnings or found.pays_up_to is None or found.pays_up_to < found.points[-1].count:
        level = "warning"
    return render(
        "scaling.html.j2",
        SCRIPTS,
        {"plots": plots},
        "",
        title=f"{found.points[0].name}: scaling, rankup report",
        found=found,
        level=level,
        level_word={"ok": "Good", "warning": "Warning"}[level],
        table=_table(found),
        runs=_runs(found, runs),
        plots=plots,
        pays=PAYS,
        made=stamp(time.time()),
    )


def _table(found: Scaling) -> Table:
    def percent(share: float | None) -> str:
        return f"{share:.0%}" if share is not None else ""

    def digits(value: float | None) -> str:
        return number(value) if value is not None else ""

    head = (
        f"{found.thing}s",
        "Nodes",
        f"Speed ({found.speed_unit})" if found.speed_unit else "Speed",
        "Speed-up",
        "Efficiency",
        f"Each added {found.thing} gave",
        "Ran for",
        f"Billed ({found.points[0].unit})",
        "Loss at the end",
    )
    rows = tuple(
        (
            str(point.count),
            str(point.nodes),
            digits(point.speed),
            digits(point.speed_up),
            percent(point.efficiency),
            percent(point.marginal),
            words.duration(point.seconds),
            words.amount(point.cost),
            digits(point.loss),
        )
        for point in found.points
    )
    return Table("The runs, on the fewest first", head, rows, named=0)


def _runs(found: Scaling, runs: Sequence[Run]) -> Table:
    by_run = {recording.facts.run: (cost, verdict) for recording, _, cost, verdict in runs}
    rows = []
    for point in found.points:
        cost, verdict = by_run[point.run]
        work = f"{cost.efficiency:.0%}" if cost.efficiency is not None else ""
        rows.append((point.run, str(point.count), work, verdict.headline))
    return Table(
        "Each run by itself",
        ("Run", f"{found.thing}s", "Of the bill that did work", "Verdict"),
        tuple(rows),
        named=4,
    )


def _line(name: str, x: Sequence[float], y: Sequence[float | None], **style: Any) -> dict[str, Any]:
    return {"name": name, "x": list(x), "y": list(y), **style}


def _speed(found: Scaling) -> list[dict[str, Any]]:
    known = [point for point in found.points if point.speed_up is not None]
    if not known:
        return []
    counts = [float(point.count) for point in known]
    ideal = [count / counts[0] for count in counts]
    things = f"{found.thing}s"
    return [
        _plot(
            *("speed-up", "Speed-up", things, f"times the speed on {known[0].count}"),
            _line("ideal", counts, ideal, dash="dot", quiet=True),
            _line("measured", counts, [point.speed_up for point in known], points=True),
            log=True,
        ),
        _plot(
            *("efficiency", "Efficiency", things, "% of ideal"),
            _line("ideal", counts, [100.0] * len(counts), dash="dot", quiet=True),
            _line("all", counts, [_hundred(point.efficiency) for point in known], points=True),
            _line("added", counts, [_hundred(one.marginal) for one in known], points=True),
            zero=True,
            log_x=True,
            note=f"“All” is the mean over all {things}, “added” what each one more gave; below "
            f"{PAYS:.0%} more do not pay.",
        ),
    ]


def _cost(found: Scaling) -> list[dict[str, Any]]:
    known: list[Point] = [point for point in found.points if point.per_work is not None]
    if not known:
        return []
    first = known[0]
    return [
        _plot(
            *("cost", "Cost of the same work", f"{found.thing}s", first.unit),
            _line(
                "cost", [float(p.count) for p in known], [p.per_work for p in known], points=True
            ),
            zero=True,
            log_x=True,
            note=f"What was billed for as much as {first.count} did in an hour.",
        )
    ]


def _loss(found: Scaling, recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    by_run = {recording.facts.run: recording for recording in recordings}
    over_steps, over_time = [], []
    for point in found.points:
        recording = by_run[point.run]
        loss = next((one for one in curves(recording) if one.id == "loss"), None)
        if loss is None:
            continue
        begin = recording.facts.lives[0].begin if recording.facts.lives else recording.begin
        name = words.plural(point.count, found.thing)
        over_steps.append(_line(name, loss.step.tolist(), loss.mean.tolist()))
        over_time.append(_line(name, ((loss.time - begin) / 60).tolist(), loss.mean.tolist()))
    if not over_steps:
        return []
    return [
        _plot("loss-steps", "Loss over steps", "step", "", *over_steps),
        _plot("loss-time", "Loss over time", "minutes after the start", "", *over_time),
    ]


def _plot(
    name: str, title: str, x: str, y: str, *series: dict[str, Any], **more: Any
) -> dict[str, Any]:
    shown = [{**one, "name": clean(one["name"])} for one in series]
    return {"id": name, "title": title, "x": x, "y": clean(y), "series": shown, **more}


def _hundred(share: float | None) -> float | None:
    return None if share is None else share * 100
