"""Values of expressions, known or not, and Python's operations on them.

The operations are those that make names and paths.
"""

from __future__ import annotations

import ast
import itertools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from .torch_names import words

MOST_VALUES = 64  # of one expression
_MOST_TEXT = 4096


@dataclass(frozen=True)
class Known:
    """All values that an expression may have."""

    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        """The only value, where that is a text; else empty."""
        one = self.values[0] if len(self.values) == 1 else None
        return one if isinstance(one, str) else ""

    @property
    def truth(self) -> bool | None:
        """True where all values are true, False where all are false; else None."""
        truths = {bool(value) for value in self.values}
        return truths.pop() if len(truths) == 1 else None


@dataclass(frozen=True)
class Unknown:
    """The reason why the values are not known, to follow a place: `model is computed`."""

    why: str
    values: ClassVar[tuple[Any, ...]] = ()
    text: ClassVar[str] = ""
    truth: ClassVar[bool | None] = None


Value: TypeAlias = Known | Unknown
COMPUTED = Unknown("it is computed")
INVOLVED = Unknown("it is too involved to be followed")


def combined(parts: Sequence[Value], make: Callable[..., Any]) -> Value:
    """All that can be made of the values of several parts; why not, of the first unknown one."""
    unknown = next((one for one in parts if isinstance(one, Unknown)), None)
    if unknown is not None:
        return unknown
    several = itertools.islice(itertools.product(*(one.values for one in parts)), MOST_VALUES + 1)
    try:
        made = tuple(dict.fromkeys(make(*one) for one in several))
    except (TypeError, ValueError, LookupError, AttributeError):
        return COMPUTED
    long = any(isinstance(one, str) and len(one) > _MOST_TEXT for one in made)
    return INVOLVED if long or len(made) > MOST_VALUES else Known(made)


def at(value: Value, path: tuple[int, ...]) -> Value:
    """Parts of a value that is a tuple, or tuples in one."""
    if isinstance(value, Unknown) or not path:
        return value
    found = []
    for one in value.values:
        for number in path:
            if not isinstance(one, tuple) or number >= len(one):
                return COMPUTED
            one = one[number]
        found.append(one)
    return Known(tuple(dict.fromkeys(found)))


# Python's operations on known values, as far as they make names and paths. Each raises TypeError,
# ValueError or AttributeError where the script would, and ValueError where its result is large.


def compared(op: ast.cmpop, left: Value, right: Value) -> bool | None:
    """True where a comparison of two values holds; None where that is not known."""
    compare = _COMPARISONS.get(type(op))
    if compare is None or len(left.values) != 1 or len(right.values) != 1:
        return None
    try:
        return bool(compare(left.values[0], right.values[0]))
    except TypeError:
        return None


def _text(value: Any) -> str:
    """The text of a value within another."""
    if not isinstance(value, str | int | float | None):
        raise TypeError
    return str(value)


def _same(value: Any) -> Any:
    return value


def joined(*parts: Any) -> str:
    return "".join(map(_text, parts))


def _added(left: Any, right: Any) -> Any:
    if type(left) is not type(right) or not isinstance(left, str | tuple | int):
        raise TypeError
    if isinstance(left, str | tuple) and len(left) + len(right) > _MOST_TEXT:
        raise ValueError
    return left + right


def join_path(*parts: Any) -> str:
    """`Path(*parts)` and `os.path.join(*parts)` as text."""
    if not all(isinstance(part, str) for part in parts):
        raise TypeError
    return os.path.join(*parts) if parts else "."


def formatted(text: Any, *values: Any) -> str:
    """`text % values` of `%s` and `%d` alone; a width could ask for gigabytes."""
    return _filled(text.replace("%d", "%s").split("%s"), "%", values)


def _braced(text: Any, *values: Any) -> str:
    """`text.format(*values)` of `{}` alone."""
    return _filled(text.split("{}"), "{}", values)


def _filled(pieces: list[str], special: str, values: Sequence[Any]) -> str:
    if len(pieces) != len(values) + 1 or any(c in piece for piece in pieces for c in special):
        raise ValueError
    texts = [*map(_text, values), ""]
    return "".join(piece + text for piece, text in zip(pieces, texts, strict=True))


def _replaced(text: Any, old: Any, new: Any) -> str:
    if (text.count(old) + 1) * len(new) > _MOST_TEXT:
        raise ValueError
    return str(text.replace(old, new))


_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, several: item in several,
    ast.NotIn: lambda item, several: item not in several,
}
OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: _added,
    ast.Div: join_path,
    ast.Mod: formatted,
}
METHODS: Mapping[str, Callable[..., Any]] = {
    # Of a path, as far as its name goes.
    **dict.fromkeys(("resolve", "expanduser", "absolute", "as_posix"), _same),
    "joinpath": join_path,
    "strip": lambda text: text.strip(),
    "lower": lambda text: text.lower(),
    "upper": lambda text: text.upper(),
    "replace": _replaced,
    "removeprefix": lambda text, other: text.removeprefix(other),
    "format": _braced,
}
JOINS = words("os.path.join posixpath.join pathlib.Path pathlib.PurePath")
EXISTS = words("os.path.exists os.path.isfile os.path.isdir os.path.lexists")
# Calls whose value is that of their first argument, as far as a name goes.
FIRST: Mapping[str, Callable[..., Any]] = dict.fromkeys(
    words(
        "builtins.str builtins.list builtins.tuple builtins.sorted os.fspath os.path.expanduser "
        "os.path.expandvars os.path.abspath os.path.normpath os.path.realpath "
        "urllib.request.Request"
    ),
    _same,
)
