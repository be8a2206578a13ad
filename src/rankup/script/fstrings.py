"""Positions within f-strings, which Python 3.11 and earlier count wrongly or not at all."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from contextlib import suppress

from .names import walk

_BRACES = re.compile(r"\{\{|\{")  # two of them are one that is shown
_Offset = Callable[[int, int], int]  # of a line and a column in bytes, as `ast` has them


def correct(tree: ast.Module, text: str, offset: _Offset) -> None:
    """Give the nodes within f-strings the positions that Python 3.12 and later give them."""
    if sys.version_info >= (3, 12):
        return
    for node in walk(tree):  # outer ones first
        if isinstance(node, ast.JoinedStr):
            # What this reader does not know keeps the positions that Python has counted.
            with suppress(SyntaxError, StopIteration, tokenize.TokenError):
                _correct_string(node, text, offset)


def _correct_string(node: ast.JoinedStr, text: str, offset: _Offset) -> None:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = offset(node.lineno, node.col_offset)
    code = text[start : offset(node.end_lineno, node.end_col_offset)]
    for value, (begin, end) in _places(code, node):
        before = code[:begin]
        line = before.count("\n") + before.count("\r") - before.count("\r\n")
        _move(value, text, start + begin, start + end, node.lineno - 1 + line)


def _places(code: str, node: ast.JoinedStr) -> list[tuple[ast.expr, tuple[int, int]]]:
    """The values in an f-string, each with its begin and end.

    Raises:
        StopIteration: one is not found: it is within another f-string's format.
    """
    braces = (one for string in _strings(code) for one in _BRACES.finditer(code, *string))
    openings = [one.end() for one in braces if one[0] == "{"]
    found: list[tuple[ast.expr, tuple[int, int]]] = []
    for value in _values(node):
        at = found[-1][1][1] if found else 0
        places = (
            (begin, end)
            for begin in openings
            for end in range(begin + 1, len(code))
            if begin > at and code[end] in "}!:="
        )
        found.append((value, next(one for one in places if _is(value, code[slice(*one)]))))
    return found


def _is(value: ast.expr, code: str) -> bool:
    """True where a piece of code is this expression."""
    try:
        return ast.dump(ast.parse(f"({code})", mode="eval").body) == ast.dump(value)
    except (SyntaxError, ValueError):
        return False


def _values(node: ast.JoinedStr) -> Iterator[ast.expr]:
    """The values in an f-string, in the order of the text; those in a format, too."""
    for one in node.values:
        if isinstance(one, ast.FormattedValue):
            yield one.value
            if isinstance(one.format_spec, ast.JoinedStr):
                yield from _values(one.format_spec)


def _strings(code: str) -> Iterator[tuple[int, int]]:
    """Begin and end of what each f-string of a row of strings holds."""
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(f"({code})").readline):
        if token.type == tokenize.STRING:
            prefix = re.match(r"\w*", token.string)[0].lower()  # type: ignore[index]
            if "f" in prefix:
                row, column = token.start
                begin = starts[row - 1] + column - (row == 1) + len(prefix)
                quotes = 3 if code[begin : begin + 3] in ('"""', "'''") else 1
                end = begin - len(prefix) + len(token.string) - quotes
                yield begin + quotes, end


def _move(value: ast.expr, text: str, start: int, end: int, line: int) -> None:
    """Copy the positions of the same expression, parsed at its place, onto its nodes.

    Args:
        line: the lines above.
    """
    begin = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    column = len(text[begin:start].encode())
    parsed = ast.parse(f"({text[start:end]})", mode="eval").body
    if parsed.col_offset == 0 and parsed.lineno == 1:  # a tuple without parentheses of its own
        parsed.col_offset, parsed.end_col_offset = 1, (parsed.end_col_offset or 1) - 1
    for one, other in zip(ast.walk(value), ast.walk(parsed), strict=True):
        if not hasattr(other, "lineno"):
            continue
        for row, place in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
            number = getattr(other, row)
            setattr(one, row, number + line)
            setattr(one, place, getattr(other, place) + (column - 1 if number == 1 else 0))
