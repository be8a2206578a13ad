"""Which expression a call gives for a parameter of a function."""

from __future__ import annotations

import ast

from .scopes import Function, Scope

SPREAD = ast.Name("*", ast.Load())  # `*words`: which of them it is, is not known


def given(call: ast.Call, name: str, scope: Scope) -> ast.expr | None:
    """What `call` gives for `name` of the function of `scope`; `SPREAD`: what it spreads does."""
    positional = _positional(scope)
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
        if keyword.arg is None:
            return SPREAD
    if name not in positional:
        return None
    bound = scope.parent is not None and scope.parent.kind == "class"
    place = positional.index(name) - (bound and positional[:1] in (["self"], ["cls"]))
    before = call.args[: place + 1]
    if any(isinstance(one, ast.Starred) for one in before):
        return SPREAD
    return before[place] if 0 <= place < len(call.args) else None


def default_of(scope: Scope, name: str) -> ast.expr | None:
    """What a parameter is where it is not given; None where it has to be."""
    assert isinstance(scope.node, Function)
    arguments = scope.node.args
    every = _positional(scope)
    if name in every and arguments.defaults:
        place = every.index(name) - (len(every) - len(arguments.defaults))
        return arguments.defaults[place] if place >= 0 else None
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.arg == name:
            return default
    return None


def _positional(scope: Scope) -> list[str]:
    assert isinstance(scope.node, Function)
    arguments = scope.node.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
