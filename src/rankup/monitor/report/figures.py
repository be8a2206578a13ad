"""The figures of a run, each built once: traces and layout as Plotly has them, of numpy arrays.

Plotly draws them on the page (`page/page.js`), matplotlib in the PDF (`charts.py`). Time is in
milliseconds of the run's local clock, as Plotly's axes of dates take it. Beside Plotly's own keys
a line may have `low` and `high`, the edges of the band around it. A colour such as "--one" is a
variable of the page's style. Texts from elsewhere are escaped, since Plotly reads HTML in them.
"""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.text import clean
from ..recording import Array, Band, Recording
from .channels import GIB, SECTIONS, Channel, Section
from .reduce import buckets, coarse, highest, lowest, mean, strip

POINTS = 800  # of a line: about what a screen has pixels for
EXTRAS = 12  # plots of what a script logged itself
_EVENTS = 2000  # of a kind
_BY_NODE = 64  # of more GPUs or ranks than this a row is a node
_ROWS = 512
# Columns of a heat map: as many as a screen shows, fewer of many rows, or of what is folded up.
_COLUMNS, _CELLS, _CELLS_MORE = 800, 40_000, 12_000
_STRIP, _CURVE, _BETWEEN, _EDGES = 96, 134, 10, 46  # pixels
_TIME = 0.87  # the part of the width that time has; the rest is for the mean of each row
_WHEN = "<br>%{x|%-d %b %H:%M:%S}<extra></extra>"
_LANES = {
    "checkpoint": "--one",
    "validation": "--two",
    "resume": "--three",
    "note": "--five",
    "end": "--muted",
}
_STATES = {"COMPLETED": "--three", "RUNNING": "--one", "UNKNOWN": "--muted"}

