"""The figures of a run, each built once: traces and layout as Plotly has them, of numpy arrays.

Plotly draws them on the page (`page/page.js`), matplotlib in the PDF (`drawing.py`). Time is in
milliseconds of the run's local clock, as Plotly's axes of dates take it. Beside Plotly's own keys
a line may have `low` and `high`, the edges of the band around it. A colour such as "--one" is a
variable of the page's style. Texts from elsewhere are escaped, since Plotly reads HTML in them.

Channels come in the order that users of llview know: GPU, CPU, memory, I/O, network; their table is
`page/channels.csv`.
"""

from __future__ import annotations

import csv
import html
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.text import clean
from ..recording import Array, Band, Recording, coarse, highest, lowest, mean, stretches, strip

POINTS = 800  # of a line: about what a screen has pixels for
_BY_NODE = 64  # of more GPUs or ranks than this a row is a node
_ROWS = 512
# Columns of a heat map: as many as a screen shows, fewer of many rows, or of what is folded up.
_COLUMNS, _CELLS, _CELLS_MORE = 800, 40_000, 12_000
_STRIP, _BETWEEN, EDGES = 96, 10, 46  # pixels
TIME = 0.87  # the part of the width that time has; the rest is for the mean of each row
WHEN = "<br>%{x|%-d %b %H:%M:%S}<extra></extra>"

GIB = 2.0**30

Trace = dict[str, Any]


@dataclass(frozen=True)
class Channel:
    """One plot: a strip over time, and a heat map where there are several rows.

    Attributes:
        id: in the page.
        of: what has a row each: "gpu", "host" or "rank".
        names: bands of the recording; a second one is the other direction of the same.
        labels: of those bands, where there are two.
        unit: that is shown: "%", "GiB", "bytes/s" (then with a fitting prefix), …
        factor: what is recorded is multiplied by it.
        ceiling: end of the scale: a number, "limit" (W), "memory", "clock" (of the largest GPU),
            "node memory", "node limit"; empty: the highest value seen.
        more: of less importance: folded up at first, and coarser.
        note: how to read it, one sentence.
    """

    id: str
    title: str
    of: str
    names: tuple[str, ...]
    unit: str
    factor: float
    ceiling: str
    labels: tuple[str, ...]
    more: bool
    note: str


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        empty: what is said where none of its channels was recorded.
        quiet: what is said of channels in which nothing happened, `{}` being their titles.
    """

    id: str
    title: str
    empty: str
    quiet: str
    channels: tuple[Channel, ...]


def _read(row: dict[str, str]) -> Channel:
    factor = 1 / GIB if row["unit"] == "GiB" else float(row["factor"] or 1)
    labels = tuple(row["labels"].split("; ")) if row["labels"] else ("",)
    return Channel(
        id=row["id"],
        title=row["title"],
        of=row["of"],
        names=tuple(row["bands"].split()),
        unit=row["unit"],
        factor=factor,
        ceiling=row["ceiling"],
        labels=labels,
        more=bool(row["more"]),
        note=row["note"],
    )


def _all_sections() -> Iterator[Section]:
    file = resources.files("rankup.monitor.report").joinpath("page/channels.csv")
    rows = list(csv.DictReader(file.read_text("utf-8").splitlines()))
    no_gpu = "No GPU was recorded: a run on CPU, or one whose GPUs could not be read."
    no_io = "No reading or writing was recorded."
    for title, empty, quiet in (
        ("GPU", no_gpu, "Zero all the time: {}."),
        ("CPU", "No CPU was recorded.", "Zero all the time: {}."),
        ("Memory", "No memory was recorded.", "Never used: {}."),
        ("I/O", no_io, "Neither read nor written: {}."),
        ("Network", "No network traffic was recorded.", "No traffic: {}."),
    ):
        id = title.lower().replace("/", "")
        channels = tuple(_read(row) for row in rows if row["section"] == id)
        yield Section(id, title, empty, quiet, channels)


SECTIONS = tuple(_all_sections())


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
    missing = np.asarray(~(recording.covered > 0).any(axis=1))
    return [(begin + a * width, begin + b * width) for a, b in stretches(missing)]


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
        data.append(_over_time(recording, fold) | line_of(low, middle, high, name, unit, at))
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
        layout=layout_of(recording, _STRIP),
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
    names = names_of(recording, figure.of, groups)
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
            "hovertemplate": f"<b>%{{y}}</b><br>%{{z:.4~g}} {unit}{WHEN}",
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
    layout["height"] = inner + EDGES
    layout["xaxis"]["anchor"] = "y2"
    layout["yaxis"]["domain"] = [(pixels + _BETWEEN) / inner, 1]
    layout["yaxis2"] = {
        **row_ticks(names, pixels),
        "type": "category",
        "domain": [0, pixels / inner],
        "anchor": "x",
        "fixedrange": count <= 32,
    }
    ends = [figure.floor, figure.ceiling]
    layout["xaxis2"] = {
        "domain": [TIME + 0.012, 1],
        "anchor": "y2",
        "range": [ends[0], ends[1] * 1.02],
        "fixedrange": True,
        "showgrid": False,
        "ticks": "",
        "tickvals": ends,
        "tickfont": {"size": 9},
    }
    layout["shapes"].append(box("x domain", (0, 1), "y2 domain", "--blank"))


def heat_pixels(rows: int) -> int:
    return round(min(400, max(44, rows * (22 if rows <= 8 else 14))))


def row_ticks(names: Sequence[str], pixels: float) -> dict[str, Any]:
    """An axis of named rows, the first at the top."""
    places = list(range(0, len(names), max(1, -(-len(names) * 13 // int(pixels)))))
    return {
        "range": [len(names) - 0.5, -0.5],
        "tickvals": places,
        "ticktext": [label(names[place]) for place in places],
        "showgrid": False,
        "ticks": "",
    }


def names_of(recording: Recording, of: str, groups: NDArray[np.int64]) -> list[str]:
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


def layout_of(recording: Recording, inner: float) -> dict[str, Any]:
    """A figure over the time of the whole run, grey where nothing was sampled."""
    gaps = [[milliseconds(recording, moment) for moment in gap] for gap in blank(recording)]
    return {
        "height": inner + EDGES,
        "xaxis": {"type": "date", "range": whole(recording), "domain": [0, TIME], "anchor": "y"},
        "yaxis": {"anchor": "x"},
        "shapes": [box("x", gap, "y domain", "--blank") for gap in gaps],
    }


def box(xref: str, x: Sequence[float], yref: str, colour: str) -> dict[str, Any]:
    place = {"xref": xref, "x0": x[0], "x1": x[1], "yref": yref, "y0": 0, "y1": 1}
    return {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": colour, **place}


def _over_time(recording: Recording, fold: int) -> Trace:
    """The places of bins of the recording, every `fold` of them together."""
    width = fold * recording.width
    middle = milliseconds(recording, recording.begin + width / 2)
    return {"x0": middle, "dx": width * 1000.0}


def line_of(low: Array, middle: Array, high: Array, name: str, unit: str, at: int = 0) -> Trace:
    told = f"%{{y:.4~g}} {label(unit)}  (%{{customdata[0]:.4~g}} to %{{customdata[1]:.4~g}})"
    return {
        "type": "scatter",
        "mode": "lines",
        "y": middle,
        "low": low,
        "high": high,
        "name": label(name),
        "line": {"width": 1.6, "color": ("--one", "--two")[at]},
        "hovertemplate": (f"<b>{label(name)}</b><br>" if name else "") + told + WHEN,
    }
