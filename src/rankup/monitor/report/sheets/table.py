"""Tables whose columns fit the page, whose cells wrap, and whose heads come again on every page."""

from __future__ import annotations

from collections.abc import Sequence

from .fonts import Font, written
from .sheet import FAINT, GREY, INNER, LEFT, PALE, Document

_GAP = 8.0  # points between columns
_LEAST = 26.0
_SAMPLE = 400  # rows that widths are taken from; longer cells further down wrap


def table(
    document: Document,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    named: int = 1,
    x: float = LEFT,
    width: float = INNER,
    font: Font | None = None,
) -> None:
    """Write a table at the place of writing, over as many pages as it takes.

    Args:
        named: how many columns from the left are text; the others are numbers, to the right.
    """
    font = font or Font(7.4)
    bold = Font(font.size, bold=True)
    cells = [[written(cell) for cell in row] for row in rows]
    titles = [written(title) for title in head]
    widths = _widths(titles, cells, width, font, bold)
    sheet = _Sheet(document, x, widths, named)
    sheet.head(titles, bold)
    for number, row in enumerate(cells):
        lines = [font.wrap(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        height = max(map(len, lines)) * font.line + 2.5
        if document.need(height):
            sheet.head(titles, bold)
        if number % 2:
            document.box(x, document.y, width, height, PALE)
        sheet.row(lines, font, "")
        document.y += 2.5
    document.y += 6


class _Sheet:
    def __init__(self, document: Document, x: float, widths: list[float], named: int) -> None:
        self._document = document
        self._named = named
        self._widths = widths
        self._x = [x + sum(widths[:k]) + k * _GAP for k in range(len(widths))]

    def head(self, titles: Sequence[str], font: Font) -> None:
        lines = [font.wrap(title, wide) for title, wide in zip(titles, self._widths, strict=True)]
        tallest = max(map(len, lines))
        self._document.need((tallest + 1) * font.line + 6)
        lines = [[""] * (tallest - len(some)) + some for some in lines]
        self.row(lines, font, GREY)
        end = self._x[-1] + self._widths[-1]
        self._document.rule(self._document.y + 1, FAINT, self._x[0], end - self._x[0])
        self._document.y += 3

    def row(self, lines: Sequence[Sequence[str]], font: Font, colour: str) -> None:
        document = self._document
        top = document.y + 1.2
        for column, texts in enumerate(lines):
            right = column >= self._named
            x = self._x[column] + (self._widths[column] if right else 0)
            for place, text in enumerate(texts):
                if text:
                    options = {"colour": colour} if colour else {}
                    align = "right" if right else "left"
                    y = top + place * font.line
                    document.text(x, y, text, font, align=align, **options)  # type: ignore[arg-type]
        document.y += max(map(len, lines)) * font.line


def _widths(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: float,
    font: Font,
    bold: Font,
) -> list[float]:
    """As wide as the cells are where there is room; else the widest columns give way first."""
    count = len(titles)
    room = width - (count - 1) * _GAP
    # A title may wrap at its blanks; a cell's number may not.
    words = [max((bold.width(word) for word in title.split()), default=0.0) for title in titles]
    wanted = [
        max([words[k], _LEAST, *(font.width(row[k]) for row in rows[:_SAMPLE])])
        for k in range(count)
    ]
    if sum(wanted) > room:
        return _shrunk(wanted, room)
    # What is left goes to titles that would otherwise wrap, then to the first column.
    for k in sorted(range(count), key=lambda k: bold.width(titles[k])):
        more = min(bold.width(titles[k]) - wanted[k], room - sum(wanted))
        wanted[k] += max(0.0, more)
    wanted[0] += room - sum(wanted)
    return wanted


def _shrunk(wanted: list[float], room: float) -> list[float]:
    low, high = 0.0, max(wanted)
    for _ in range(40):  # the cap under which all fit
        cap = (low + high) / 2
        if sum(min(one, cap) for one in wanted) > room:
            high = cap
        else:
            low = cap
    return [min(one, low) for one in wanted]
