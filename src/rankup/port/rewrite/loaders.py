"""Which `DataLoader(…)` is behind an expression: through names, parameters and returned tuples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from .expressions import loader_like, root_name, unpacked
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
            for call in script.all(cst.Call)
            if script.name(call.func).split(".")[-1] == "DataLoader"
        ]
        self._passed: dict[cst.CSTNode, set[str]] = {}
        self._known: dict[cst.CSTNode, list[cst.CSTNode]] = {}
        self._left = _MOST

    def of(self, expression: cst.CSTNode) -> cst.CSTNode | None:
        """The `DataLoader(…)`, or the assignment from elsewhere, behind an expression, or None."""
        self._left = _MOST
        return next(self._all(expression, 0), None)

    def all_of(self, expression: cst.CSTNode) -> list[cst.CSTNode]:
        """All that an expression may be: one function may serve training and evaluation."""
        if expression not in self._known:
            self._left = _MOST
            self._known[expression] = list(dict.fromkeys(self._all(expression, 0)))
        return self._known[expression]

    def foreign(self, sources: Iterable[cst.CSTNode]) -> dict[cst.CSTNode, set[str]]:
        """Assignments of loaders from elsewhere, with the names of those that `sources` lead to."""
        self._passed, self._known = {}, {}
        for source in sources:
            self.all_of(source)
        return self._passed

    def _all(self, expression: cst.CSTNode, depth: int) -> Iterator[cst.CSTNode]:
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            return
        script = self.script
        here = [call for call in script.inside(expression, cst.Call) if call in self.calls]
        if here:
            yield from here
            return
        if isinstance(expression, cst.Call):
            function = script.called(expression)
            inner = unpacked(script, expression)
            if inner is not expression:
                yield from self._all(inner, depth + 1)
            elif function is not None and any(
                c in self.calls for c in script.inside(function, cst.Call)
            ):
                yield function
            elif loader_like(script.code(expression.func)):
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
        if given and isinstance(scope, cst.FunctionDef):
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
                made: list[cst.CSTNode] = [one]
                if isinstance(one, cst.FunctionDef):
                    made = self._returned(one, target, written, depth) or [one]
                found = True
                for loader in made:
                    if isinstance(loader, cst.Call) and loader not in self.calls:
                        loader = target
                    if loader is target:
                        self._passed.setdefault(target, set()).add(written)
                    yield loader
        for values in _bound_by_loops(script, written, scope):
            for one in self._all(values, depth + 1):
                found = True
                yield one
        if not found and scope is not script.module and not written.startswith("self."):
            for target, value in assigned(script, written, script.module):
                for one in self._all(value, depth + 1):
                    own = one in self.calls or isinstance(one, cst.FunctionDef)
                    if not own:
                        self._passed.setdefault(target, set()).add(written)
                    yield one if own else target

    def _returned(
        self, function: cst.FunctionDef, assign: cst.CSTNode, name: str, depth: int
    ) -> list[cst.CSTNode]:
        """Which of the loaders that a function returns an assignment gives to a name."""
        script = self.script
        returns = list(script.inside(function.body, cst.Return, deep=False))
        if len(returns) != 1 or not isinstance(assign, cst.Assign):
            return []
        given, target = returns[0].value, assign.targets[0].target
        if isinstance(target, cst.Tuple) and isinstance(given, cst.Tuple):
            names = [script.dotted(one.value) for one in target.elements]
            if len(names) != len(given.elements) or name not in names:
                return []
            given = given.elements[names.index(name)].value
        found = [] if given is None else list(self._all(given, depth + 1))
        return [one for one in found if one in self.calls]


def _parts(expression: cst.CSTNode) -> list[cst.BaseExpression]:
    """What an expression chooses from: `a if train else b`, `{"train": a, "val": b}[phase]`."""
    match expression:
        case cst.IfExp():
            return [expression.body, expression.orelse]
        case cst.Dict():
            return [one.value for one in expression.elements]
        case cst.List() | cst.Tuple():
            return [one.value for one in expression.elements]
        case cst.Subscript(value=cst.Dict() | cst.List() | cst.Tuple() | cst.Attribute()):
            return [expression.value]
    return []


def _bound_by_loops(script: Script, name: str, scope: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The values that a loop written out gives a name: `for phase, loader in [("train", a), …]`."""
    for loop in script.all(cst.For):
        if name not in {one.value for one in script.inside(loop.target, cst.Name)}:
            continue
        if script.scope(loop) is not scope:
            continue
        values = loop.iter
        if isinstance(values, cst.Call) and isinstance(values.func, cst.Attribute):
            if values.func.attr.value not in ("items", "values"):
                continue
            values = values.func.value
        written = script.dotted(values)
        made = [value for _, value in assigned(script, written, scope)] if written else [values]
        yield from (one for one in made if isinstance(one, cst.Dict | cst.List | cst.Tuple))


def holds_loaders(script: Script, expression: cst.BaseExpression) -> bool:
    """Whether it is a list or a dictionary: who goes over it goes over loaders, not batches."""
    func = expression.func if isinstance(expression, cst.Call) else None
    if isinstance(func, cst.Attribute) and func.attr.value in ("items", "values", "keys"):
        return True
    written = script.dotted(expression)
    scope = script.scope(expression)
    made = (
        [expression]
        if not written
        else [
            value
            for where in (scope, script.module)
            for _, value in assigned(script, written, where)
        ]
    )
    kinds = cst.Dict | cst.List | cst.Tuple | cst.DictComp | cst.ListComp
    return bool(made) and all(isinstance(one, kinds) for one in made)
