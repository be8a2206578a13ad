"""Plots over the time of the run: strips with their band, heat maps, curves, the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, ListedColormap
from numpy.typing import NDArray

from ...recording import Array, Band, Recording
from ..progress import Curve
from ..reduce import coarse
from . import labels
from .fonts import Font, written
from .sheet import ACCENT, COLOURS, FAINT, GREY, INK

TICKS = Font(6.6)
COLOURS_OF_LINES = (ACCENT, "#c2571a")
GAP_COLOUR = "#d9dde3"
LIFE_COLOURS = {"COMPLETED": COLOURS["ok"], "RUNNING": ACCENT, "UNKNOWN": GREY}
LEVELS = 64  # of a heat map's colours, so that an image is a byte per cell
# Rows and columns of a heat map at most: of the main ones, and of those less looked at.
_FINE, _COARSE = (1024, 480), (256, 320)
_MOST = 3000  # bars of a lane

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
    """From the first to the last moment of a run, in a unit that suits its length."""
    begins = [recording.begin, *(life.begin for life in recording.facts.lives)]
    ends = [recording.end, recording.begin + recording.bins * recording.width]
    ends += [life.end for life in recording.facts.lives if life.end is not None]
    begin, seconds = min(begins), max(ends) - min(begins)
    for word, unit in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 3 * unit:
            return Span(begin, seconds / unit, unit, word)
    return Span(begin, max(seconds, 1.0), 1.0, "seconds")


def bare(axes: Axes, span: Span, *, ticks: bool) -> None:
    """A plot's frame: time to the right, thin lines, small figures."""
    axes.set_xlim(0, span.end)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
        axes.spines[side].set_linewidth(0.6)
    axes.tick_params(length=2, width=0.5, color=FAINT, labelcolor=GREY, labelsize=TICKS.size, pad=2)
    axes.set_axisbelow(True)
    if not ticks:
        axes.tick_params(labelbottom=False)
    else:
        axes.set_xlabel(f"{span.word} since the start", color=GREY, labelpad=1, **TICKS.options)


def strip(
    axes: Axes,
    span: Span,
    times: NDArray[np.float64],
    bands: Sequence[Band],
    ceiling: float,
) -> None:
    """Lines of means with the band from the lowest to the highest; NaN is a gap.

    Args:
        times: (points,) unix seconds; bands: of each line.
    """
    x = span.at(times)
    for colour, band in zip(COLOURS_OF_LINES, bands, strict=False):
        axes.fill_between(x, band.low, band.high, color=colour, alpha=0.22, linewidth=0)
        axes.plot(x, band.mean, color=colour, linewidth=0.8, **_dots(band.mean))
    axes.set_ylim(0, ceiling * 1.04)
    axes.grid(axis="y", color=FAINT, linewidth=0.35)
    labels.plain_numbers(axes)


