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
        made = [call for call in script.inside(expression, cst.Call) if call in self.calls]
        if made:
            yield from made
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
        if isinstance(expression, cst.IfExp):
            yield from self._all(expression.body, depth + 1)
            yield from self._all(expression.orelse, depth + 1)
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
                loader = one
                if isinstance(one, cst.FunctionDef):
                    loader = self._returned(one, target, written, depth) or one
                found = True
                if isinstance(loader, cst.Call) and loader not in self.calls:
                    loader = target
                if loader is target:
                    self._passed.setdefault(target, set()).add(written)
                yield loader
        if not found and scope is not script.module and not written.startswith("self."):
            for target, value in assigned(script, written, script.module):
                for one in self._all(value, depth + 1):
                    own = one in self.calls or isinstance(one, cst.FunctionDef)
                    if not own:
                        self._passed.setdefault(target, set()).add(written)
                    yield one if own else target

    def _returned(
        self, function: cst.FunctionDef, assign: cst.CSTNode, name: str, depth: int
    ) -> cst.CSTNode | None:
        """Which of the loaders that a function returns an assignment gives to a name."""
        script = self.script
        returns = list(script.inside(function.body, cst.Return, deep=False))
        if len(returns) != 1 or not isinstance(assign, cst.Assign):
            return None
        given, target = returns[0].value, assign.targets[0].target
        if isinstance(target, cst.Tuple) and isinstance(given, cst.Tuple):
            names = [script.dotted(one.value) for one in target.elements]
            if len(names) != len(given.elements) or name not in names:
                return None
            given = given.elements[names.index(name)].value
        found = next(self._all(given, depth + 1), None) if given is not None else None
        return found if found in self.calls else None
