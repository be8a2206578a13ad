"""A4 pages to write on, by fpdf2: lines that are cut or wrapped, headings, plots, tables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from fpdf import FPDF
from fpdf.enums import XPos, YPos
from fpdf.fonts import FontFace
from PIL import Image

from ..recording import Recording
from . import charts
from .charts import FAINT, GREY, INK, PALE, written
from .job import Table

# Points (1/72 inch).
LEFT, TOP, BOTTOM = 40.0, 36.0, 44.0
INNER = charts.WIDTH
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
        for style, file in zip(("", "B"), charts.fonts(), strict=True):
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
