"""Changes of a text by position, so that what is not changed stays byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

from libcst.metadata import CodeRange


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` (exclusive) of the text."""

    start: int
    end: int


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str
    # Of insertions at one place: what opens comes from the outside inwards, what closes reversed.
    order: tuple[int, int]


class Edits:
    """Insertions and replacements in one text, applied together.

    Insertions may nest: `open(span, "f(", ")")` puts a call around an expression, also around one
    that other edits change inside.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._edits: list[_Edit] = []
        self._starts = _line_starts(text)
        self.newline = "\r\n" if "\r\n" in text else "\n"

    def span(self, place: CodeRange) -> Span:
        """Where a LibCST node stands."""
        return Span(
            self._starts[place.start.line - 1] + place.start.column,
            self._starts[place.end.line - 1] + place.end.column,
        )

    def line(self, offset: int) -> int:
        """The number, from 1, of the line of a place."""
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            if self._starts[middle] <= offset:
                low = middle
            else:
                high = middle
        return low + 1

    def around(self, span: Span, before: str, after: str) -> None:
        """Text in front of an expression and behind it."""
        size = span.end - span.start
        self._add(span.start, span.start, before, (2, -size))
        self._add(span.end, span.end, after, (0, size))

    def insert(self, offset: int, text: str) -> None:
        """Text at one place, inside whatever is put around there."""
        self._add(offset, offset, text, (1, 0))

    def replace(self, span: Span, text: str) -> None:
        """Other text in place of an expression.

        Raises:
            ValueError: it overlaps another replacement.
        """
        for edit in self._edits:
            if edit.start < span.end and span.start < edit.end:
                raise ValueError("two changes of one place")
        self._add(span.start, span.end, text, (3, 0))

    def taken(self, span: Span) -> bool:
        """Whether a replacement touches it already."""
        return any(
            e.end > e.start and e.start < span.end and span.start < e.end for e in self._edits
        )

    def lines_before(self, offset: int, *lines: str) -> None:
        """Whole lines in front of the line of a place, indented as it is."""
        start = self._starts[self.line(offset) - 1]
        indent = _indent(self.text[start:])
        text = "".join(indent + line + self.newline for line in lines)
        self._add(start, start, text, (-1, len(self._edits)))

    def lines_after(self, end: int, indent: str, *lines: str) -> None:
        """Whole lines behind the line in which a statement ends."""
        number = self.line(max(end - 1, 0))
        if number < len(self._starts):
            start = self._starts[number]
            text = "".join(indent + line + self.newline for line in lines)
        else:  # the last line has no end of its own
            start = len(self.text)
            text = "".join(self.newline + indent + line for line in lines)
        self._add(start, start, text, (-2, len(self._edits)))

    def indent_lines(self, first: int, last: int, unit: str, keep: set[int]) -> None:
        """Lines `first` to `last` one step further in, but those inside a string (`keep`)."""
        for number in range(first, last + 1):
            start = self._starts[number - 1]
            if number not in keep and self.text[start : start + 1] not in ("", "\r", "\n"):
                self._add(start, start, unit, (0, 0))

    def indent(self, offset: int) -> str:
        """The indentation of the line of a place."""
        return _indent(self.text[self._starts[self.line(offset) - 1] :])

    def first_on_line(self, offset: int) -> bool:
        """Whether nothing but indentation stands before a place in its line."""
        return not self.text[self._starts[self.line(offset) - 1] : offset].strip()

    def apply(self) -> str:
        """The changed text."""
        out, at = [], 0
        for edit in sorted(self._edits, key=lambda e: (e.start, e.order)):
            if edit.start < at:  # inside what was replaced
                continue
            out += [self.text[at : edit.start], edit.text]
            at = edit.end
        return "".join([*out, self.text[at:]])

    def __bool__(self) -> bool:
        return bool(self._edits)

    def _add(self, start: int, end: int, text: str, order: tuple[int, int]) -> None:
        self._edits.append(_Edit(start, end, text, order))


def _line_starts(text: str) -> list[int]:
    """Where lines start, as LibCST counts them: an end of line is one of three."""
    starts, at = [0], 0
    while at < len(text):
        if text[at] == "\r" and text[at + 1 : at + 2] == "\n":
            at += 1
        if text[at] in "\r\n":
            starts.append(at + 1)
        at += 1
    return starts


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t\f"))] if text else ""
