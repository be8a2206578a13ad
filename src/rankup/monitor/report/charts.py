"""The figures of a report as images for its PDF: what `figures.py` builds, drawn by matplotlib."""

from __future__ import annotations

import functools
import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import FuncFormatter
from PIL import Image

from ...base.amounts import number
from ...base.text import clean
from ..recording import Recording
from .figures import Figure, Trace, milliseconds, whole

WIDTH = 515.0  # points of a plot with what stands beside it
INK, GREY, FAINT, PALE = "#1a1d21", "#5c6470", "#c9ced6", "#f2f4f7"
COLOURS = {"ok": "#1b7f4b", "warning": "#b25e00", "error": "#b3261e"}
ACCENT = "#1f5fa8"
# On paper, for those of the page's style.
_PRINTED = {
    "--one": ACCENT,
    "--two": "#c2571a",
    "--three": COLOURS["ok"],
    "--five": "#a67c00",
    "--muted": GREY,
    "--error": COLOURS["error"],
    "--blank": "#d9dde3",
}
_MOST_ATTEMPTS = 200
_DPI = 220
_LEFT, _BELOW, _BETWEEN = 48.0, 24.0, 4.0  # points: names of rows, the time, plots of one figure
_TICKS, _NAMES = 6.6, 5.2  # points
_STRIP, _CURVE = 52.0, 64.0
_LEGEND = 10.0
_UNITS = (("days", 86400e3), ("hours", 3600e3), ("minutes", 60e3), ("seconds", 1e3))


def picture(
    recording: Recording, figure: Figure, *, last: bool = True, heat: float | None = None
) -> Image.Image:
    """Return a figure over time; below it its rows in colours, where there are several.

    Args:
        last: the time is written below it.
        heat: points of the rows; None: as many as suit them, 0: none.
    """
    begin, end = whole(recording)
    word, unit = next((one for one in _UNITS if end - begin >= 3 * one[1]), _UNITS[-1])
    colours = [trace for trace in figure.data if trace["type"] == "heatmap"]
    heat = heat_height(figure) if heat is None else heat
    named = figure.layout["yaxis"].get("ticktext", ())
    strip = 14.0 * len(named) + 4 if named else _STRIP if figure.of else _CURVE
    legend = sum(bool(trace.get("name")) for trace in figure.data) > 1 and not named
    axes = _axes([strip, heat] if heat else [strip], last, legend)
    for trace in figure.data:
        if trace["type"] == "scatter" or "base" in trace:
            _draw(axes[0], trace, begin, unit)
    _scale(axes[0], figure)
    for shape in figure.layout["shapes"]:
        if shape["yref"] == "y domain":
            left, right = ((shape[side] - begin) / unit for side in ("x0", "x1"))
            axes[0].axvspan(left, right, color=_PRINTED["--blank"], linewidth=0, zorder=0)
    if legend:
        _legend(axes[0])
    if heat and colours:
        _heat(axes[1], colours[0], heat, begin, unit)
    for one in axes:
        one.set_xlim(0, (end - begin) / unit)
        for attempt in recording.facts.attempts[1:_MOST_ATTEMPTS]:  # where the run began again
            at = (milliseconds(recording, attempt.begin) - begin) / unit
            one.axvline(at, color=INK, linewidth=0.7, linestyle=(0, (3, 2)))
    if last:
        axes[-1].set_xlabel(f"{word} since the start", color=GREY, labelpad=1, size=_TICKS)
    file = io.BytesIO()
    canvas = axes[0].get_figure(root=True)
    assert canvas is not None
    canvas.savefig(file, format="png")
    # A palette is a third of the bytes, and nothing of a plot is a photo.
    return Image.open(file).convert("RGB").quantize(200, dither=Image.Dither.NONE)


def heat_height(figure: Figure) -> float:
    """Return the points of a figure's rows: low for a few, never more than a fifth of a page."""
    rows = next((len(trace["y"]) for trace in figure.data if trace["type"] == "heatmap"), 0)
    if rows < 2:
        return 0.0
    most = 84.0 if figure.more else 132.0
    return float(np.clip(rows * 8.0, 26.0, most if rows > 12 else 100.0))


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