def heat(
    axes: Axes, span: Span, recording: Recording, values: Array, ceiling: float, *, fine: bool
) -> int:
    """Rows over time in colours, white where nothing was sampled; things in a row of the image.

    Args:
        values: (bins, things); fine: up to a thousand things have a row each.
    """
    most_rows, most_columns = _FINE if fine else _COARSE
    columns = max(1, -(-recording.bins // most_columns))
    per_row = max(1, -(-values.shape[1] // most_rows))
    cells = coarse(values, columns)
    if per_row > 1:
        cells = coarse(np.ascontiguousarray(cells.T), per_row).T
    begin = float(span.at(recording.begin))
    width = recording.width * columns * len(cells) / span.unit
    steps = np.floor(np.clip(cells / ceiling, 0, 1) * (LEVELS - 1) + 0.5)
    axes.imshow(
        np.ma.masked_invalid(steps).T,
        cmap=palette(),
        vmin=0,
        vmax=LEVELS - 1,
        interpolation="none",
        aspect="auto",
        origin="upper",
        extent=(begin, begin + width, cells.shape[1], 0),
    )
    axes.set_xlim(0, span.end)
    return per_row


def palette() -> Colormap:
    """The colours of all heat maps: low is dark, high is light."""
    from matplotlib.colors import LinearSegmentedColormap

    smooth = LinearSegmentedColormap.from_list("rankup", list(_STOPS), N=LEVELS)
    colours = ListedColormap(smooth(np.arange(LEVELS)), name="rankup")
    return colours.with_extremes(bad="#ffffff")


def colours(count: int) -> list[str]:
    """So many of the palette's colours, from low to high."""
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in palette()(np.linspace(0, 1, count))]


def curve(axes: Axes, span: Span, one: Curve) -> None:
    """A value that the training said of its steps."""
    x = span.at(one.time)
    axes.fill_between(x, one.low, one.high, color=ACCENT, alpha=0.22, linewidth=0)
    axes.plot(x, one.mean, color=ACCENT, linewidth=0.8, **_dots(one.mean))
    if len(one.marks):
        marks: dict[str, Any] = {
            "color": COLOURS_OF_LINES[1],
            "linewidth": 0,
            "marker": "o",
            "markersize": 2.2,
        }
        when, value = span.at(one.marks[:, 0]), one.marks[:, 1]
        axes.plot(when, value, label=written(one.marks_name), **marks)
        legend(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.35)
    labels.plain_numbers(axes)
    seen = np.concatenate([one.low, one.high, one.marks[:, 1]])
    seen = seen[np.isfinite(seen)]
    if one.unit and len(seen) and seen.min() >= 0:
        axes.set_ylim(0, float(seen.max()) * 1.05 or 1.0)


def gaps(axes: Axes, span: Span, recording: Recording) -> None:
    """Grey where no node was sampled."""
    for begin, end in blank(recording):
        left, right = span.at(np.array([begin, end]))
        axes.axvspan(left, right, color=GAP_COLOUR, linewidth=0, zorder=0)


def lives(axes: Axes, span: Span, recording: Recording) -> None:
    """A line where a later life of the run begins."""
    for life in recording.facts.lives[1:200]:
        axes.axvline(float(span.at(life.begin)), color=INK, linewidth=0.7, linestyle=(0, (3, 2)))


def blank(recording: Recording) -> list[tuple[float, float]]:
    """Stretches, unix seconds, in which no node at all was sampled."""
    if not recording.covered.size:
        end = recording.begin + recording.bins * recording.width
        return [(recording.begin, end)] if recording.bins else []
    missing = ~(recording.covered > 0).any(axis=1)
    edges = np.diff(np.concatenate([[0], missing.astype(np.int8), [0]]))
    pairs = zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)
    at = recording.begin
    return [(float(at + a * recording.width), float(at + b * recording.width)) for a, b in pairs]


def timeline(axes: Axes, span: Span, recording: Recording) -> None:
    """A lane per kind of event, and one for the lives of the run."""
    lanes: list[tuple[str, list[tuple[float, float, str]]]] = []
    found = [
        (life.begin, recording.end if life.end is None else life.end, _life_colour(life.state))
        for life in recording.facts.lives
    ]
    lanes += [("run", found)] if found else []
    kinds = ("resume", "checkpoint", "validation", "note", "end")
    for kind in kinds:
        events = [event for event in recording.events if event.kind == kind]
        bars = [(event.time - event.seconds, event.time, ACCENT) for event in events]
        lanes += [(f"{kind}s", bars)] if bars else []
    missing = [(gap.begin, gap.end, GREY) for gap in recording.gaps]
    lanes += [("no samples", missing)] if missing else []
    least = span.end * span.unit / 700  # a moment is to be seen as well
    for place, (_, bars) in enumerate(lanes):
        pieces = [[(min(b, e - least), place), (e, place)] for b, e, _ in bars[:_MOST]]
        places = [[(float(span.at(b)), y), (float(span.at(e)), y)] for (b, y), (e, _) in pieces]
        colours = [colour for _, _, colour in bars[:_MOST]]
        lines = LineCollection(places, colors=colours, linewidths=7, capstyle="butt")
        axes.add_collection(lines)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    axes.tick_params(axis="y", length=0)


def lanes_of(recording: Recording) -> int:
    """How many lanes `timeline` has."""
    kinds = {event.kind for event in recording.events}
    known = kinds & {"resume", "checkpoint", "validation", "note", "end"}
    return bool(recording.facts.lives) + len(known) + bool(recording.gaps)


def legend(axes: Axes) -> None:
    """What the lines are, above the plot."""
    options = {"family": TICKS.family, "size": TICKS.size}
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 0.98),
        ncols=4,
        frameon=False,
        prop=options,
        labelcolor=GREY,
        borderaxespad=0,
        borderpad=0.1,
        handlelength=1.2,
    )


def _life_colour(state: str) -> str:
    return LIFE_COLOURS.get(state, COLOURS["error"])


def _dots(values: Array) -> dict[str, Any]:
    """Dots for points that have no neighbour to draw a line to."""
    there = np.isfinite(values)
    lonely = there & ~np.append(there[1:], False) & ~np.insert(there[:-1], 0, False)
    if not lonely.any():
        return {}
    return {"marker": "o", "markersize": 1.6, "markevery": np.flatnonzero(lonely).tolist()}
