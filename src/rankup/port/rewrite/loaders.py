"""The `DataLoader(…)` behind an expression: through names, parameters and returned tuples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...script.flow import call_name
from ...script.names import Function
from ...script.torch_names import LOADERS
from .expressions import loader_like, root_name, unpacked, words
from .models import assigned
from .script import Script

_DEEPEST = 6
_MOST = 1000  # steps on the ways to one expression, of which a script may have any number


class Loaders:
    """The loaders of one script.

    Attributes:
        calls: each `DataLoader(…)`, by whatever name it was imported.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls = [
            call
            for call in script.all(ast.Call)
            if script.name(call.func).split(".")[-1] == "DataLoader"
        ]
        self._known: dict[ast.AST, list[ast.AST]] = {}
        self._left = _MOST

    def of(self, expression: ast.AST) -> ast.AST | None:
        """The `DataLoader(…)`, or the assignment from elsewhere, behind an expression, or None."""
        self._left = _MOST
        return next(self._all(expression, 0), None)

    def all_of(self, expression: ast.AST) -> list[ast.AST]:
        """All that an expression may be: one function may serve training and evaluation."""
        if expression not in self._known:
            self._left = _MOST
            self._known[expression] = list(dict.fromkeys(self._all(expression, 0)))
        return self._known[expression]

    def _all(self, expression: ast.AST, depth: int) -> Iterator[ast.AST]:
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            return
        script = self.script
        here = [call for call in script.inside(expression, ast.Call) if call in self.calls]
        if here:
            yield from here
            return
        if isinstance(expression, ast.Call):
            function = script.called(expression)
            inner = unpacked(script, expression)
            if inner is not expression:
                yield from self._all(inner, depth + 1)
            elif function is not None and any(
                c in self.calls for c in script.inside(function, ast.Call)
            ):
                yield function
            elif loader_like(script.code(expression.func)) and not self._other_class(expression):
                yield expression
            return
        parts = _parts(expression)
        if parts:
            for part in parts:
                yield from self._all(part, depth + 1)
            return
        root = root_name(expression)
        if root is None:
            return
        written = script.dotted(expression) or root
        scope = script.scope(expression)
        given = root in script.parameters(scope) and root != "self"
        if given and isinstance(scope, Function):
            for call in script.calls_of.get(scope, []):
                value = script.given(scope, root, call)
                if value is not None:
                    yield from self._all(value, depth + 1)
            return
        found = False
        for target, value in assigned(script, written, scope):
            if value is expression:
                continue
            for one in self._all(value, depth + 1):
                made: list[ast.AST] = [one]
                if isinstance(one, Function):
                    made = self._returned(one, target, written, depth) or [one]
                found = True
                for loader in made:
                    if isinstance(loader, ast.Call) and loader not in self.calls:
                        loader = target
                    yield loader
        for values in _bound_by_loops(script, written, scope):
            for one in self._all(values, depth + 1):
                found = True
                yield one
        if not found and scope is not script.tree and not written.startswith("self."):
            for target, value in assigned(script, written, script.tree):
                for one in self._all(value, depth + 1):
                    found = True
                    own = one in self.calls or isinstance(one, Function)
                    yield one if own else target
        if not found and self._made_elsewhere(expression):
            yield script.statement(expression)

    def _made_elsewhere(self, expression: ast.AST) -> bool:
        """True where another file makes the loader: at its top, or in a function called here."""
        flow, file = self.script.whole_flow, self.script.file
        for one in flow.origins(file, expression):
            if one.file is file or not isinstance(one.node, ast.Call):
                continue
            owner = flow.class_of(one.file, one.node)
            bases = flow.bases(*owner) if owner is not None else ()
            if call_name(one.node) in LOADERS or any(base.endswith("DataLoader") for base in bases):
                return True
        return False

    def _other_class(self, call: ast.Call) -> bool:
        """True where it makes an object of a class of the script that is no DataLoader."""
        flow, file = self.script.whole_flow, self.script.file
        found = flow.definition(file, call.func)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return False
        return not any(base.endswith("DataLoader") for base in flow.bases(found[0], found[1]))

    def _returned(
        self, function: Function, assign: ast.AST, name: str, depth: int
    ) -> list[ast.AST]:
        """The loaders that a function returns and an assignment gives to a name."""
        script = self.script
        returns = list(script.inside(function.body, ast.Return, deep=False))
        if len(returns) != 1 or not isinstance(assign, ast.Assign):
            return []
        given, target = returns[0].value, assign.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(given, ast.Tuple):
            names = [script.dotted(one) for one in target.elts]
            if len(names) != len(given.elts) or name not in names:
                return []
            given = given.elts[names.index(name)]
        found = [] if given is None else list(self._all(given, depth + 1))
        return [one for one in found if one in self.calls]


def _parts(expression: ast.AST) -> list[ast.expr]:
    """The parts of `a if train else b`, and of `{"train": a, "val": b}[phase]`."""
    match expression:
        case ast.IfExp():
            return [expression.body, expression.orelse]
        case ast.Dict():
            return expression.values
        case ast.List() | ast.Tuple():
            return expression.elts
        case ast.Subscript(value=ast.Dict() | ast.List() | ast.Tuple() | ast.Attribute()):
            return [expression.value]
    return []


def _bound_by_loops(script: Script, name: str, scope: ast.AST) -> Iterator[ast.expr]:
    """The values that a loop written out gives a name: `for phase, loader in [("train", a), …]`."""
    for loop in script.loops:
        if isinstance(loop, ast.While) or name not in words(loop.target):
            continue
        if script.scope(loop) is not scope:
            continue
        values = loop.iter
        if isinstance(values, ast.Call) and isinstance(values.func, ast.Attribute):
            if values.func.attr not in ("items", "values"):
                continue
            values = values.func.value
        written = script.dotted(values)
        made = [value for _, value in assigned(script, written, scope)] if written else [values]
        yield from (one for one in made if isinstance(one, ast.Dict | ast.List | ast.Tuple))


def holds_loaders(script: Script, expression: ast.expr) -> bool:
    """True where it is a list or a dictionary: who goes over it goes over loaders, not batches."""
    func = expression.func if isinstance(expression, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr in ("items", "values", "keys"):
        return True
    written = script.dotted(expression)
    scope = script.scope(expression)
    made = (
        [expression]
        if not written
        else [
            value for where in (scope, script.tree) for _, value in assigned(script, written, where)
        ]
    )
    kinds = ast.Dict | ast.List | ast.Tuple | ast.DictComp | ast.ListComp
    return bool(made) and all(isinstance(one, kinds) for one in made)
