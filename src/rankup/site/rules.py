"""The tables and keys that a TOML file may hold, and the words for what it holds instead.

A dataclass whose fields are each a `setting` is both: the rules of a table, and what is made of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

from ..base import gone
from ..base.errors import UserError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """One value: how a message names it, and whether a value is one."""

    expected: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True)
class Table:
    """A table with known keys, none of which has to be there."""

    keys: Mapping[str, Rule]


@dataclass(frozen=True)
class Each:
    """A table whose keys are free, as long as they are `name`; all values follow one rule."""

    name: Kind
    rule: Rule


Rule: TypeAlias = Kind | Table | Each


def setting(rule: Rule, default: Any = MISSING) -> Any:
    """Return a field of a dataclass that the table's key of that name sets.

    Args:
        default: without the key; `dict` for an empty mapping.
    """
    if default is dict:
        return field(default_factory=dict, metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule})


def table(kind: type[Any]) -> Table:
    """Return the rules of a dataclass's table."""
    keys = {one.name: one.metadata["rule"] for one in fields(kind) if "rule" in one.metadata}
    return Table(keys)


def make(kind: type[T], values: Mapping[str, Any], /, **others: Any) -> T:
    """Return a dataclass made of a table that was checked; lists become tuples.

    Args:
        others: fields that are no keys, or that are made of more than their key.
    """
    said = {name: _frozen(values[name]) for name in table(kind).keys if name in values}
    return kind(**{**said, **others})


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value


def check(value: Any, rule: Rule, where: str, key: str = "") -> None:
    """Hold `value` against `rule`; `where` names the file, `key` the place in it, with dots.

    Raises:
        UserError: the file, the key, what was found there and what was expected.
    """
    if isinstance(rule, Kind):
        if not rule.accepts(value):
            raise UserError(f"{where}: {key} must be {rule.expected}, found {_short(value)}")
        return
    if not isinstance(value, dict):
        raise UserError(f"{where}: {key} must be a table, found {_short(value)}")
    for word, inner in value.items():
        place = f"{key}.{word}" if key else word
        if isinstance(rule, Each):
            if not rule.name.accepts(word):
                raise UserError(f"{where}: {key}: {_short(word)} is not {rule.name.expected}")
            check(inner, rule.rule, where, place)
        else:
            if word not in rule.keys:
                gone.refuse("rankup.toml", place)
                raise UserError(f"{where}: unknown key {_short(place)}; {nearest(word, rule.keys)}")
            check(inner, rule.keys[word], where, place)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of `below` with those of `above` laid over them, key by key.

    A value that is no table, a list too, replaces the one below it.
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value = merge(old, value)
        merged[key] = value
    return merged


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of nested tables with its value, the tables too: `partitions.booster.gpus`."""
    for key, value in values.items():
        yield prefix + key, value
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _one_line(value: Any) -> bool:
    # What stands in a profile ends up in a job script: a line break there would be a second line.
    return isinstance(value, str) and value.isprintable()


def _pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


def whole(minimum: int) -> Kind:
    """A whole number of `minimum` or more; `true` is none."""
    return Kind(
        f"a whole number of {minimum} or more",
        lambda value: type(value) is int and value >= minimum,
    )


def one_of(*words: str) -> Kind:
    """One of these words."""
    named = f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
    return Kind(named, lambda value: isinstance(value, str) and value in words)


def list_of(kind: Kind, expected: str) -> Kind:
    """A list, each of whose items is `kind`."""
    return Kind(expected, lambda value: isinstance(value, list) and all(map(kind.accepts, value)))


STRING = Kind("a string", lambda value: isinstance(value, str))
TEXT = Kind("a string of one line", lambda value: _one_line(value) and bool(value.strip()))
TEXT_OR_NONE = Kind("a string of one line, empty for none", _one_line)
TEXTS = list_of(TEXT, "a list of strings of one line")
YES_OR_NO = Kind("true or false", lambda value: isinstance(value, bool))
POSITIVE = Kind(
    "a number above 0",
    lambda value: type(value) in (int, float) and value > 0 and math.isfinite(value),
)
VARIABLE = Kind(
    "the name of an environment variable (letters, digits, _)",
    lambda value: (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is not None
    ),
)
WORD = Kind(
    "a name without spaces",
    lambda value: _one_line(value) and bool(value) and not any(map(str.isspace, value)),
)
OPTION = Kind(
    "an option that starts with -", lambda value: _one_line(value) and value.startswith("-")
)
OPTIONS = list_of(OPTION, "a list of options that start with -")
FOLDERS = list_of(
    Kind("a path", lambda value: _one_line(value) and value.startswith("/")),
    "a list of absolute paths",
)
PATTERNS = list_of(Kind("a pattern", _pattern), "a list of regular expressions")
