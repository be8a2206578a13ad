"""The page of a series of runs: what scaled, what it cost, and where to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.findings import Level
from .. import words
from ..billing import Cost
from ..diagnose import Diagnosis, Verdict
from ..recording import Recording
from .curves import points
from .figures import Figure, label
from .html import LEVELS, render
from .job import Table, number
from .scaling import PAYS, Scaling, scaling

Run = tuple[Recording, Sequence[Diagnosis], Cost, Verdict]


def scaling_html(runs: Sequence[Run], counts: Sequence[int] | None = None) -> str:
    """Return the page of a series, one file like that of a single run."""
    recordings = [recording for recording, *_ in runs]
    found = scaling(recordings, counts)
    plots = [*_speed(found), *_loss(found, recordings), *_cost(found)]
    pays = found.pays_up_to is not None and found.pays_up_to >= found.points[-1].count
    level: Level = "ok" if pays and not found.warnings else "warning"
    return render(
        "scaling.html.j2",
        plots,
        {"whole": []},
        title=f"{found.points[0].name}: scaling, rankup report",
        found=found,
        level=level,
        level_word=LEVELS[level],
        table=_table(found),
        runs=_runs(found, runs),
        plots=plots,
        pays=PAYS,
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
    head = ("Run", f"{found.thing}s", "Of the bill that did work", "Verdict")
    return Table("Each run by itself", head, tuple(rows), named=4)


def _speed(found: Scaling) -> list[Figure]:
    known = [point for point in found.points if point.speed_up is not None]
    if not known:
        return []
    counts = [point.count for point in known]
    ideal = {"line": {"dash": "dot", "color": "--muted", "width": 1.2}, "mode": "lines"}
    speed = _figure(
        "speed-up",
        "Speed-up",
        f"{found.thing}s",
        f"times the speed on {counts[0]}",
        [
            _line("ideal", counts, [count / counts[0] for count in counts]) | ideal,
            _line("measured", counts, [point.speed_up for point in known]),
        ],
        counts,
    )
    highest = max(counts[-1] / counts[0], *(point.speed_up or 0 for point in known))
    ticks = [2.0**power for power in range(-2, 14) if 2.0**power <= highest * 1.1]
    names = [f"{tick:g}" for tick in ticks]
    speed.layout["yaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": names}
    del speed.layout["yaxis"]["rangemode"]
    efficiency = _figure(
        "efficiency",
        "Efficiency",
        f"{found.thing}s",
        "% of ideal",
        [
            _line("ideal", counts, [100.0] * len(counts)) | ideal,
            _line("all", counts, [100 * (point.efficiency or 0) for point in known]),
            _line("added", counts[1:], [100 * (point.marginal or 0) for point in known[1:]], 1),
        ],
        counts,
        note=f"“All” is the mean over all {found.thing}s, “added” what each one more gave; below "
        f"{PAYS:.0%} more do not pay.",
    )
    return [speed, efficiency]


def _cost(found: Scaling) -> list[Figure]:
    known = [point for point in found.points if point.per_work is not None]
    if not known:
        return []
    counts = [point.count for point in known]
    line = _line("cost", counts, [point.per_work for point in known])
    note = f"What was billed for as much as {counts[0]} did in an hour."
    title = "Cost of the same work"
    return [_figure("cost", title, f"{found.thing}s", known[0].unit, [line], counts, note)]


def _loss(found: Scaling, recordings: Sequence[Recording]) -> list[Figure]:
    by_run = {recording.facts.run: recording for recording in recordings}
    steps: list[dict[str, Any]] = []
    minutes: list[dict[str, Any]] = []
    for point in found.points:
        recording = by_run[point.run]
        if not np.isfinite(recording.steps.loss).any():
            continue
        loss = points(recording, recording.steps.loss)
        attempts = recording.facts.attempts
        since = (loss.time - (attempts[0].begin if attempts else recording.begin)) / 60
        name, at = words.plural(point.count, found.thing), len(steps)
        steps.append(_line(name, loss.step, loss.mean, at) | {"mode": "lines"})
        minutes.append(_line(name, since, loss.mean, at) | {"mode": "lines"})
    if not steps:
        return []
    return [
        _figure("loss-steps", "Loss over steps", "step", "", steps),
        _figure("loss-time", "Loss over time", "minutes after the start", "", minutes),
    ]


def _line(name: str, x: Any, y: Any, at: int = 0) -> dict[str, Any]:
    colours = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    line = {"width": 1.8, "color": f"--{colours[at % 8]}", "dash": "solid" if at < 8 else "dash"}
    shared = {"type": "scatter", "mode": "lines+markers", "marker": {"size": 8}}
    return {**shared, "name": label(name), "x": x, "y": y, "line": line, "showlegend": True}


def _figure(
    id: str,
    title: str,
    x: str,
    y: str,
    data: list[dict[str, Any]],
    counts: Sequence[int] = (),
    note: str = "",
) -> Figure:
    """A figure with titles at its axes; numbers of GPUs double, so that theirs is logarithmic."""
    layout: dict[str, Any] = {
        "height": 300,
        "margin": {"l": 58, "r": 16, "t": 8, "b": 40},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom"},
        "xaxis": {"title": {"text": label(x, 60), "standoff": 6}},
        "yaxis": {"title": {"text": label(y, 60), "standoff": 6}, "nticks": 8},
    }
    if counts:
        ticks = sorted(set(counts))
        layout["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": list(map(str, ticks))}
        layout["yaxis"]["rangemode"] = "tozero"
    for line in data:
        line["hovertemplate"] = f"%{{y:.4~g}} {label(y)}<br>{label(x)}: %{{x:,}}"
    return Figure(id, title, "", data, layout, note=note)
