"""Draws the report's figures on the pages of its PDF."""

from __future__ import annotations

import html
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ...base.amounts import number
from ..recording import Recording
from .figures import Figure, Trace, milliseconds, whole
from .paper import ACCENT, COLOURS, FAINT, GREY, INK, Paper, written

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
_LEFT, _BELOW, _BETWEEN = 48.0, 24.0, 4.0  # points: names of rows, the time, plots of one figure
_TICKS, _NAMES = 6.6, 5.2  # points
_STRIP, _CURVE = 52.0, 64.0
_LEGEND = 10.0
_UNITS = (("days", 86400e3), ("hours", 3600e3), ("minutes", 60e3), ("seconds", 1e3))


def draw(paper: Paper, recording: Recording, figure: Figure, *, last: bool = True) -> None:
    """Draw a figure over time; below it its rows in colours, where there are several.

    Args:
        last: the time is written below it.
    """
    begin, end = whole(recording)
    word, unit = next((one for one in _UNITS if end - begin >= 3 * one[1]), _UNITS[-1])
    heat = [trace for trace in figure.data if trace["type"] == "heatmap"]
    named = figure.layout["yaxis"].get("ticktext", ())
    legend = sum(bool(trace.get("name")) for trace in figure.data) > 1 and not named
    paper.y += _LEGEND if legend else _BETWEEN
    over = _axes(paper, 14.0 * len(named) + 4 if named else _STRIP if figure.of else _CURVE)
    for trace in figure.data:
        if trace["type"] == "scatter" or "base" in trace:
            _draw(over, trace, begin, unit)
    _scale(over, figure)
    for shape in figure.layout["shapes"]:
        if shape["yref"] == "y domain":
            left, right = ((shape[side] - begin) / unit for side in ("x0", "x1"))
            over.axvspan(left, right, color=_PRINTED["--blank"], linewidth=0, zorder=0)
    if legend:
        _legend(over)
    drawn = [over]
    if heat:
        paper.y += _BETWEEN
        tall = heat_height(figure)
        drawn.append(_axes(paper, tall))
        _heat(drawn[-1], heat[0], tall, begin, unit)
    for axes in drawn:
        axes.set_xlim(0, (end - begin) / unit)
        axes.tick_params(labelbottom=last and axes is drawn[-1])
        for attempt in recording.facts.attempts[1:_MOST_ATTEMPTS]:  # where the run began again
            at = (milliseconds(recording, attempt.begin) - begin) / unit
            axes.axvline(at, color=INK, linewidth=0.7, linestyle=(0, (3, 2)))
    if last:
        drawn[-1].set_xlabel(f"{word} since the start", color=GREY, labelpad=1, size=_TICKS)
        paper.y += _BELOW


def height(figure: Figure) -> float:
    """Return the points that a figure takes, with its words."""
    return 120.0 + heat_height(figure)


def heat_height(figure: Figure) -> float:
    """Return the points of a figure's rows: low for a few, never more than a fifth of a page."""
    rows = next((len(trace["y"]) for trace in figure.data if trace["type"] == "heatmap"), 0)
    if rows < 2:
        return 0.0
    most = 84.0 if figure.more else 132.0
    return float(np.clip(rows * 8.0, 26.0, most if rows > 12 else 100.0))


def _axes(paper: Paper, height: float) -> Axes:
    axes = paper.axes(height, _LEFT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
        axes.spines[side].set_linewidth(0.6)
    axes.tick_params(length=2, width=0.5, color=FAINT, labelcolor=GREY, labelsize=_TICKS, pad=2)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=FAINT, linewidth=0.35)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    return axes


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


def _legend(axes: Axes) -> None:
    """The names of the lines, above the plot."""
    axes.legend(
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


def _short(value: float) -> str:
    """A value in few digits, without a power of ten apart from it."""
    return number(value) if abs(value) >= 10_000 else f"{value:.4g}"
