"""Parts of the PDF: A4 pages to write on, by fpdf2, and figures drawn by matplotlib."""

from __future__ import annotations

import functools
import html
import re
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from fpdf import FPDF
from fpdf.enums import XPos, YPos
from fpdf.fonts import FontFace
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
from .job import Table

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
    canvas, axes = _axes([strip, heat] if heat else [strip], last, legend)
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
    canvas.draw()
    # A palette is a third of the bytes, and nothing of a plot is a photo.
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    return drawn.quantize(200, dither=Image.Dither.NONE)


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


def _axes(
    heights: Sequence[float], ticks: bool, legend: bool
) -> tuple[FigureCanvasAgg, list[Axes]]:
    """Return plots of these heights (points) below one another, and the canvas that has them."""
    above = _LEGEND if legend else _BETWEEN
    total = above + sum(heights) + _BETWEEN * len(heights) + (_BELOW if ticks else 0)
    page = Canvas(figsize=(WIDTH / 72, total / 72), dpi=_DPI)
    found, top = [], above
    for height in heights:
        below = (total - top - height) / total
        place = (_LEFT / WIDTH, below, 1 - (_LEFT + 8) / WIDTH, height / total)
        found.append(page.add_axes(place))
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
    return FigureCanvasAgg(page), found


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


# Points (1/72 inch).
LEFT, TOP, BOTTOM = 40.0, 36.0, 44.0
INNER = WIDTH
HEADING, BODY, SMALL, TABLE = 11.5, 8.5, 7.2, 7.4
LINE = 1.32  # from one line to the next, in sizes of the font


