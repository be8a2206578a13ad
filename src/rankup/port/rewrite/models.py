"""Which models a script trains: what its optimizers are made of, followed to where it is made."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...script.flow import call_name, given
from ...script.models import is_optimizer_call
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


def makes_optimizer(script: Script, call: ast.Call) -> bool:
    """Whether a call makes an optimizer, of torch or of another that is given parameters."""
    if not given(call):
        return False
    name = script.name(call.func)
    known = is_optimizer_call(script.file, call) and ".swa_utils" not in name
    code = script.code(given(call)[0])
    return (
        known
        or _chosen(script, call)
        or (
            ".parameters()" in code
            and name.split(".")[-1]
            not in ("sum", "list", "filter", "clip_grad_norm_", "map", "chain", "len")
            and name.split(".")[-1][:1].isupper()
        )
    )


def _chosen(script: Script, call: ast.Call) -> bool:
    """True of `getattr(torch.optim, name)(…)`, and of `args.optimizer(parameters)`."""
    func = call.func
    if isinstance(func, ast.Call) and call_name(func) == "getattr" and given(func):
        return script.name(given(func)[0]) == "torch.optim"
    name = call_name(call).lower()
    return (
        "optim" in name
        and script.called(call) is None
        and bool(parameter_roots(script, given(call)[0], script.scope(call)))
    )


def parameter_roots(script: Script, node: ast.AST, scope: Scope, depth: int = 0) -> list[ast.AST]:
    """Expressions `x` of the `x.parameters()` that an optimizer is given."""
    roots: list[ast.AST] = [
        call.func.value
        for call in script.inside(node, ast.Call)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("parameters", "named_parameters")
    ]
    if not roots and depth < 3:
        for name in script.inside(node, ast.Name):
            for _, value in assigned(script, name.id, scope):
                roots += parameter_roots(script, value, scope, depth + 1)
            for head in _filled_over(script, name.id, scope):
                roots += parameter_roots(script, head, scope, depth + 1)
    return roots


def _filled_over(script: Script, name: str, scope: Scope) -> list[ast.expr]:
    """Return what loops go over that fill a list: `for p in net.parameters(): found.append(p)`."""
    calls = [
        call
        for call in script.inside(scope, ast.Call, deep=False)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "extend")
        and script.dotted(call.func.value) == name
    ]
    loops = {up: None for call in calls for up in script.above(call) if isinstance(up, ast.For)}
    return [loop.iter for loop in loops]


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