Trace = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A plot with the words around it.

    Attributes:
        id: in the page.
        values: by the name of each line its numbers over the run, by what they are.
        more: of less importance: folded up at first.
        of: what has a row each: "gpu", "host" or "rank"; empty: a figure without rows.
        average: (things,) over the run, both directions together; NaN for one never sampled.
        rows: (bins, things) means, both directions together; peak: (things,) highest of the first.
        ceiling: end of the scale of the colours; groups: (things,) the row of each.
    """

    id: str
    title: str
    unit: str
    data: list[Trace]
    layout: dict[str, Any]
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""
    more: bool = False
    of: str = ""
    average: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    rows: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    peak: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    floor: float = 0.0
    ceiling: float = 1.0


@dataclass(frozen=True)
class Drawn:
    """A section with its figures, and sentences about channels that have none."""

    section: Section
    plots: tuple[Figure, ...]
    said: tuple[str, ...]


def sections(recording: Recording) -> tuple[Drawn, ...]:
    """All sections; a channel that was not recorded or never moved from zero has no figure."""
    return tuple(_section(recording, section) for section in SECTIONS)


def row_names(recording: Recording) -> dict[str, list[str]]:
    """Names of all GPUs, nodes and ranks."""
    nodes = list(recording.nodes)
    ranks = zip(recording.ranks, recording.rank_node, strict=True)
    return {
        "gpu": recording.gpu_names(),
        "host": nodes,
        "rank": [f"rank {int(rank)} on {nodes[int(node)]}" for rank, node in ranks],
    }


def row_of(recording: Recording, of: str) -> NDArray[np.int64]:
    """(things,) the row in which each GPU, node or rank is drawn."""
    every = np.arange(len(recording.heads))
    nodes = {"gpu": recording.gpu_node, "rank": recording.rank_node, "host": every}[of]
    if len(nodes) <= _BY_NODE and of != "host":
        return np.arange(len(nodes))
    return nodes // max(1, -(-len(every) // _ROWS))


def milliseconds(recording: Recording, moment: float | NDArray[np.float64]) -> Any:
    """Unix seconds as an axis of the page has them, on the clock of the run."""
    return (moment + (time.localtime(recording.begin).tm_gmtoff or 0)) * 1000.0


def whole(recording: Recording) -> list[float]:
    """The first and the last moment of the run, on the axis of the page."""
    begins = [recording.begin, *(attempt.begin for attempt in recording.facts.attempts)]
    end = max(recording.end, recording.begin + recording.bins * recording.width, min(begins) + 1)
    return [milliseconds(recording, min(begins)), milliseconds(recording, end)]


def label(text: str, most: int = 20) -> str:
    """Text from elsewhere, which Plotly reads as HTML, cut to some characters."""
    text = clean(text)
    return html.escape(text if len(text) <= most else f"{text[: most - 1]}…", quote=False)


def blank(recording: Recording) -> list[tuple[float, float]]:
    """Stretches in which no node at all was sampled, in unix seconds."""
    begin, width = recording.begin, recording.width
    if not recording.covered.size:
        return [(begin, begin + recording.bins * width)] if recording.bins else []
    missing = ~(recording.covered > 0).any(axis=1)
    edges = np.diff(np.concatenate([[0], missing.astype(np.int8), [0]]))
    pairs = zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)
    return [(float(begin + a * width), float(begin + b * width)) for a, b in pairs]


def _section(recording: Recording, section: Section) -> Drawn:
    plots, quiet, missing = [], [], []
    for channel in section.channels:
        group = {"gpu": recording.gpu, "host": recording.host, "rank": recording.rank}[channel.of]
        bands = [group[name] for name in channel.names if name in group]
        if not all(np.isfinite(band.mean).any() for band in bands) or not bands:
            missing.append(channel.title)
        # A GPU or a core that did nothing is worth a picture; a file system is not.
        elif max(float(np.nanmax(band.high)) for band in bands) <= 0 and (
            not channel.ceiling or channel.more
        ):
            quiet.append(channel.title)
        else:
            plots.append(_channel(recording, channel, bands))
    if len(missing) == len(section.channels):
        return Drawn(section, (), (section.empty,))
    said = [section.quiet.format(", ".join(quiet))] if quiet else []
    said += [f"Not recorded: {', '.join(missing)}."] if missing else []
    return Drawn(section, tuple(plots), tuple(said))


def _channel(recording: Recording, channel: Channel, bands: list[Band]) -> Figure:
    """A line with its band over all rows; below it the rows in colours, where there are several."""
    unit, scale = channel.unit, channel.factor
    if unit == "bytes/s":
        unit, scale = _prefixed(max(float(np.nanmax(band.high)) for band in bands))
    factor = np.float32(scale)
    fold = max(1, -(-recording.bins // POINTS))
    data, values, both = [], {}, 0.0
    for at, (name, band) in enumerate(zip(channel.labels, bands, strict=True)):
        line = strip(band, fold)
        low, middle, high = line.low * factor, line.mean * factor, line.high * factor
        data.append(_over_time(recording, fold) | _line(low, middle, high, name, unit, at))
        ends = {"lowest": float(lowest(low)), "highest": float(highest(high))}
        values[name] = {"mean": float(mean(band.mean)) * scale, **ends}
        both = max(both, ends["highest"])
    floor = min(0.0, *(one["lowest"] for one in values.values()))
    strip_ceiling = max(_ceiling(recording, channel), both) or 1.0
    rows = np.sum([band.mean for band in bands], axis=0, dtype=np.float32) * factor
    figure = Figure(
        id=channel.id,
        title=channel.title,
        unit=unit,
        data=data,
        layout=_layout(recording, _STRIP),
        values=values,
        note=channel.note,
        more=channel.more,
        of=channel.of,
        average=mean(rows, axis=0),
        rows=rows,
        peak=highest(bands[0].high) * factor,
        floor=floor,
        ceiling=strip_ceiling if len(bands) == 1 else float(np.nanmax(rows)) or 1.0,
    )
    air = (strip_ceiling - floor) * 0.04
    figure.layout["yaxis"]["range"] = [floor - air if floor < 0 else 0.0, strip_ceiling + air]
    if len(figure.average) > 1:
        _add_rows(recording, figure)
    return figure


def _add_rows(recording: Recording, figure: Figure) -> None:
    """Put the rows in colours below the line, and beside them the mean of each."""
    groups = row_of(recording, figure.of)
    count = int(groups.max()) + 1
    cells = figure.rows
    if count < len(groups):
        cells = np.stack([mean(cells[:, groups == row], axis=1) for row in range(count)], axis=1)
    columns = max(60, min(_COLUMNS, (_CELLS_MORE if figure.more else _CELLS) // count))
    fold = max(1, -(-recording.bins // columns))
    names = _names(recording, figure.of, groups)
    pixels = heat_pixels(count)
    inner = _STRIP + _BETWEEN + pixels
    data, layout = figure.data, figure.layout
    shared = {"y": [label(name, 60) for name in names], "xaxis": "x", "yaxis": "y2"}
    unit = label(figure.unit)
    data.append(
        _over_time(recording, fold)
        | shared
        | {
            "type": "heatmap",
            "z": coarse(cells, fold).T,
            "zmin": figure.floor,
            "zmax": figure.ceiling,
            "colorscale": "Viridis",
            "showscale": False,
            "ygap": 1 if count <= 32 else 0,
            "hovertemplate": f"<b>%{{y}}</b><br>%{{z:.4~g}} {unit}{_WHEN}",
        }
    )
    average = mean(cells, axis=0)
    data.append(
        shared
        | {
            "type": "bar",
            "orientation": "h",
            "x": average,
            "xaxis": "x2",
            "width": 0.82 if count <= 32 else 1.0,
            "marker": {"color": "--one", "opacity": 0.55},
            "hovertemplate": f"<b>%{{y}}</b><br>%{{x:.4~g}} {unit} on average<extra></extra>",
        }
    )
    layout["height"] = inner + _EDGES
    layout["xaxis"]["anchor"] = "y2"
    layout["yaxis"]["domain"] = [(pixels + _BETWEEN) / inner, 1]
    layout["yaxis2"] = {
        **_row_ticks(names, pixels),
        "type": "category",
        "domain": [0, pixels / inner],
        "anchor": "x",
        "fixedrange": count <= 32,
    }
    ends = [figure.floor, figure.ceiling]
    layout["xaxis2"] = {
        "domain": [_TIME + 0.012, 1],
        "anchor": "y2",
        "range": [ends[0], ends[1] * 1.02],
        "fixedrange": True,
        "showgrid": False,
        "ticks": "",
        "tickvals": ends,
        "tickfont": {"size": 9},
    }
    layout["shapes"].append(_box("x domain", (0, 1), "y2 domain", "--blank"))


def heat_pixels(rows: int) -> int:
    return round(min(400, max(44, rows * (22 if rows <= 8 else 14))))


def _row_ticks(names: Sequence[str], pixels: float) -> dict[str, Any]:
    """An axis of named rows, the first at the top."""
    places = list(range(0, len(names), max(1, -(-len(names) * 13 // int(pixels)))))
    return {
        "range": [len(names) - 0.5, -0.5],
        "tickvals": places,
        "ticktext": [label(names[place]) for place in places],
        "showgrid": False,
        "ticks": "",
    }


def _names(recording: Recording, of: str, groups: NDArray[np.int64]) -> list[str]:
    """A name for each row; no two are alike, as Plotly would take them for one."""
    names = row_names(recording)[of]
    count = int(groups.max()) + 1
    if count < len(names):
        nodes = row_of(recording, "host")
        members = [np.flatnonzero(nodes == row) for row in range(count)]
        hosts = recording.nodes
        names = [
            hosts[one[0]] + (f" to {hosts[one[-1]]}" if len(one) > 1 else "") for one in members
        ]
    seen: dict[str, int] = {}
    return [
        name if seen.setdefault(clean(name), n) == n else f"{n}: {name}"
        for n, name in enumerate(names)
    ]


def _ceiling(recording: Recording, channel: Channel) -> float:
    """End of the scale that is known beforehand; 0 where only the values can tell."""
    gpus, heads = recording.gpus, recording.heads
    known: dict[str, list[float | None]] = {
        "": [],
        "limit": [gpu.power_limit for gpu in gpus],
        "memory": [gpu.memory / GIB for gpu in gpus],
        "clock": [gpu.clock_max for gpu in gpus],
        "node memory": [head.memory / GIB for head in heads],
        "node limit": [(head.memory_limit or 0) / GIB for head in heads],
    }
    if channel.ceiling not in known:
        return float(channel.ceiling)
    return max((value for value in known[channel.ceiling] if value), default=0.0)


def _prefixed(most: float) -> tuple[str, float]:
    """A unit in which the highest value (bytes/s) has one to three digits, and its factor."""
    for unit, factor in (("GB/s", 1e-9), ("MB/s", 1e-6), ("kB/s", 1e-3)):
        if most * factor >= 1:
            return unit, factor
    return "B/s", 1.0


def _layout(recording: Recording, inner: float) -> dict[str, Any]:
    """A figure over the time of the whole run, grey where nothing was sampled."""
    gaps = [[milliseconds(recording, moment) for moment in gap] for gap in blank(recording)]
    return {
        "height": inner + _EDGES,
        "xaxis": {"type": "date", "range": whole(recording), "domain": [0, _TIME], "anchor": "y"},
        "yaxis": {"anchor": "x"},
        "shapes": [_box("x", gap, "y domain", "--blank") for gap in gaps],
    }


def _box(xref: str, x: Sequence[float], yref: str, colour: str) -> dict[str, Any]:
    place = {"xref": xref, "x0": x[0], "x1": x[1], "yref": yref, "y0": 0, "y1": 1}
    return {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": colour, **place}


def _over_time(recording: Recording, fold: int) -> Trace:
    """The places of bins of the recording, every `fold` of them together."""
    width = fold * recording.width
    middle = milliseconds(recording, recording.begin + width / 2)
    return {"x0": middle, "dx": width * 1000.0}


def _line(low: Array, middle: Array, high: Array, name: str, unit: str, at: int = 0) -> Trace:
    told = f"%{{y:.4~g}} {label(unit)}  (%{{customdata[0]:.4~g}} to %{{customdata[1]:.4~g}})"
    return {
        "type": "scatter",
        "mode": "lines",
        "y": middle,
        "low": low,
        "high": high,
        "name": label(name),
        "line": {"width": 1.6, "color": ("--one", "--two")[at]},
        "hovertemplate": (f"<b>{label(name)}</b><br>" if name else "") + told + _WHEN,
    }


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


def points(recording: Recording, values: NDArray[np.float64]) -> Points:
    """Reduce a value of each step to what a plot shows."""
    steps = recording.steps
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
    found = points(recording, values)
    trace = _line(found.low, found.mean, found.high, title, unit)
    trace |= {"x": milliseconds(recording, found.time), "step": found.step}
    trace["hovertemplate"] = trace["hovertemplate"].replace(
        _WHEN, "<br>step %{customdata[2]:,d}" + _WHEN
    )
    layout = _layout(recording, _CURVE)
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
                "x": milliseconds(recording, marks[:_EVENTS, 0]),
                "y": marks[:_EVENTS, 1],
                "name": "validation",
                "marker": {"size": 6, "symbol": "diamond", "color": "--two"},
                "hovertemplate": "<b>validation</b><br>%{y:.4~g}" + _WHEN,
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
    names = _names(recording, "host", groups)
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
        "height": pixels + _EDGES,
        "xaxis": {
            "domain": [0, _TIME],
            "range": [-0.5, most - 0.5],
            "dtick": max(1, -(-most // 12)),
            "fixedrange": True,
            "showgrid": False,
            "title": {"text": "core", "font": {"size": 10}, "standoff": 4},
        },
        "yaxis": {**_row_ticks(names, pixels), "type": "category"},
        "shapes": [_box("x domain", (0, 1), "y domain", "--blank")],
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
    lanes = {name: bars[:_EVENTS] for name, bars in lanes.items() if bars}
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
            data.append(shared | more | {"hovertemplate": shared["hovertemplate"] + _WHEN})
    pixels = max(40, 26 * len(lanes))
    layout = _layout(recording, pixels)
    layout |= {"yaxis": _row_ticks(list(lanes), pixels), "shapes": [], "barmode": "overlay"}
    return Figure("timeline", "Timeline", "", data, layout)
