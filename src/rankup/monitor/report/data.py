"""What the page's plots are drawn from: a JSON document and one text of packed arrays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.text import clean
from ..recording import Array, Recording
from .pack import Packer, Reference, rough_size
from .plots import Drawn, Plot, rows
from .progress import Curve
from .reduce import coarse, mean

# Characters for all data: what 6 MB leave beside Plotly (4.82 MB), scripts and tables.
ROOM = 880_000
EXACT_CELLS = 200_000  # up to so many in all, heat maps hold 65 000 levels instead of 100
COLUMNS = 1200
EVENTS = 2000


@dataclass(frozen=True)
class Mark:
    """A finding's place in the plots.

    Attributes:
        windows: (begin, end) in seconds since the recording's begin.
        gpus, nodes: rows.
    """

    windows: tuple[tuple[float, float], ...]
    gpus: tuple[int, ...]
    nodes: tuple[int, ...]


def payload(
    recording: Recording,
    drawn: Sequence[Drawn],
    curves: Sequence[Curve],
    marks: Sequence[Mark],
    offset: float,
) -> tuple[dict[str, Any], str]:
    """The document and the packed arrays.

    Args:
        offset: seconds that the local time of the run is ahead of UTC.
    """
    packer = Packer()
    drawn_plots = [plot for section in drawn for plot in section.plots]
    plots = [_plot(recording, plot, packer) for plot in drawn_plots]
    document = {
        "begin": recording.begin,
        "end": max(recording.end, recording.begin + recording.width * recording.bins),
        "width": recording.width,
        "offset": offset,
        "nodes": [clean(node) for node in recording.nodes],
        "gpus": [gpu.index for gpu in recording.gpus],
        "ranks": recording.ranks.tolist(),
        "nodeOf": {
            "gpu": recording.gpu_node.tolist(),
            "host": list(range(len(recording.heads))),
            "rank": recording.rank_node.tolist(),
        },
        "blank": _blank(recording),
        "marks": [vars(mark) for mark in marks],
        "steps": _steps(recording, curves, packer),
        "plots": [
            *plots,
            *(_curve(recording, curve, packer) for curve in curves),
            *_cores(recording, packer),
            _timeline(recording),
        ],
    }
    averages = {plot.channel.id: packer.fine(plot.average) for plot in drawn_plots}
    room = ROOM - len(packer.text()) - len(embedded(document))
    for plot, entry, heat in zip(
        drawn_plots, plots, _heat_maps(recording, drawn_plots, room), strict=True
    ):
        if heat is not None:
            entry["heat"] = {
                "cells": _cells(plot, heat, packer),
                "rows": len(plot.average),
                "ceiling": plot.rows_ceiling,
                "width": recording.width * heat.fold,
                "average": averages[plot.channel.id],
            }
    return document, packer.text()


def embedded(document: Any) -> str:
    """JSON that is safe inside a script element, whatever its texts hold."""
    text = json.dumps(_plain(document), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # All else that HTML or JavaScript could take for its own is ASCII-escaped already.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(value: Any) -> Any:
    """The same without NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _plot(recording: Recording, plot: Plot, packer: Packer) -> dict[str, Any]:
    series = [
        {
            "name": one.name,
            "low": packer.fine(one.band.low),
            "mean": packer.fine(one.band.mean),
            "high": packer.fine(one.band.high),
        }
        for one in plot.series
    ]
    return {
        "kind": "rows",
        "id": plot.channel.id,
        "title": plot.channel.title,
        "unit": plot.unit,
        "rows": plot.channel.of,
        "ceiling": plot.ceiling,
        "floor": plot.floor,
        "width": recording.width * plot.fold,
        "series": series,
    }


@dataclass
class _Heat:
    """A heat map on its way into the page.

    Attributes:
        values: (columns, rows); fold: bins of the recording in a column.
        size: characters that it takes; None where it is kept exactly.
    """

    values: Array
    fold: int
    size: int | None = None


def _heat_maps(recording: Recording, plots: Sequence[Plot], room: int) -> list[_Heat | None]:
    """The heat map of each plot, None for a single row; coarse enough for all to find room.

    What is folded up in the page becomes coarse first.
    """
    maps = [_finest(recording, plot) if len(plot.average) > 1 else None for plot in plots]
    found = [(plot, heat) for plot, heat in zip(plots, maps, strict=True) if heat is not None]
    if sum(heat.values.size for _, heat in found) <= EXACT_CELLS:
        return maps
    sizes = {}
    for at, (plot, heat) in enumerate(found):
        sizes[at] = heat.size = _size(plot, heat)
    while sum(sizes.values()) > room:
        able = [at for at in sizes if len(found[at][1].values) > 8]
        if not able:
            break
        worst = max(able, key=lambda at: sizes[at] * _weight(found[at][0]))
        plot, heat = found[worst]
        heat.fold *= 2
        heat.values = coarse(heat.values, 2)
        sizes[worst] = heat.size = _size(plot, heat)
    return maps


