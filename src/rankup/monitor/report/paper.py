"""A4 pages of text, tables and room for plots, by matplotlib: what the report's PDF is made of."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure as Page
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Rectangle

from ...base.text import clean
from .job import Table

INK, GREY, FAINT, PALE = "#1a1d21", "#5c6470", "#c9ced6", "#f2f4f7"
COLOURS = {"ok": "#1b7f4b", "warning": "#b25e00", "error": "#b3261e"}
ACCENT = "#1f5fa8"
# Points (1/72 inch), as all that follows.
WIDTH, HEIGHT = 595.28, 841.89
LEFT, TOP, BOTTOM, INNER = 40.0, 36.0, 50.0, 515.0
HEADING, BODY, SMALL, CELL = 11.5, 8.5, 7.2, 7.0
LINE = 1.32  # from one line to the next, in sizes of the font
_ASCENT = 0.95  # of its size, that a font reaches above its baseline
# Text is text (no Type 3 fonts, no formulas between dollars), whatever a user has set for figures.
STYLE: Any = {
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.family": "DejaVu Sans",
}


class Paper:
    """Pages that are written from the top to the bottom.

    Attributes:
        y: points from the top of the page, where the next thing goes.
        marks: title and page of each part.
    """

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.marks: list[tuple[str, int]] = []
        self.add_page()

    def add_page(self) -> None:
        self.page = Page(figsize=(WIDTH / 72, HEIGHT / 72))
        self.pages.append(self.page)
        self.y = TOP

    @property
    def left(self) -> float:
        """Points that are left on this page."""
        return HEIGHT - BOTTOM - self.y

    def need(self, height: float) -> None:
        """Go on to the next page where less than this is left."""
        if height > self.left and self.y > TOP:
            self.add_page()

    def text(
        self,
        text: str,
        size: float = BODY,
        *,
        x: float = LEFT,
        width: float | None = None,
        bold: bool = False,
        colour: str = INK,
        right: bool = False,
    ) -> None:
        """Write one line where the page is, cut at its width; the place stays.

        Args:
            width: of the line; None: up to the right margin.
            right: it ends there, else it begins at `x`.
        """
        room = LEFT + INNER - x if width is None else width
        place = x + room if right else x
        self.page.text(
            place / WIDTH,
            1 - (self.y + _ASCENT * size) / HEIGHT,
            _cut(text, size, room, bold),
            size=size,
            weight="bold" if bold else "normal",
            color=colour,
            ha="right" if right else "left",
            va="baseline",
        )

    def lines(
        self,
        lines: Sequence[str],
        size: float = BODY,
        *,
        x: float = LEFT,
        bold: bool = False,
        colour: str = INK,
    ) -> None:
        """Write lines, and go on below them."""
        for line in lines:
            self.need(size * LINE)
            self.text(line, size, x=x, bold=bold, colour=colour)
            self.y += size * LINE

    def paragraph(self, text: str, size: float = SMALL, *, x: float = LEFT) -> None:
        """Write text in as many lines as it takes, and go on below it."""
        self.lines(folded(text, size, LEFT + INNER - x), size, x=x, colour=GREY)

    def heading(self, title: str, keep: float, aside: str = "", mark: bool = True) -> None:
        """Write a title with a rule, on the same page as `keep` points of what follows.

        Args:
            aside: words at the right end of the line.
            mark: it belongs into the contents.
        """
        self.need(HEADING * LINE + 15 + keep)
        self.y += 6 if self.y > TOP else 0
        if mark:
            self.marks.append((title, len(self.pages)))
        self.text(aside, SMALL, colour=GREY, right=True)
        self.text(title, HEADING, bold=True)
        self.y += HEADING * LINE + 1
        self.box(LEFT, self.y, INNER, 0.6, FAINT)
        self.y += 6

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Fill a rectangle, behind what is written."""
        place = (x / WIDTH, 1 - (y + height) / HEIGHT)
        size = (width / WIDTH, height / HEIGHT)
        self.page.add_artist(Rectangle(place, *size, color=colour, linewidth=0, zorder=0))

    def axes(self, height: float, margin: float) -> Axes:
        """Return a plot from the left margin and `margin` to the right one, and go on below it."""
        bottom = 1 - (self.y + height) / HEIGHT
        box = ((LEFT + margin) / WIDTH, bottom, (INNER - margin) / WIDTH, height / HEIGHT)
        self.y += height
        return self.page.add_axes(box)

    def table(self, table: Table) -> None:
        """Write a table whose columns fit the page; its head comes again on every page."""
        size = CELL if len(table.head) < 8 else 6.2
        head, *body = [[written(cell) for cell in row] for row in (table.head, *table.rows)]
        widths = _widths(head, body, size)
        titles = _row(head, widths, size, bold=True)

        def write(cells: list[list[str]], is_head: bool, background: str = "") -> None:
            top, x = self.y, LEFT
            height = max(map(len, cells)) * size * LINE + 3
            if background:
                self.box(LEFT, top, INNER, height, background)
            for column, (lines, width) in enumerate(zip(cells, widths, strict=True)):
                self.y = top + 1.5
                for line in lines:
                    colour, right = GREY if is_head else INK, column >= table.named
                    place = {"x": x, "width": width - 6}
                    self.text(line, size, bold=is_head, colour=colour, right=right, **place)
                    self.y += size * LINE
                x += width
            self.y = top + height

        write(titles, True)
        for number, row in enumerate(body):
            cells = _row(row, widths, size)
            if max(map(len, cells)) * size * LINE + 3 > self.left:
                self.add_page()
                write(titles, True)
            write(cells, False, PALE if number % 2 else "")
        self.y += 6

    def finish(self, title: str, running: str) -> bytes:
        """Return the PDF, with contents on the first page and a running title on each.

        Args:
            title: of the document; running: at the bottom of each page.
        """
        count = len(self.pages)
        contents = " · ".join(f"{part} {page}" for part, page in self.marks)
        for number, page in enumerate(self.pages, 1):
            self.page = page
            self.y = HEIGHT - BOTTOM + 6
            if number == 1:
                self.text(f"Pages: {contents}", 7, colour=GREY)
            self.y = HEIGHT - 30
            self.text(running, 7, width=INNER - 80, colour=GREY)
            self.text(f"page {number} of {count}", 7, colour=GREY, right=True)
        data = io.BytesIO()
        with PdfPages(data, metadata={"Title": title, "Creator": "rankup"}) as pdf:
            for page in self.pages:
                pdf.savefig(page)
        return data.getvalue()


