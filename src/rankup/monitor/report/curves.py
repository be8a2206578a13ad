"""Figures that are of no channel: what the training said of its steps, each core, the timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..recording import Array, Recording, buckets, highest, lowest, mean
from .figures import (
    EDGES,
    POINTS,
    TIME,
    WHEN,
    Figure,
    Trace,
    box,
    heat_pixels,
    label,
    layout_of,
    line_of,
    milliseconds,
    names_of,
    row_of,
    row_ticks,
)

EXTRAS = 12  # plots of what a script logged itself
EVENTS = 2000  # of a kind
_LANES = {
    "checkpoint": "--one",
    "validation": "--two",
    "resume": "--three",
    "note": "--five",
    "end": "--muted",
}
_STATES = {"COMPLETED": "--three", "RUNNING": "--one", "UNKNOWN": "--muted"}
_CURVE = 134  # pixels


@dataclass(frozen=True)
class Points:
    """A value over the steps of a run, in buckets; NaN between attempts.

    Attributes:
        time: unix seconds of the last step of each bucket; step: its number.
    """

    time: NDArray[np.float64]
    step: NDArray[np.float64]
    low: Array
    mean: Array
    high: Array


def points(recording: Recording, values: NDArray[np.float64], sparse: bool = False) -> Points:
    """Reduce a value of each step to what a plot shows.

    Args:
        sparse: said after some steps only, as by validations: the line goes from one to the next.
    """
    steps = recording.steps
    if sparse:
        said = np.isfinite(values)
        steps, values = replace(steps, time=steps.time[said], step=steps.step[said]), values[said]
    begins = np.array([attempt.begin for attempt in recording.facts.attempts])
    attempts = np.searchsorted(begins, steps.time, side="right")
    order = np.argsort(attempts, kind="stable")
    starts = buckets(attempts[order], POINTS)
    last = order[np.append(starts[1:], len(order)) - 1]
    pieces = np.split(values.astype(np.float32)[order], starts[1:])
    # A point without a value between two attempts: the line must not bridge what was not trained.
    breaks = np.flatnonzero(np.diff(attempts[last])) + 1
    low, middle, high = (
        np.insert(np.array([reduce(piece) for piece in pieces], np.float32), breaks, np.nan)
        for reduce in (lowest, mean, highest)
    )
    when = np.insert(steps.time[last], breaks, steps.time[last][breaks])
    return Points(
        when, np.insert(steps.step[last].astype(float), breaks, np.nan), low, middle, high
    )


def curves(recording: Recording) -> tuple[Figure, ...]:
    """All that the training said of its steps; empty where it said nothing."""
    steps = recording.steps
    if not len(steps.step):
        return ()
    logged = "Logged by the script."
    shown = [
        ("loss", "Loss", "", steps.loss, ""),
        ("rate", "Throughput", f"{steps.unit or 'units'}/s", steps.rate, "All ranks together."),
        ("step-time", "Time of a step", "s", steps.seconds, ""),
        (
            "data-wait",
            "Waiting for data",
            "%",
            steps.data_wait * 100,
            "Share of each step, mean over the ranks.",
        ),
        ("mfu", "Model FLOPs utilisation", "%", steps.mfu * 100, ""),
    ]
    extras = list(steps.extra.items())[:EXTRAS]
    shown += [(f"extra-{n}", name, "", values, logged) for n, (name, values) in enumerate(extras)]
    return tuple(_curve(recording, *one) for one in shown if np.isfinite(one[3]).any())


def left_out(recording: Recording) -> list[str]:
    """Names of logged values for which there is no plot."""
    return list(recording.steps.extra)[EXTRAS:]


def _curve(
    recording: Recording, id: str, title: str, unit: str, values: NDArray[np.float64], note: str
) -> Figure:
    found = points(recording, values, id.startswith("extra"))
    trace = line_of(found.low, found.mean, found.high, title, unit)
    trace |= {"x": milliseconds(recording, found.time), "step": found.step}
    trace["hovertemplate"] = trace["hovertemplate"].replace(
        WHEN, "<br>step %{customdata[2]:,d}" + WHEN
    )
    layout = layout_of(recording, _CURVE)
    layout["shapes"] = []  # steps need no samples
    # A rate or a share is read against zero, a loss against itself.
    layout["yaxis"]["rangemode"] = "tozero" if unit else "normal"
    data = [trace]
    marks = _validations(recording) if id == "loss" else np.zeros((0, 2))
    if len(marks):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": milliseconds(recording, marks[:EVENTS, 0]),
                "y": marks[:EVENTS, 1],
                "name": "validation",
                "marker": {"size": 6, "symbol": "diamond", "color": "--two"},
                "hovertemplate": "<b>validation</b><br>%{y:.4~g}" + WHEN,
            }
        )
    seen = found.mean[np.isfinite(found.mean)]
    ends = {"lowest": float(lowest(found.low)), "highest": float(highest(found.high))}
    numbers = {"first": float(seen[0]), "last": float(seen[-1]), **ends}
    more = id.startswith("extra")
    return Figure(id, title, unit, data, layout, {"": numbers}, note, more)


def _validations(recording: Recording) -> NDArray[np.float64]:
    """(n, 2) time and loss of each validation; the time is that of its step."""
    steps = recording.steps
    # A step that was taken twice (a resume) counts where it was taken last.
    when = dict(zip(steps.step.tolist(), steps.time.tolist(), strict=True))
    known = [(when[int(step)], loss) for step, loss in steps.valid if int(step) in when]
    return np.array(known, dtype=np.float64).reshape(-1, 2)


def cores(recording: Recording) -> Figure | None:
    """Mean use of each core of each node over the run; nodes may have more cores than others."""
    if not any(np.isfinite(one).any() for one in recording.core_use):
        return None
    most = max(len(one) for one in recording.core_use)
    groups = row_of(recording, "host")
    table = np.full((len(groups), most), np.nan, dtype=np.float32)
    for row, one in zip(table, recording.core_use, strict=True):
        row[: len(one)] = one
    table = np.stack([mean(table[groups == row], axis=0) for row in range(int(groups.max()) + 1)])
    names = names_of(recording, "host", groups)
    pixels = heat_pixels(len(names))
    trace = {
        "type": "heatmap",
        "z": table,
        "y": [label(name, 60) for name in names],
        "zmin": 0.0,
        "zmax": 100.0,
        "colorscale": "Viridis",
        "showscale": False,
        "hovertemplate": "<b>core %{x} of %{y}</b><br>%{z:.4~g} % on average<extra></extra>",
    }
    layout = {
        "height": pixels + EDGES,
        "xaxis": {
            "domain": [0, TIME],
            "range": [-0.5, most - 0.5],
            "dtick": max(1, -(-most // 12)),
            "fixedrange": True,
            "showgrid": False,
            "title": {"text": "core", "font": {"size": 10}, "standoff": 4},
        },
        "yaxis": {**row_ticks(names, pixels), "type": "category"},
        "shapes": [box("x domain", (0, 1), "y domain", "--blank")],
    }
    note = (
        "Mean over the run. Few bright cores beside many dark ones: the ranks were bound to too "
        "few."
    )
    return Figure("cpu-cores", "Each core", "%", [trace], layout, note=note, ceiling=100.0)


def timeline(recording: Recording) -> Figure | None:
    """A lane for the attempts of the run, and one for each kind of event; None without any."""
    # Unix seconds of begin and end, words, colour.
    lanes: dict[str, list[tuple[float, float, str, str]]] = {"run": []}
    for attempt in recording.facts.attempts:
        state = attempt.state.lower() + (f": {attempt.words}" if attempt.words else "")
        end = recording.end if attempt.ended is None else attempt.ended
        lanes["run"].append((attempt.begin, end, state, _STATES.get(attempt.state, "--error")))
    for kind, colour in _LANES.items():
        found = [one for one in recording.events if one.kind == kind]
        lanes[f"{kind}s"] = [(one.time - one.seconds, one.time, one.text, colour) for one in found]
    gaps = [(gap.begin, gap.end, f"{gap.node}: {gap.why}", "--muted") for gap in recording.gaps]
    lanes["no samples"] = gaps
    lanes = {name: bars[:EVENTS] for name, bars in lanes.items() if bars}
    if not lanes:
        return None
    data: list[Trace] = []
    for row, (name, bars) in enumerate(lanes.items()):
        begin, end = (milliseconds(recording, np.array([one[n] for one in bars])) for n in (0, 1))
        shared: Trace = {
            "y": np.full(len(bars), row),
            "name": name,
            "text": [label(one[2], 120) for one in bars],
            "hovertemplate": f"<b>{name}</b><br>%{{text}}",
        }
        colours = [one[3] for one in bars]
        data.append(
            shared
            | {
                "type": "bar",
                "orientation": "h",
                "base": begin,
                "x": end - begin,
                "width": 0.56,
                "textposition": "none",
                "marker": {"color": colours},
                "hovertemplate": shared["hovertemplate"]
                + "<br>%{base|%-d %b %H:%M:%S}<extra></extra>",
            }
        )
        if name != "run":  # or a checkpoint of 3 s would not be seen in a day
            marker = {"size": 6, "symbol": "diamond", "color": colours}
            more = {"type": "scatter", "mode": "markers", "x": begin, "marker": marker}
            data.append(shared | more | {"hovertemplate": shared["hovertemplate"] + WHEN})
    pixels = max(40, 26 * len(lanes))
    layout = layout_of(recording, pixels)
    layout |= {"yaxis": row_ticks(list(lanes), pixels), "shapes": [], "barmode": "overlay"}
    return Figure("timeline", "Timeline", "", data, layout)