def _weight(plot: Plot) -> float:
    """How readily a heat map becomes coarse: what is looked at first stays fine."""
    if plot.channel.more:
        return 2.5
    return 0.3 if plot.channel.of == "gpu" else 1.0


def _finest(recording: Recording, plot: Plot) -> _Heat:
    # No screen shows more cells of one heat map than this either.
    cells = 150_000 if plot.channel.more else 400_000
    columns = max(60, min(COLUMNS, cells // len(plot.average)))
    fold = max(1, -(-recording.bins // columns))
    return _Heat(coarse(rows(recording, plot), fold), fold)


def _size(plot: Plot, heat: _Heat) -> int:
    return rough_size(heat.values.T, plot.floor, plot.rows_ceiling)


def _cells(plot: Plot, heat: _Heat, packer: Packer) -> Reference:
    if heat.size is None:
        return packer.fine(heat.values.T)
    return packer.rough(heat.values.T, plot.floor, plot.rows_ceiling)


def _steps(
    recording: Recording, curves: Sequence[Curve], packer: Packer
) -> dict[str, Reference] | None:
    """Time and number of the points that all curves have."""
    if not curves:
        return None
    time = packer.exact(curves[0].time - recording.begin)
    return {"time": time, "step": packer.exact(curves[0].step)}


def _curve(recording: Recording, curve: Curve, packer: Packer) -> dict[str, Any]:
    return {
        "kind": "curve",
        "id": curve.id,
        "title": clean(curve.title),
        "unit": clean(curve.unit),
        "series": [
            {
                "name": "",
                "low": packer.exact(curve.low),
                "mean": packer.exact(curve.mean),
                "high": packer.exact(curve.high),
            }
        ],
        "marks": [[when - recording.begin, value] for when, value in curve.marks[:EVENTS].tolist()],
        "marksName": curve.marks_name,
    }


def _cores(recording: Recording, packer: Packer) -> list[dict[str, Any]]:
    """Mean use of each core of each node over the run; nodes may have more cores than others."""
    most = max((len(cores) for cores in recording.core_use), default=0)
    if not any(np.isfinite(cores).any() for cores in recording.core_use):
        return []
    table = np.full((len(recording.core_use), most), np.nan, dtype=np.float32)
    for row, cores in zip(table, recording.core_use, strict=True):
        row[: len(cores)] = cores
    return [
        {
            "kind": "cores",
            "id": "cpu-cores",
            "title": "Each core",
            "unit": "%",
            "rows": len(table),
            "columns": most,
            "cells": packer.rough(table, 0, 100),
        }
    ]


def _timeline(recording: Recording) -> dict[str, Any]:
    """Lanes of bars (begin, seconds, words, kind), in seconds since the recording's begin."""
    begin = recording.begin
    lanes: list[dict[str, Any]] = []
    lives = [
        [
            life.begin - begin,
            (life.end if life.end is not None else recording.end) - life.begin,
            clean(f"{life.state.lower()}: {life.words}" if life.words else life.state.lower()),
            life.state if life.state in ("COMPLETED", "RUNNING", "UNKNOWN") else "FAILED",
        ]
        for life in recording.facts.lives
    ]
    if lives:
        lanes.append({"name": "run", "bars": lives})
    titles = {
        "checkpoint": "checkpoints",
        "validation": "validations",
        "resume": "resumes",
        "note": "notes",
        "end": "ends",
    }
    for kind, title in titles.items():
        bars = [
            [event.time - event.seconds - begin, event.seconds, clean(event.text), kind]
            for event in recording.events
            if event.kind == kind
        ]
        if bars:
            lanes.append({"name": title, "bars": bars[:EVENTS]})
    gaps = [
        [gap.begin - begin, gap.end - gap.begin, clean(f"{gap.node}: {gap.why}"), "gap"]
        for gap in recording.gaps
    ]
    if gaps:
        lanes.append({"name": "no samples", "bars": gaps[:EVENTS]})
    return {"kind": "timeline", "id": "timeline", "title": "Steps and events", "lanes": lanes}


def _blank(recording: Recording) -> list[tuple[float, float]]:
    """Stretches in which no node at all was sampled, seconds since the recording's begin."""
    covered: Array = recording.covered
    if not covered.size:
        return [(0.0, recording.bins * recording.width)] if recording.bins else []
    missing = ~(mean(np.asarray(covered > 0, dtype=np.float32), axis=1) > 0)
    edges = np.diff(np.concatenate([[0], missing.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    width = recording.width
    return [(float(a * width), float(b * width)) for a, b in zip(begins, ends, strict=True)]
