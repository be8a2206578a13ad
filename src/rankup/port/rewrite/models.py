"""The models that a script trains, and where a port wraps them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from ...script import roles
from ...script.flow import given
from ...script.models import part_of, with_parameters
from ...script.names import Function, elements, root_name
from ...script.source import File
from .script import Scope, Script

_DEEPEST = 6  # names that are followed from one to the next


@dataclass(frozen=True)
class Model:
    """Something whose parameters an optimizer trains.

    Attributes:
        script: the file in which it is made.
        name: how the script writes it there, `model` or `self.net`.
        scope: the function (or the module) that makes it.
        made: the assignments there; of one that is not seen to be made in a file that a port
            changes the statement that makes its optimizer, or the first one that uses it.
        given: of such a one the expression of which the optimizer has the parameters.
        each: it is a list of models.
    """

    script: Script
    name: str
    scope: Scope
    made: tuple[ast.AST, ...]
    given: ast.expr | None = None
    each: bool = False


@dataclass
class Models:
    """The models of a script, in all files that a port changes.

    Attributes:
        trained: the expressions that make them.
        unresolved: optimizers of which the models cannot be seen.
    """

    models: list[Model] = field(default_factory=list)
    trained: set[ast.AST] = field(default_factory=set)
    unresolved: set[ast.Call] = field(default_factory=set)


def optimizers(script: roles.Script) -> list[tuple[File, ast.Call]]:
    """The calls that make an optimizer, in all files."""
    return [
        (one.file, one.node)
        for one in script.optimizers
        if isinstance(one.node, ast.Call) and given(one.node)
    ]


@lru_cache(maxsize=1)
def models_of(script: Script) -> Models:
    """The models that are trained, of the script itself."""
    understood, found = script.understood, Models()
    models: dict[tuple[str, ast.AST], Model] = {}
    for file, call in optimizers(understood):
        roots = with_parameters(script.flow, file, given(call)[0])
        if not roots:
            found.unresolved.add(call)
        for where, expression in roots:
            one = script.sibling(where)
            made = _made(one, expression, 0)
            if not made and where is file:
                made = _taken(one, expression, call)
            models |= {(model.name, model.scope): model for model in reversed(made)} | models
    found.models = list(models.values())
    found.trained = {one.node for one in understood.models}
    return found


def _taken(script: Script, expression: ast.expr, optimizer: ast.Call) -> list[Model]:
    """The model of an optimizer that is given it in a way that is not seen.

    `self.model` of an instance, or a parameter of a function that calls it, or keeps it.
    """
    name, scope = script.dotted(expression), script.scope(optimizer)
    place = script.statement(optimizer)
    if name in script.parameters(scope) and isinstance(scope, Function):
        called = any(script.dotted(one.func) == name for one in script.inside(scope, ast.Call))
        kept = any(
            isinstance(part, ast.Name) and part.id == name
            for one in script.inside(scope, ast.Assign)
            for part in elements(one.value)
        )
        uses = script.uses(scope, name)
        if not (called or kept) or not uses:
            return []
        place = next(one for one in scope.body if script.file.names.inside(uses[0], one))
    elif (
        script.file not in script.understood.to_port[1:]
        or not name.startswith("self.")
        or name.count(".") > 1
    ):
        return []
    if not script.first_on_line(script.span(place)[0]):
        return []
    return [Model(script, name, scope, (place,), expression)]


def _made(script: Script, expression: ast.AST, depth: int) -> list[Model]:
    """Where the model behind an expression is made, in a file that a port changes."""
    if isinstance(expression, ast.Call) or depth > _DEEPEST:
        return []
    scope = script.scope(expression)
    written = script.dotted(expression) or root_name(expression)
    if written == "self" and isinstance(scope, Function):
        # `model.configure_optimizers(…)`, a method of the model's own
        receivers = [
            (one, call.func.value)
            for one, call in script.callers(scope)
            if isinstance(call.func, ast.Attribute)
        ]
        return [model for where, one in receivers for model in _made(where, one, depth + 1)]
    wholes = _asked(script, written, scope)
    if wholes:
        return [model for where, one in wholes for model in _made(where, one, depth + 1)]
    several = _in_list(script, expression)
    if several is not None:
        return [several]
    while written and depth < _DEEPEST:
        root = written.split(".")[0]
        if root in script.parameters(scope) and root != "self" and isinstance(scope, Function):
            models = []
            for where, call in script.callers(scope):
                value = script.given(scope, root, call)
                if value is not None:
                    models += _made(where, value, depth + 1)
            return models  # the caller's is wrapped, whatever the function assigns to it
        for near in (scope, script.tree):
            made = script.assigned(written, near)
            whole = _called_instead(script, written, [value for _, value in made])
            if whole is not None:
                return _made(script, whole, depth + 1)
            if made and script.file in script.understood.to_port:
                return [Model(script, written, near, tuple(node for node, _ in made))]
        inherited = [
            Model(one, written, method, tuple(node for node, _ in made))
            for one, method in _relatives(script, written, scope)
            if one.file in one.understood.to_port and (made := one.assigned(written, method))
        ]
        if inherited:
            return inherited
        if "." not in written:
            return []
        written = written.rpartition(".")[0]
        if written == "self":
            return []
    return []


def _relatives(script: Script, written: str, scope: Scope) -> Iterator[tuple[Script, Function]]:
    """A method of each class that inherits `self.model` from this one, or the other way round."""
    owner = script.owner(scope) if written.startswith("self.") else None
    if owner is None:
        return
    flow, above = script.flow, {one for _, one in script.flow.family(script.file, owner)}
    for file in flow.files:
        for one in file.names.all(ast.ClassDef):
            related = one in above or owner in {base for _, base in flow.family(file, one)}
            for method in one.body if related and one is not owner else ():
                if isinstance(method, Function):
                    yield script.sibling(file), method
                    break


def _asked(script: Script, written: str, scope: Scope) -> list[tuple[Script, ast.expr]]:
    """`net` of `net.groups()`, a method that gives the parameters of its parts, where it is called.

    Gradients are exchanged of the model that is called, and of no part beside it.
    """
    if not written.startswith("self.") or not isinstance(scope, Function):
        return []
    owner = script.owner(scope)
    if owner is None or script.flow.member(script.file, owner, "forward") is None:
        return []
    found = []
    for where, call in script.callers(scope):
        whole = call.func.value if isinstance(call.func, ast.Attribute) else None
        if whole is not None and where.dotted(whole) in where.called_names - {"", "self"}:
            found.append((where, whole))
    return found


def _in_list(script: Script, expression: ast.AST) -> Model | None:
    """`nets` of `for net in nets`, a list in which each model is made."""
    if not isinstance(expression, ast.Name) or script.file not in script.understood.to_port:
        return None
    _, bindings = script.file.names.bindings(expression.id, script.file.names.scope(expression))
    name = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "item" else None
    if not isinstance(name, ast.Name):
        return None
    for scope in (script.scope(expression), script.tree):
        made = script.assigned(name.id, scope)
        grows = any(
            isinstance(up := script.parents[one], ast.Attribute) and up.attr in ("append", "extend")
            for one in script.uses(scope, name.id)
        )
        lists = [value for _, value in made if isinstance(value, ast.List | ast.ListComp)]
        if made and len(lists) == len(made) and not grows:
            return Model(script, name.id, scope, tuple(node for node, _ in made), each=True)
    return None


def _called_instead(script: Script, name: str, values: list[ast.expr]) -> ast.expr | None:
    """Return the model that is called, where a name holds a part of it that is not: `net.fc`.

    Gradients are exchanged of what is called through its wrapper, and of no part beside it.
    """
    called = script.called_names
    wholes = [part_of(value) for value in values]
    if len(wholes) != 1 or wholes[0] is None or name in called:
        return None
    return wholes[0] if script.dotted(wholes[0]) in called else None