def folded(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Return text in lines of at most this width; a word that is longer is broken."""
    lines, line = [], ""
    for word in text.split():
        if line and measure(f"{line} {word}", size, bold) <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        line = word
        while len(line) > 1 and measure(line, size, bold) > width:
            end = len(line) - 1
            while end > 1 and measure(line[:end], size, bold) > width:
                end -= 1
            lines.append(line[:end])
            line = line[end:]
    return [*lines, line]


def _cut(text: str, size: float, width: float, bold: bool) -> str:
    if measure(text, size, bold) <= width + 0.5:
        return text
    while text and measure(f"{text}…", size, bold) > width:
        text = text[:-1].rstrip()
    return f"{text}…"


def measure(text: str, size: float, bold: bool = False) -> float:
    """Return the width of a line in points."""
    return sum(map(_advances(bold), text)) * size


@functools.cache
def _advances(bold: bool) -> functools._lru_cache_wrapper[float]:
    """Return what gives the width of a character in sizes of the font, without kerning."""
    font = FT2Font(str(fonts()[bold]))
    font.set_size(1000, 72)

    @functools.cache
    def advance(character: str) -> float:
        return float(font.load_char(ord(character)).linearHoriAdvance) / 65536 / 1000

    return advance


def _row(
    row: Sequence[str], widths: Sequence[float], size: float, bold: bool = False
) -> list[list[str]]:
    """Return the lines of each cell."""
    return [folded(cell, size, width - 6, bold) for cell, width in zip(row, widths, strict=True)]


def _widths(head: Sequence[str], body: Sequence[Sequence[str]], size: float) -> list[float]:
    """As wide as the cells are where there is room; else the widest columns give way first."""
    wanted = [
        max(measure(row[column], size, row is head) for row in [head, *body]) + 7
        for column in range(len(head))
    ]
    if sum(wanted) > INNER:  # a title may be folded; a cell's number better not
        titles = [
            max(measure(word, size, True) for word in title.split() or [""]) for title in head
        ]
        cells = [max([measure(row[k], size) for row in body] + [0]) for k in range(len(head))]
        wanted = [max(pair) + 7 for pair in zip(titles, cells, strict=True)]
    low, high = 0.0, max(wanted)
    for _ in range(40):  # the cap under which all fit
        cap = (low + high) / 2
        low, high = (low, cap) if sum(min(cap, w) for w in wanted) > INNER else (cap, high)
    widths = [min(high, width) for width in wanted]
    widths[0] += max(0.0, INNER - sum(widths))
    return widths


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