class Pages(FPDF):
    """Pages with a running title; text in DejaVu, which has more characters than PDF's own."""

    def __init__(self, recording: Recording) -> None:
        super().__init__("portrait", "pt", "A4")
        facts = recording.facts
        name = written(facts.name or facts.run)
        self._running = f"{name} · {written(facts.run)}"
        self.marks: list[tuple[str, int]] = []
        self.set_title(f"rankup report: {name}")
        self.set_creator("rankup")
        self.set_margins(LEFT, TOP, self.w - LEFT - INNER)
        self.set_auto_page_break(True, BOTTOM)
        self.c_margin = 0
        for style, file in zip(("", "B"), fonts(), strict=True):
            self.add_font("DejaVu", style, file)
        self.add_page()

    @property
    def left(self) -> float:
        """Points that are left on this page."""
        return float(self.h - BOTTOM - self.y)

    def footer(self) -> None:
        self.set_y(-30)
        self.line_of(self._running, 7, width=INNER - 80, colour=GREY)
        self.set_y(-30)
        self.line_of(f"page {self.page_no()} of {{nb}}", 7, align="R", colour=GREY)

    def need(self, height: float) -> None:
        """Go on to the next page where less than this is left."""
        if height > self.left and self.y > TOP:
            self.add_page()

    def font(self, size: float, bold: bool = False, colour: str = INK) -> None:
        self.set_font("DejaVu", "B" if bold else "", size)
        self.set_text_color(colour)

    def line_of(
        self,
        text: str,
        size: float = BODY,
        *,
        x: float = LEFT,
        width: float = INNER,
        bold: bool = False,
        colour: str = INK,
        align: str = "L",
        stay: bool = False,
    ) -> None:
        """Write one line, cut where it is too long; go on below it, or with `stay` beside it."""
        self.font(size, bold, colour)
        if self.get_string_width(text) > width:
            fits = bisect_right(
                range(len(text)), width, key=lambda end: self.get_string_width(f"{text[:end]}…")
            )
            text = text[: max(0, fits - 1)].rstrip() + "…"
        self.set_x(x)
        options = {"new_x": XPos.LMARGIN, "new_y": YPos.TOP if stay else YPos.NEXT}
        self.cell(width, size * LINE, text, align=align, **options)  # type: ignore[arg-type]

    def lines_of(
        self, text: str, size: float, width: float, *, bold: bool = False, most: int = 0
    ) -> list[str]:
        """Return text in lines of this width; of more than `most` the last goes on too far."""
        self.font(size, bold)
        options = {"dry_run": True, "output": "LINES", "align": "L"}
        found: Any = self.multi_cell(width, size * LINE, text, **options)  # type: ignore[arg-type]
        lines: list[str] = [line.rstrip() for line in found]
        if most and len(lines) > most:
            lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
        return lines

    def paragraph(
        self, text: str, size: float = SMALL, *, x: float = LEFT, colour: str = GREY
    ) -> None:
        """Write text in as many lines as it takes."""
        for line in self.lines_of(text, size, LEFT + INNER - x):
            self.line_of(line, size, x=x, width=INNER + 9, colour=colour)

    def heading(self, title: str, keep: float, *, mark: bool = True, aside: str = "") -> None:
        """Write a title with a rule, on the same page as `keep` points of what follows.

        Args:
            mark: it belongs into the contents; aside: words at the right end of the line.
        """
        self.need(HEADING * LINE + 15 + keep)
        if self.y > TOP:
            self.y += 6
        top = self.y
        if mark:
            self.start_section(title)
            self.marks.append((title, self.page_no()))
        if aside:
            self.y += 4
            self.line_of(aside, SMALL, align="R", colour=GREY)
            self.y = top
        self.line_of(title, HEADING, bold=True)
        self.set_draw_color(FAINT)
        self.set_line_width(0.6)
        self.line(LEFT, self.y + 1, LEFT + INNER, self.y + 1)
        self.y += 7

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Fill a rectangle."""
        self.set_fill_color(colour)
        self.rect(x, y, width, height, style="F")

    def plot(self, picture: Image.Image) -> None:
        """Put a plot here, and go on below it."""
        height = INNER * picture.height / picture.width
        self.image(picture, LEFT, self.y, INNER, height)
        self.y += height


def table(pages: Pages, one: Table) -> None:
    """A table whose columns fit the page, and whose head comes again on every page."""
    size = TABLE if len(one.head) < 8 else 6.4
    body = [[written(cell) for cell in row] for row in one.rows]
    widths = _widths(pages, one.head, body, size)
    pages.font(size)
    pages.set_draw_color(FAINT)
    pages.set_fill_color(PALE)
    pale = pages.fill_color
    pages.set_fill_color("#ffffff")  # of the other rows
    pages.set_line_width(0.6)
    align = ["LEFT" if column < one.named else "RIGHT" for column in range(len(one.head))]
    with pages.table(
        width=round(INNER),
        align="LEFT",
        borders_layout="SINGLE_TOP_LINE",
        cell_fill_color=pale,
        cell_fill_mode="EVEN_ROWS",
        col_widths=widths,
        headings_style=FontFace(emphasis="BOLD", color=GREY),
        line_height=size * LINE,
        padding=(1.2, 4, 1.2, 0),
        text_align=align,
    ) as table:
        table.row([written(title) for title in one.head])
        for row in body:
            table.row(row)
    pages.y += 6


def _widths(
    pages: Pages, head: Sequence[str], body: Sequence[Sequence[str]], size: float
) -> list[float]:
    """As wide as the cells are where there is room; else the widest columns give way first."""
    pages.font(size)
    wanted = [
        max((pages.get_string_width(row[column]) for row in body), default=0.0) + 6
        for column in range(len(head))
    ]
    pages.font(size, bold=True)
    # A title may wrap at its blanks where there is no room; a cell's number may not.
    for parts in (lambda title: [title], str.split):
        titles = [
            max((pages.get_string_width(part) for part in parts(title)), default=0.0) + 6
            for title in head
        ]
        both = [max(pair) for pair in zip(wanted, titles, strict=True)]
        if sum(both) <= INNER:
            break
    wanted = both
    low, high = 0.0, max(wanted)
    for _ in range(40):  # the cap under which all fit
        cap = (low + high) / 2
        low, high = (low, cap) if sum(min(cap, w) for w in wanted) > INNER else (cap, high)
    widths = [min(low, width) for width in wanted]
    widths[0] += max(0.0, INNER - sum(widths))
    return widths
