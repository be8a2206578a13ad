"""A document of A4 pages: a place to write that moves down, and on to the next page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf, PdfPages
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from .fonts import Font

WIDTH, HEIGHT = 595.28, 841.89  # A4
LEFT, RIGHT, TOP, BOTTOM = 40.0, 40.0, 36.0, 44.0
INNER = WIDTH - LEFT - RIGHT

INK, GREY, FAINT, PALE = "#1a1d21", "#5c6470", "#c9ced6", "#f2f4f7"
COLOURS = {"ok": "#1b7f4b", "warning": "#b25e00", "error": "#b3261e"}
ACCENT = "#1f5fa8"
BODY = Font()
SMALL = Font(7.2)
BOLD = Font(bold=True)

Align = Literal["left", "right", "center"]


class Document:
    """Pages, the last of which is written on.

    Attributes:
        y: points from the top of the page down to where the next thing goes.
        marks: (title, number of the page) of each heading that belongs into the contents.
    """

    def __init__(self, running_title: str) -> None:
        self._title = running_title
        self.figures: list[Figure] = []
        self.marks: list[tuple[str, int]] = []
        self.y = TOP
        self.new_page()

    def new_page(self) -> None:
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
        FigureCanvasPdf(figure)
        self.figures.append(figure)
        self.y = TOP

    @property
    def page(self) -> Figure:
        return self.figures[-1]

    @property
    def left(self) -> float:
        """Points that are left on this page."""
        return HEIGHT - BOTTOM - self.y

    def need(self, height: float) -> bool:
        """Go on to the next page where less than this is left; whether that was so."""
        if height <= self.left or self.y <= TOP:
            return False
        self.new_page()
        return True

    def text(
        self,
        x: float,
        y: float,
        text: str,
        font: Font = BODY,
        *,
        colour: str = INK,
        align: Align = "left",
    ) -> None:
        """One line; `y` is the upper edge of it."""
        baseline = y + 1.02 * font.size
        self.page.text(
            x / WIDTH,
            1 - baseline / HEIGHT,
            text,
            color=colour,
            ha=align,
            va="baseline",
            **font.options,
        )

    def lines(
        self,
        texts: Sequence[str],
        font: Font = BODY,
        *,
        x: float = LEFT,
        colour: str = INK,
    ) -> None:
        """Lines below one another at the place of writing, which moves on."""
        for text in texts:
            self.need(font.line)
            self.text(x, self.y, text, font, colour=colour)
            self.y += font.line

    def paragraph(
        self,
        text: str,
        font: Font = BODY,
        *,
        x: float = LEFT,
        width: float = INNER,
        colour: str = INK,
    ) -> None:
        """Text that is wrapped at the place of writing."""
        self.lines(font.wrap(text, width), font, x=x, colour=colour)

    def heading(
        self, title: str, *, keep: float = 60.0, mark: bool = False, aside: str = ""
    ) -> None:
        """A title with a rule below it, on the same page as `keep` points of what follows.

        Args:
            mark: it belongs into the contents; aside: words at the right end of the line.
        """
        font = Font(11.5, bold=True)
        self.need(font.line + 15 + keep)
        if self.y > TOP:
            self.y += 6
        self.text(LEFT, self.y, title, font)
        if aside:
            self.text(LEFT + INNER, self.y + 4, aside, SMALL, colour=GREY, align="right")
        self.y += font.line + 1
        self.rule(self.y, FAINT)
        self.y += 6
        if mark:
            self.marks.append((title, len(self.figures)))

    def rule(self, y: float, colour: str = FAINT, x: float = LEFT, width: float = INNER) -> None:
        """A thin line across."""
        at = 1 - y / HEIGHT
        ends = [x / WIDTH, (x + width) / WIDTH]
        self.page.add_artist(Line2D(ends, [at, at], color=colour, linewidth=0.6))

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle behind what is written."""
        corner = (x / WIDTH, 1 - (y + height) / HEIGHT)
        size = (width / WIDTH, height / HEIGHT)
        self.page.add_artist(Rectangle(corner, *size, color=colour, linewidth=0, zorder=-1))

    def axes(self, x: float, y: float, width: float, height: float, **options: Any) -> Axes:
        """A plot at this place."""
        place = (x / WIDTH, 1 - (y + height) / HEIGHT, width / WIDTH, height / HEIGHT)
        return self.page.add_axes(place, **options)

    def save(self, file: BinaryIO, metadata: dict[str, Any]) -> None:
        """Number the pages and write them."""
        count = len(self.figures)
        font = Font(7)
        with PdfPages(file, metadata=metadata) as pages:
            for number, figure in enumerate(self.figures, 1):
                at = 1 - (HEIGHT - 24) / HEIGHT
                options = {"color": GREY, "va": "baseline", **font.options}
                title = font.cut(self._title, INNER - 80)
                figure.text(LEFT / WIDTH, at, title, **options)
                where = f"page {number} of {count}"
                figure.text(1 - RIGHT / WIDTH, at, where, ha="right", **options)
                pages.savefig(figure)
