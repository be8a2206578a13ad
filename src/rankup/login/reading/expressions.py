"""What is made of several parts is worth all that can be made of what its parts are worth."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .functions import call_of
from .names import Names
from .operations import MOST_TEXT, added, formatted, path_of, text_of
from .scopes import Scope
from .worth import COMPUTED, INVOLVED, MOST_VALUES, Known, Unknown, Value


class Evaluator(Protocol):
    """Who says what the parts are worth: `values.Values`."""

    @property
    def names(self) -> Names: ...

    def of(self, node: ast.AST | None, scope: Scope, depth: int = 0) -> Value: ...

    def exists(self, text: object) -> bool: ...


def combined(
    values: Evaluator,
    parts: Sequence[ast.expr],
    scope: Scope,
    depth: int,
    make: Callable[[Sequence[Any]], Any],
) -> Value:
    """All that can be made of what the parts are worth."""
    worth = []
    for part in parts:
        value = values.of(part, scope, depth)
        if isinstance(value, Unknown):
            return value
        worth.append(value.values)
    several = itertools.islice(itertools.product(*worth), MOST_VALUES + 1)
    try:
        made = tuple(dict.fromkeys(make(one) for one in several))
    except (TypeError, ValueError, LookupError, AttributeError):
        return COMPUTED
    if len(made) > MOST_VALUES or any(isinstance(m, str) and len(m) > MOST_TEXT for m in made):
        return INVOLVED
    return Known(made)


def joined(values: Evaluator, parts: Sequence[ast.expr], scope: Scope, depth: int) -> Value:
    return combined(values, parts, scope, depth, lambda texts: "".join(map(text_of, texts)))


def binary(
    values: Evaluator, left: ast.expr, op: ast.operator, right: ast.expr, scope: Scope, depth: int
) -> Value:
    if isinstance(op, ast.Add):
        return combined(values, [left, right], scope, depth, lambda pair: added(*pair))
    if isinstance(op, ast.Div):
        return combined(values, [left, right], scope, depth, lambda pair: path_of(*pair))
    if isinstance(op, ast.Mod) and isinstance(right, ast.Tuple):
        return combined(
            values, [left, *right.elts], scope, depth, lambda p: formatted(p[0], tuple(p[1:]))
        )
    if isinstance(op, ast.Mod):
        return combined(values, [left, right], scope, depth, lambda p: formatted(p[0], (p[1],)))
    return COMPUTED


def first_true(values: Evaluator, parts: Sequence[ast.expr], scope: Scope, depth: int) -> Value:
    found: Value = INVOLVED
    for part in parts:
        found = values.of(part, scope, depth)
        if isinstance(found, Unknown) or all(found.values):
            return found
        if any(found.values):
            return Unknown("it depends on a condition")
    return found


def item(values: Evaluator, value: ast.expr, key: ast.expr, scope: Scope, depth: int) -> Value:
    for table, where in values.names.tables(value, scope):
        wanted = values.of(key, scope, depth)
        if isinstance(wanted, Unknown):
            return wanted
        for name, worth in zip(table.keys, table.values, strict=True):
            if name is not None and values.of(name, where, depth) == wanted:
                return values.of(worth, where, depth)
        return Unknown("it is in no table here")
    if values.names.dotted(value, scope) == "os.environ":
        return of_environment(values, key, scope, depth)
    return combined(values, [value, key], scope, depth, lambda pair: pair[0][pair[1]])


def of_environment(values: Evaluator, name: ast.expr, scope: Scope, depth: int) -> Unknown:
    """The job's environment is not this one: of a variable only its name is known."""
    found = values.of(name, scope, depth)
    return Unknown(
        f"it depends on ${found.values[0]}" if isinstance(found, Known) else "it is computed"
    )


def call(values: Evaluator, node: ast.Call, scope: Scope, depth: int) -> Value:
    if any(isinstance(one, ast.Starred) for one in node.args):
        return COMPUTED
    dotted = values.names.dotted(node.func, scope) or ""
    if dotted in ("os.getenv", "os.environ.get") and node.args:
        return of_environment(values, node.args[0], scope, depth)
    return call_of(
        node,
        dotted,
        lambda part: values.of(part, scope, depth),
        lambda parts, make: combined(values, parts, scope, depth, make),
        values.exists,
    )