def _axes(heights: Sequence[float], ticks: bool, legend: bool) -> list[Axes]:
    """Return plots of these heights (points) below one another, of one figure."""
    above = _LEGEND if legend else _BETWEEN
    total = above + sum(heights) + _BETWEEN * len(heights) + (_BELOW if ticks else 0)
    canvas = Canvas(figsize=(WIDTH / 72, total / 72), dpi=_DPI)
    FigureCanvasAgg(canvas)
    found, top = [], above
    for height in heights:
        below = (total - top - height) / total
        place = (_LEFT / WIDTH, below, 1 - (_LEFT + 8) / WIDTH, height / total)
        found.append(canvas.add_axes(place))
        top += height + _BETWEEN
    for axes in found:
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
    return found


def _draw(axes: Axes, trace: Trace, begin: float, unit: float) -> None:
    """Draw a line with its band, marks, or bars."""
    y = np.asarray(trace["y"])
    at = trace["x"] if "x" in trace else trace["x0"] + trace["dx"] * np.arange(len(y))
    x = (np.asarray(at) - begin) / unit
    if trace["type"] == "bar":
        colours = [_PRINTED[one] for one in trace["marker"]["color"]]
        left = (trace["base"] - begin) / unit
        axes.barh(y, np.asarray(at) / unit, left=left, height=0.56, color=colours)
        return
    if trace["mode"] == "markers":
        colour = trace["marker"]["color"]
        colours = [_PRINTED[one] for one in ([colour] if isinstance(colour, str) else colour)]
        axes.scatter(x, y, s=5, c=colours, marker="D", linewidths=0, label=trace["name"])
        return
    colour = _PRINTED[trace["line"]["color"]]
    axes.fill_between(x, trace["low"], trace["high"], color=colour, alpha=0.22, linewidth=0)
    # Dots for points that have no neighbour to draw a line to.
    there = np.isfinite(y)
    lonely = there & ~np.append(there[1:], False) & ~np.insert(there[:-1], 0, False)
    dots = {"marker": "o", "markersize": 1.6, "markevery": np.flatnonzero(lonely).tolist()}
    style: dict[str, Any] = {"color": colour, "linewidth": 0.8, "label": trace["name"], **dots}
    axes.plot(x, y, **style)


def _scale(axes: Axes, figure: Figure) -> None:
    """The ends of the values, and the names of rows."""
    axis = figure.layout["yaxis"]
    if "range" in axis:
        axes.set_ylim(*axis["range"])
    elif axis.get("rangemode") == "tozero" and axes.dataLim.ymin >= 0:
        axes.set_ylim(0, axes.dataLim.ymax * 1.05 or 1.0)
    if "ticktext" in axis:
        axes.set_yticks(axis["tickvals"], axis["ticktext"])
        axes.tick_params(axis="y", length=0)
        axes.grid(False)


def _heat(axes: Axes, trace: Trace, tall: float, begin: float, unit: float) -> None:
    """Rows over time in colours, white where nothing was sampled."""
    cells, names = trace["z"], [written(html.unescape(name)) for name in trace["y"]]
    left = (trace["x0"] - trace["dx"] / 2 - begin) / unit
    right = left + trace["dx"] * cells.shape[1] / unit
    axes.imshow(
        np.ma.masked_invalid(cells),
        cmap=matplotlib.colormaps["viridis"].with_extremes(bad="#ffffff"),
        vmin=trace["zmin"],
        vmax=trace["zmax"],
        interpolation="none",
        aspect="auto",
        extent=(left, right, len(names), 0),
    )
    axes.grid(False)
    axes.tick_params(axis="y", length=0, labelsize=_NAMES)
    if len(names) * 6.0 <= tall + 3:
        axes.set_yticks(np.arange(len(names)) + 0.5, [name[-9:] for name in names])
    else:
        ends = sorted({0, len(names) // 2, len(names) - 1})
        axes.set_yticks([place + 0.5 for place in ends], [names[place][-9:] for place in ends])
        labels = axes.get_yticklabels()
        labels[0].set_verticalalignment("top")  # beside the picture, not above or below it
        labels[-1].set_verticalalignment("bottom")
    for label in axes.get_yticklabels():
        label.set_parse_math(False)


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
