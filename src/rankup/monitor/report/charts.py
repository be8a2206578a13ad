"""The plots of the report's PDF, as images: strips with their band, heat maps, curves, events."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from PIL import Image

from ...base.amounts import number
from ...base.text import clean
from ..recording import Array, Recording
from .plots import Plot, rows
from .progress import Curve
from .reduce import coarse

WIDTH = 515.0  # points of a plot with what stands beside it
INK, GREY, FAINT, PALE = "#1a1d21", "#5c6470", "#c9ced6", "#f2f4f7"
COLOURS = {"ok": "#1b7f4b", "warning": "#b25e00", "error": "#b3261e"}
ACCENT = "#1f5fa8"
LINES = (ACCENT, "#c2571a")  # of the two directions of a channel
_GAP = "#d9dde3"
_LIVES = {"COMPLETED": COLOURS["ok"], "RUNNING": ACCENT, "UNKNOWN": GREY}
_EVENTS = ("resume", "checkpoint", "validation", "note", "end")
_MOST = 3000  # bars of a kind of event
_MOST_LIVES = 200

_DPI = 220
_LEFT, _BELOW, _BETWEEN = 48.0, 24.0, 4.0  # points: names of rows, the time, plots of one figure
_TICKS, _NAMES = 6.6, 5.2  # points
_STRIP, _LOW_STRIP, _CURVE, _LANE = 52.0, 54.0, 64.0, 14.0
_LEGEND = 10.0
# Rows and columns of a heat map at most: of the main ones, and of those less looked at.
_FINE, _COARSE = (1024, 480), (256, 320)
# From black over blue and orange to pale yellow, of even lightness, so that it prints in grey.
_STOPS = ("#10131a", "#26306b", "#4a4fa3", "#8d5a9e", "#cc6677", "#f0934e", "#fad26a", "#fdf6c8")


@dataclass(frozen=True)
class Span:
    """The time that all plots of a report show, in units of its axis.

    Attributes:
        begin: unix seconds; unit: seconds of one unit.
        end: units; word: what a unit is called.
    """

    begin: float
    end: float
    unit: float
    word: str

    def at(self, moment: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Unix seconds in units of the axis."""
        return np.asarray((np.asarray(moment) - self.begin) / self.unit)


def span(recording: Recording) -> Span:
    """Return the time from the first to the last moment of a run, in a unit that suits it."""
    begins = [recording.begin, *(life.begin for life in recording.facts.lives)]
    ends = [recording.end, recording.begin + recording.bins * recording.width]
    ends += [life.end for life in recording.facts.lives if life.end is not None]
    begin, seconds = min(begins), max(ends) - min(begins)
    for word, unit in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 3 * unit:
            return Span(begin, seconds / unit, unit, word)
    return Span(begin, max(seconds, 1.0), 1.0, "seconds")


def channel(recording: Recording, plot: Plot, *, last: bool = True, heat: float = 0) -> Image.Image:
    """Return a channel over time; below it all its rows in colours, where there are several.

    Args:
        last: the time is written below it.
        heat: points of the rows; 0 for none.
    """
    time = span(recording)
    legend = len(plot.series) > 1
    axes = _axes([_STRIP, heat] if heat else [_LOW_STRIP], time, ticks=last, legend=legend)
    points = len(plot.series[0].band.mean)
    width = plot.fold * recording.width
    x = time.at(np.float64(recording.begin) + (np.arange(points) + 0.5) * width)
    for colour, one in zip(LINES, plot.series, strict=False):
        band = one.band
        axes[0].fill_between(x, band.low, band.high, color=colour, alpha=0.22, linewidth=0)
        _line(axes[0], x, band.mean, colour, written(one.name))
    axes[0].set_ylim(0, plot.ceiling * 1.04)
    _gaps(axes[0], time, recording)
    if legend:
        _legend(axes[0])
    if heat:
        _heat(axes[1], time, recording, plot, heat)
    return _image(axes, time, recording)


def heat_height(plot: Plot) -> float:
    """Return the points of a channel's rows: low for a few, never more than a fifth of a page."""
    count = len(plot.average)
    if count < 2:
        return 0.0
    most = 84.0 if plot.channel.more else 132.0
    return float(np.clip(count * 8.0, 26.0, most if count > 12 else 100.0))


def thing(plot: Plot) -> str:
    """Return what has a row in the plot."""
    return {"gpu": "GPU", "host": "node", "rank": "rank"}[plot.channel.of]


