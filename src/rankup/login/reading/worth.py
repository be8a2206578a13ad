"""What an expression is worth: everything it may be, or why that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Known:
    """Everything that an expression may be worth."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Unknown:
    """Why it is not known, to follow a place: `model is computed`."""

    why: str


Value: TypeAlias = Known | Unknown
Options: TypeAlias = Mapping[str, Value]
INVOLVED = Unknown("it is too involved to be followed")
COMPUTED = Unknown("it is computed")
MOST_VALUES = 64  # of one expression


def at(value: Value, index: tuple[int, ...]) -> Value:
    """Parts of a value that is a tuple, or tuples in one."""
    if isinstance(value, Unknown) or not index:
        return value
    found = []
    for one in value.values:
        for number in index:
            if not isinstance(one, tuple) or number >= len(one):
                return COMPUTED
            one = one[number]
        found.append(one)
    return Known(tuple(dict.fromkeys(found)))
