"""Which models a script trains: what its optimizers are made of, followed to where it is made."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...script.names import Function
from .expressions import root_name
from .script import Scope, Script

_DEEPEST = 6  # names that are followed from one to the next


@dataclass(frozen=True)
class Model:
    """Something whose parameters an optimizer trains.

    Attributes:
        name: how the script writes it where it is made, `model` or `self.net`.
        scope: the function (or the module) that makes it.
        made: the assignments there.
    """

    name: str
    scope: Scope
    made: tuple[ast.AST, ...]


def origin(script: Script, expression: ast.AST, depth: int) -> list[Model]:
    """Where the model behind an expression is made."""
    if isinstance(expression, ast.Call) or depth > _DEEPEST:
        return []
    scope = script.scope(expression)
    written = script.dotted(expression) or (root_name(expression) or "")
    if written == "self" and isinstance(scope, Function):
        # `model.configure_optimizers(…)`, a method of the model's own
        callers = [call.func for call in script.calls_of.get(scope, [])]
        receivers = [func.value for func in callers if isinstance(func, ast.Attribute)]
        return [model for one in receivers for model in origin(script, one, depth + 1)]
    while written and depth < _DEEPEST:
        root = written.split(".")[0]
        if root in script.parameters(scope) and root != "self" and isinstance(scope, Function):
            models = []
            for call in script.calls_of.get(scope, []):
                value = script.given(scope, root, call)
                if value is not None:
                    models += origin(script, value, depth + 1)
            return models  # the caller's is wrapped, whatever the function assigns to it
        for where in (scope, script.tree):
            made = [node for node, _ in assigned(script, written, where)]
            if made:
                return [Model(written, where, tuple(made))]
        if "." not in written:
            return []
        written = written.rpartition(".")[0]
        if written == "self":
            return []
    return []


def assigned(script: Script, name: str, scope: Scope) -> list[tuple[ast.AST, ast.expr]]:
    """Assignments to a name in a scope (of an attribute of self: anywhere in the class)."""
    found: list[tuple[ast.AST, ast.expr]] = []
    for node in script.all(ast.Assign):
        for target in node.targets:
            for one, value in _pairs(target, node.value):
                if script.dotted(one) == name and _same_scope(script, name, node, scope):
                    found.append((node, value))
    found += [
        (node, node.value)
        for node in script.all(ast.AnnAssign)
        if node.value is not None
        and script.dotted(node.target) == name
        and _same_scope(script, name, node, scope)
    ]
    return found


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What each name of an assignment is given: `a, b = 1, 2`, or all of `a, b = pair`."""
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value)]
    parts = target.elts
    values = [value] * len(parts)
    inside = value.elts if isinstance(value, ast.Tuple | ast.List) else ()
    if len(inside) == len(parts) and not any(isinstance(o, ast.Starred) for o in inside):
        values = list(inside)
    return [pair for one, what in zip(parts, values, strict=True) for pair in _pairs(one, what)]


def _same_scope(script: Script, name: str, node: ast.AST, scope: Scope) -> bool:
    own = script.scope(node)
    if own is scope:
        return True
    if name.startswith("self."):
        owner = script.owner(own)
        return owner is not None and owner is script.owner(scope)
    if isinstance(own, Function) and scope is script.tree:
        return any(name in line.names for line in script.inside(own, ast.Global))
    return False