def per_row(plot: Plot, *, fine: bool) -> int:
    """Return how many things a row of a heat map stands for."""
    return max(1, -(-len(plot.average) // (_FINE if fine else _COARSE)[0]))


def curve(recording: Recording, one: Curve) -> Image.Image:
    """Return a value that the training logged, over time."""
    time = span(recording)
    (axes,) = _axes([_CURVE], time, legend=len(one.marks) > 0)
    x = time.at(one.time)
    axes.fill_between(x, one.low, one.high, color=ACCENT, alpha=0.22, linewidth=0)
    _line(axes, x, one.mean, ACCENT)
    if len(one.marks):
        when, value = time.at(one.marks[:, 0]), one.marks[:, 1]
        name = written(one.marks_name)
        axes.plot(when, value, "o", color=LINES[1], markersize=2.2, label=name)
        _legend(axes)
    seen = np.concatenate([one.low, one.high, one.marks[:, 1]])
    seen = seen[np.isfinite(seen)]
    if one.unit and len(seen) and seen.min() >= 0:
        axes.set_ylim(0, float(seen.max()) * 1.05 or 1.0)
    _gaps(axes, time, recording)
    return _image([axes], time, recording)


def timeline(recording: Recording) -> Image.Image | None:
    """Return a lane per kind of event, and one for the starts of the run; None without any."""
    time = span(recording)
    lanes: dict[str, list[tuple[float, float, str]]] = {"run": []}
    for life in recording.facts.lives:
        end = recording.end if life.end is None else life.end
        lanes["run"].append((life.begin, end, _LIVES.get(life.state, COLOURS["error"])))
    for kind in _EVENTS:
        found = [event for event in recording.events if event.kind == kind]
        lanes[f"{kind}s"] = [(event.time - event.seconds, event.time, ACCENT) for event in found]
    lanes["no samples"] = [(gap.begin, gap.end, GREY) for gap in recording.gaps]
    lanes = {name: bars for name, bars in lanes.items() if bars}
    if not lanes:
        return None
    (axes,) = _axes([_LANE * len(lanes) + 4], time)
    least = time.end * time.unit / 700  # a moment is to be seen as well
    for y, bars in enumerate(lanes.values()):
        shown = [(min(begin, end - least), end, colour) for begin, end, colour in bars[:_MOST]]
        places = [[(float(time.at(a)), y), (float(time.at(b)), y)] for a, b, _ in shown]
        colours = [colour for _, _, colour in shown]
        axes.add_collection(LineCollection(places, colors=colours, linewidths=7, capstyle="butt"))
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.tick_params(axis="y", length=0)
    return _image([axes], time, recording)


def blank(recording: Recording) -> list[tuple[float, float]]:
    """Return the stretches, unix seconds, in which no node at all was sampled."""
    if not recording.covered.size:
        end = recording.begin + recording.bins * recording.width
        return [(recording.begin, end)] if recording.bins else []
    missing = ~(recording.covered > 0).any(axis=1)
    edges = np.diff(np.concatenate([[0], missing.astype(np.int8), [0]]))
    pairs = zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)
    at = recording.begin
    return [(float(at + a * recording.width), float(at + b * recording.width)) for a, b in pairs]


def fonts() -> tuple[Path, Path]:
    """Return the files of DejaVu Sans and its bold face, which matplotlib brings along."""
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    return folder / "DejaVuSans.ttf", folder / "DejaVuSans-Bold.ttf"


def written(text: str) -> str:
    """Return text from elsewhere in characters that the fonts have; all others are written out."""
    line = clean(" ".join(text.split()).replace("\x1b", "\\x1b"))
    return "".join(character if _known(character) else _code(character) for character in line)


def _code(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _known(character: str) -> bool:
    """Return whether both faces have it: what one lacks would be an empty box."""
    if re.match(r"[\ud800-\udfff\ufe00-\ufe0f\u200b-\u200d\u2060\ufeff]", character):
        return False
    return ord(character) in _characters()


@functools.cache
def _characters() -> frozenset[int]:
    plain, bold = (FT2Font(str(path)).get_charmap() for path in fonts())
    return frozenset(plain) & frozenset(bold)


def _axes(
    heights: Sequence[float], time: Span, *, ticks: bool = True, legend: bool = False
) -> list[Axes]:
    """Return plots of these heights (points) below one another, of one figure."""
    above = _LEGEND if legend else _BETWEEN
    total = above + sum(heights) + _BETWEEN * len(heights) + (_BELOW if ticks else 0)
    figure = Figure(figsize=(WIDTH / 72, total / 72), dpi=_DPI)
    FigureCanvasAgg(figure)
    found, top = [], above
    for height in heights:
        below = (total - top - height) / total
        place = (_LEFT / WIDTH, below, 1 - (_LEFT + 8) / WIDTH, height / total)
        found.append(figure.add_axes(place))
        top += height + _BETWEEN
    for axes in found:
        axes.set_xlim(0, time.end)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(FAINT)
            axes.spines[side].set_linewidth(0.6)
        axes.tick_params(length=2, width=0.5, color=FAINT, labelcolor=GREY, labelsize=_TICKS, pad=2)
        axes.tick_params(labelbottom=ticks and axes is found[-1])
        axes.set_axisbelow(True)
        axes.grid(axis="y", color=FAINT, linewidth=0.35)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    if ticks:
        label = f"{time.word} since the start"
        found[-1].set_xlabel(label, color=GREY, labelpad=1, size=_TICKS)
    return found


def _image(axes: Sequence[Axes], time: Span, recording: Recording) -> Image.Image:
    """Return the figure, with a line where the run began again."""
    for one in axes:
        for life in recording.facts.lives[1:_MOST_LIVES]:
            at = float(time.at(life.begin))
            one.axvline(at, color=INK, linewidth=0.7, linestyle=(0, (3, 2)))
    file = io.BytesIO()
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    figure.savefig(file, format="png")
    # A palette is a third of the bytes, and nothing of a plot is a photo.
    return Image.open(file).convert("RGB").quantize(200, dither=Image.Dither.NONE)


def _line(axes: Axes, x: Any, values: Array, colour: str, label: str = "") -> None:
    """A line, with dots for points that have no neighbour to draw a line to."""
    there = np.isfinite(values)
    lonely = there & ~np.append(there[1:], False) & ~np.insert(there[:-1], 0, False)
    axes.plot(
        x,
        values,
        color=colour,
        linewidth=0.8,
        label=label,
        marker="o",
        markersize=1.6,
        markevery=np.flatnonzero(lonely).tolist(),
    )


def _heat(axes: Axes, time: Span, recording: Recording, plot: Plot, tall: float) -> None:
    """Rows over time in colours, white where nothing was sampled."""
    fine = not plot.channel.more and tall > _LOW_STRIP
    columns = max(1, -(-recording.bins // (_FINE if fine else _COARSE)[1]))
    folded = per_row(plot, fine=fine)
    cells = coarse(rows(recording, plot), columns)
    if folded > 1:
        cells = coarse(np.ascontiguousarray(cells.T), folded).T
    begin = float(time.at(recording.begin))
    end = begin + recording.width * columns * len(cells) / time.unit
    axes.imshow(
        np.ma.masked_invalid(np.clip(cells / plot.ceiling, 0, 1)).T,
        cmap=_palette(),
        vmin=0,
        vmax=1,
        interpolation="none",
        aspect="auto",
        origin="upper",
        extent=(begin, end, cells.shape[1], 0),
    )
    axes.set_xlim(0, time.end)
    axes.grid(False)
    axes.tick_params(axis="y", length=0, labelsize=_NAMES)
    count = len(plot.average)
    if count * 6.0 <= tall + 3:
        axes.set_yticks(np.arange(count) + 0.5, _short_names(recording, plot))
    else:
        ends = sorted({0, count // 2, count - 1})
        axes.set_yticks([(place + 0.5) / folded for place in ends], [str(place) for place in ends])
        labels = axes.get_yticklabels()
        labels[0].set_verticalalignment("top")  # beside the picture, not above or below it
        labels[-1].set_verticalalignment("bottom")
    for label in axes.get_yticklabels():
        label.set_parse_math(False)


def _palette() -> Colormap:
    """The colours of all heat maps: low is dark, high is light."""
    smooth = LinearSegmentedColormap.from_list("rankup", list(_STOPS), N=64)
    return smooth.with_extremes(bad="#ffffff")


def _gaps(axes: Axes, time: Span, recording: Recording) -> None:
    """Grey where no node was sampled."""
    for begin, end in blank(recording):
        left, right = time.at(np.array([begin, end]))
        axes.axvspan(left, right, color=_GAP, linewidth=0, zorder=0)


def _legend(axes: Axes) -> None:
    """The names of the lines, above the plot."""
    box = axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=4,
        frameon=False,
        fontsize=_TICKS,
        labelcolor=GREY,
        borderaxespad=0,
        borderpad=0.1,
        handlelength=1.2,
    )
    for text in box.get_texts():
        text.set_parse_math(False)


def _short(value: float) -> str:
    """A value in few digits, without a power of ten apart from it."""
    return number(value) if abs(value) >= 10_000 else f"{value:.4g}"


def _short_names(recording: Recording, plot: Plot) -> Iterator[str]:
    """Of a node the last letters, of a GPU its number too."""
    nodes = [written(name) for name in recording.nodes]
    if plot.channel.of == "gpu":
        for node, gpu in zip(recording.gpu_node, recording.gpus, strict=True):
            name = nodes[int(node)][-4:]
            yield f"GPU {gpu.index}" if len(nodes) == 1 else f"{name}:{gpu.index}"
    elif plot.channel.of == "rank":
        yield from (f"rank {int(rank)}" for rank in recording.ranks)
    else:
        yield from (name[-7:] for name in nodes)
