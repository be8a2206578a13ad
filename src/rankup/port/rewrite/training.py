"""What a script trains: its models, its loaders, and its loops."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from .expressions import (
    attribute,
    loader_like,
    loss_names,
    root_name,
    sized,
    targets_of,
    trains_elsewhere,
    unpacked,
)
from .models import Model, assigned, makes_optimizer, origin, parameter_roots
from .script import Scope, Script


@dataclass(eq=False)
class Loop:
    """A loop over batches.

    Attributes:
        node: the loop.
        trains: whether a backward happens in it.
        source: what is iterated over, without `enumerate`, `tqdm` and the like.
        batch: names that hold the batch, or what was made of it.
        index: the name that `enumerate` counts with.
        losses: names of what the backward starts from.
    """

    node: cst.For | cst.While
    trains: bool
    source: cst.BaseExpression | None
    batch: set[str] = field(default_factory=set)
    index: str | None = None
    losses: set[str] = field(default_factory=set)


class Training:
    """The roles in one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.backwards = [
            call for call in script.all(cst.Call) if attribute(call) == "backward"
        ] + [
            call
            for call in script.all(cst.Call)
            if script.name(call.func) == "torch.autograd.backward"
        ]
        self.elsewhere = [call for call in script.all(cst.Call) if trains_elsewhere(script, call)]
        self._trainers = self._reaching(self.backwards)
        self._leading_away = self._reaching(self.elsewhere)
        self.loader_calls = [call for call in script.all(cst.Call) if self.makes_loader(call)]
        self.optimizers = [call for call in script.all(cst.Call) if makes_optimizer(script, call)]
        self.unresolved: list[cst.CSTNode] = []
        self.parameter_names: set[str] = set()
        self.models = self._models()
        self.loops = self._loops()

    # Loaders.

    def makes_loader(self, call: cst.Call) -> bool:
        """Whether a call is `DataLoader(…)`, by whatever name it was imported."""
        return self.script.name(call.func).split(".")[-1] == "DataLoader"

    def loader_of(self, expression: cst.CSTNode, depth: int = 0) -> cst.CSTNode | None:
        """The `DataLoader(…)`, or the assignment from elsewhere, behind an expression, or None."""
        if depth > 6:
            return None
        script = self.script
        for call in script.inside(expression, cst.Call):
            if call in self.loader_calls:
                return call
        if isinstance(expression, cst.Call):
            function = script.called(expression)
            inner = unpacked(script, expression)
            if inner is not expression:
                return self.loader_of(inner, depth + 1)
            if function is not None and any(
                c in self.loader_calls for c in script.inside(function, cst.Call)
            ):
                return function
            return expression if loader_like(script.code(expression.func)) else None
        root = root_name(expression)
        if root is None:
            return None
        written = script.dotted(expression) or root
        scope = script.scope(expression)
        given = root in script.parameters(scope) and root != "self"
        if given and isinstance(scope, cst.FunctionDef):
            for call in script.calls_of.get(scope, []):
                value = script.given(scope, root, call)
                if value is not None:
                    found = self.loader_of(value, depth + 1)
                    if found is not None:
                        return found
            return None
        for target, value in self.assigned(written, scope):
            if value is expression:
                continue
            found = self.loader_of(value, depth + 1)
            if isinstance(found, cst.FunctionDef):
                found = self._returned(found, target, written, depth) or found
            if found is not None:
                return (
                    target
                    if isinstance(found, cst.Call) and found not in self.loader_calls
                    else found
                )
        if scope is not script.module and not written.startswith("self."):
            for target, value in self.assigned(written, script.module):
                found = self.loader_of(value, depth + 1)
                if found is not None:
                    own = found in self.loader_calls or isinstance(found, cst.FunctionDef)
                    return found if own else target
        return None

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
        found = self.loader_of(given, depth + 1) if given is not None else None
        return found if found in self.loader_calls else None

    # Models.

    def assigned(self, name: str, scope: Scope) -> list[tuple[cst.CSTNode, cst.BaseExpression]]:
        """Assignments to a name in a scope (of an attribute of self: anywhere in the class)."""
        return assigned(self.script, name, scope)

    def _models(self) -> list[Model]:
        found: dict[tuple[str, cst.CSTNode], Model] = {}
        for call in self.optimizers:
            roots = parameter_roots(self.script, call.args[0].value, self.script.scope(call))
            if not roots:
                self.unresolved.append(call)
            for expression in roots:
                self.parameter_names.add(self.script.dotted(expression))
                for model in origin(self.script, expression, 0):
                    found.setdefault((model.name, model.scope), model)
        return list(found.values())

    # Loops.

    def _reaching(self, calls: list[cst.Call]) -> set[cst.FunctionDef]:
        script = self.script
        reach = {
            scope for call in calls if isinstance(scope := script.scope(call), cst.FunctionDef)
        }
        while True:
            more = {
                scope
                for function in reach
                for call in script.calls_of.get(function, [])
                if isinstance(scope := script.scope(call), cst.FunctionDef)
            } - reach
            if not more:
                return reach
            reach |= more

    def trains(self, node: cst.CSTNode) -> bool:
        """Whether running a statement reaches a backward, here or in another file."""
        return self._trains_here(node) or any(
            call in self.elsewhere or self.script.called(call) in self._leading_away
            for call in self.script.inside(node, cst.Call, deep=False)
        )

    def _trains_here(self, node: cst.CSTNode) -> bool:
        return any(
            call in self.backwards or self.script.called(call) in self._trainers
            for call in self.script.inside(node, cst.Call, deep=False)
        )

    def _loops(self) -> list[Loop]:
        loops = []
        found: list[cst.For | cst.While] = [
            *self.script.all(cst.For),
            *self.script.all(cst.While),
        ]
        for node in sorted(found, key=self.script.line):
            trains = self._trains_here(node.body)
            inner = [
                one
                for kind in (cst.For, cst.While)
                for one in self.script.inside(node.body, kind, deep=False)
                if self._over_batches(one) or self._trains_here(one.body)  # type: ignore[attr-defined]
            ]
            if trains and not any(self._trains_here(one.body) for one in inner):  # type: ignore[attr-defined]
                loops.append(self._loop(node, True))
            elif not trains and self._over_batches(node):
                loops.append(self._loop(node, False))
        return loops

    def _over_batches(self, node: cst.CSTNode) -> bool:
        return (
            isinstance(node, cst.For)
            and self.loader_of(unpacked(self.script, self._heads(node)[-1])) is not None
        )

    def _heads(self, node: cst.For) -> list[cst.BaseExpression]:
        """What a loop goes over, and where that is a bar with a name, what the bar goes over."""
        script, source = self.script, unpacked(self.script, node.iter)
        if not isinstance(source, cst.Name):
            return [node.iter]
        made = [
            (script.line(where), value)
            for where, value in self.assigned(source.value, script.scope(node))
            if script.line(where) < script.line(node) and unpacked(script, value) is not value
        ]
        return [node.iter, max(made, key=lambda one: one[0])[1]] if made else [node.iter]

    def _loop(self, node: cst.For | cst.While, trains: bool) -> Loop:
        script = self.script
        loop = Loop(node, trains, None)
        if isinstance(node, cst.For):
            heads = self._heads(node)
            loop.source = unpacked(script, heads[-1])
            names = [n.value for n in script.inside(node.target, cst.Name)]
            if any("enumerate" in script.code(one) for one in heads) and len(names) > 1:
                loop.index = names.pop(0)
            if self.loader_of(loop.source) is not None:
                loop.batch.update(names)
        for call in self.backwards:
            if any(parent is node for parent in script.above(call)):
                loop.losses |= loss_names(script, call)
        # What is made of a batch has its first dimension, as far as a script's own words go.
        for assign in script.inside(node.body, cst.Assign, deep=False):
            used = {n.value for n in script.inside(assign.value, cst.Name)}
            drawn = "next(" in script.code(assign.value)
            if used & loop.batch or drawn:
                for target in assign.targets:
                    for one in targets_of(target.target):
                        if isinstance(one, cst.Name) and not sized(script, assign.value):
                            loop.batch.add(one.value)
        return loop
