"""Python's operations on values that are known, as far as they make names and paths.

Each raises TypeError, ValueError or AttributeError where the script would, and ValueError where the
result would be large.
"""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from .worth import Unknown, Value

MOST_TEXT = 4096


def compared(op: ast.cmpop, left: Value, right: Value) -> bool | None:
    """Whether a comparison of two values holds; None where that is not known."""
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return None
    if len(left.values) > 1 or len(right.values) > 1:
        return None
    (a,), (b,) = left.values, right.values
    try:
        match op:
            case ast.Eq():
                return bool(a == b)
            case ast.NotEq():
                return bool(a != b)
            case ast.Is():
                return a is b
            case ast.IsNot():
                return a is not b
            case ast.In():
                return a in b
            case ast.NotIn():
                return a not in b
    except TypeError:
        pass
    return None


def text_of(value: Any) -> str:
    """What a value becomes within a text."""
    if not isinstance(value, str | int | float | None):
        raise TypeError
    return str(value)


def added(left: Any, right: Any) -> Any:
    """`left + right` of two texts, tuples or numbers."""
    if type(left) is not type(right) or not isinstance(left, str | tuple | int):
        raise TypeError
    if isinstance(left, str | tuple) and len(left) + len(right) > MOST_TEXT:
        raise ValueError
    return left + right


def path_of(*parts: Any) -> str:
    """`Path(*parts)` and `os.path.join(*parts)` as text."""
    if not all(isinstance(part, str) for part in parts):
        raise TypeError
    return os.path.join(*parts) if parts else "."


def formatted(text: Any, values: tuple[Any, ...]) -> str:
    """`text % values` of `%s` and `%d` alone; a width could ask for gigabytes."""
    pieces = text.replace("%d", "%s").split("%s")
    if any("%" in piece for piece in pieces):
        raise ValueError
    return _filled(pieces, values)


def _braced(text: Any, values: tuple[Any, ...]) -> str:
    """`text.format(*values)` of `{}` alone."""
    pieces = text.split("{}")
    if any(c in piece for piece in pieces for c in "{}"):
        raise ValueError
    return _filled(pieces, values)


def _filled(pieces: list[str], values: tuple[Any, ...]) -> str:
    if len(pieces) != len(values) + 1:
        raise ValueError
    return "".join(
        a + b for a, b in itertools.zip_longest(pieces, map(text_of, values), fillvalue="")
    )


def _replaced(text: Any, old: Any, new: Any) -> str:
    if (text.count(old) + 1) * len(new) > MOST_TEXT:
        raise ValueError
    return str(text.replace(old, new))


METHODS: Mapping[str, Callable[..., Any]] = {
    "joinpath": lambda *parts: path_of(*parts),
    "lower": lambda text: text.lower(),
    "upper": lambda text: text.upper(),
    "replace": _replaced,
    "removeprefix": lambda text, other: text.removeprefix(other),
    "format": lambda text, *values: _braced(text, values),
}
