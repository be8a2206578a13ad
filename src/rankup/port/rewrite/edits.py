"""Changes of a text by position, so that what is not changed stays byte for byte."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from ...script.source import File
from .script import Span

_IN_ROW = 4  # the order of what is put in behind a statement, and whatever is put around its parts


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str
    # Of insertions at one place: what opens comes from the outside inwards, what closes reversed.
    order: tuple[int, int, int]


class Edits:
    """Insertions and replacements in one text, applied together.

    Insertions may nest: `around(span, "f(", ")")` puts a call around an expression, also around one
    that other edits change inside. What stands inside a replacement is dropped with it.
    """

    def __init__(self, file: File) -> None:
        self.text = file.text
        self._edits: list[_Edit] = []
        self._starts = file.starts
        self.newline = "\r\n" if "\r\n" in file.text else "\n"

    def line(self, offset: int) -> int:
        """The number, from 1, of the line of a place."""
        return bisect.bisect_right(self._starts, offset)

    def around(self, span: Span, before: str, after: str) -> None:
        """Text in front of an expression and behind it."""
        start, end = span
        # Around one and the same expression what is put later stands outside.
        self._add(start, start, before, (2, start - end, -len(self._edits)))
        self._add(end, end, after, (0, end - start, len(self._edits)))

    def insert(self, offset: int, text: str) -> None:
        """Text at one place, inside whatever is put around there."""
        self._add(offset, offset, text, (1, 0, 0))

    def replace(self, span: Span, text: str) -> None:
        """Other text in place of an expression.

        Raises:
            ValueError: it overlaps another replacement.
        """
        start, end = span
        if any(edit.start < end and start < edit.end for edit in self._edits):
            raise ValueError("two changes of one place")
        self._add(start, end, text, (3, 0, 0))

    def taken(self, span: Span) -> bool:
        """True where a replacement touches it already."""
        start, end = span
        return any(e.end > e.start and e.start < end and start < e.end for e in self._edits)

    def inside(self, span: Span) -> str:
        """The texts that are put somewhere in an expression, or around a part of it."""
        start, end = span
        return _code(edit.text for edit in self._edits if start <= edit.start < end)

    def behind(self, span: Span) -> str:
        """Text behind a statement: in its row, or lines at its indentation or further in."""
        start, end = span
        row = [edit.text for edit in self._edits if edit.start == end and edit.order[0] == _IN_ROW]
        deep = len(self.indent(start).expandtabs())
        number = self.line(max(end - 1, 0))
        start = self._starts[number] if number < len(self._starts) else len(self.text)
        found = (edit for edit in self._edits if edit.start == start and _after(edit))
        return _code([*row, *(one.text for one in found if -one.order[1] >= deep)])

    def lines_at(self, offset: int) -> str:
        """The lines that are put in front of the line of a place."""
        start = self._starts[self.line(offset) - 1]
        return "".join(edit.text for edit in self._edits if edit.start == edit.end == start)

    def lines_before(self, offset: int, *lines: str) -> None:
        """Whole lines in front of the line of a place, indented as it is."""
        start = self._starts[self.line(offset) - 1]
        indent = self.indent(offset)
        text = "".join(indent + line + self.newline for line in lines)
        self._add(start, start, text, (-1, len(self._edits), 0))

    def lines_after(self, end: int, indent: str, *lines: str) -> None:
        """Whole lines behind the line in which a statement ends."""
        number = self.line(max(end - 1, 0))
        if number < len(self._starts):
            start = self._starts[number]
            text = "".join(indent + line + self.newline for line in lines)
        else:  # the last line has no end of its own
            start = len(self.text)
            text = "".join(self.newline + indent + line for line in lines)
        # Lines that belong to an inner block end it, before those of the block around it.
        self._add(start, start, text, (-2, -len(indent.expandtabs()), len(self._edits)))

    def row_before(self, start: int, *lines: str) -> None:
        """Statements in front of one that others precede in its row, behind these."""
        text = "".join(f"{line}; " for line in lines if line)
        self._add(start, start, text, (-1, len(self._edits), 0))

    def row_after(self, end: int, *lines: str) -> None:
        """Statements behind one that others follow in its row, before these."""
        text = "".join(f"; {line}" for line in lines if line)
        self._add(end, end, text, (_IN_ROW, len(self._edits), 0))

    def indent_lines(self, first: int, last: int, unit: str, keep: set[int]) -> None:
        """Lines `first` to `last` one step further in, but those inside a string (`keep`)."""
        for number in range(first, last + 1):
            start = self._starts[number - 1]
            if number not in keep and self.text[start : start + 1] not in ("", "\r", "\n"):
                self._add(start, start, unit, (0, 0, 0))

    def indent(self, offset: int) -> str:
        """The indentation of the line of a place."""
        line = self.text[self._starts[self.line(offset) - 1] :]
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    def apply(self) -> str:
        """The changed text."""
        out, at = [], 0
        for edit in sorted(self._edits, key=lambda e: (e.start, e.order)):
            if edit.start < at:  # inside what was replaced
                continue
            out += [self.text[at : edit.start], edit.text]
            at = edit.end
        return "".join([*out, self.text[at:]])

    def _add(self, start: int, end: int, text: str, order: tuple[int, int, int]) -> None:
        self._edits.append(_Edit(start, end, text, order))


def _after(edit: _Edit) -> bool:
    return edit.order[0] == -2


def _code(texts: Iterable[str]) -> str:
    """Texts that are put in, without comments."""
    return " ".join(one for one in texts if not one.lstrip().startswith("#"))
