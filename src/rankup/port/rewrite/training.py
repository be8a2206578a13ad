"""What a script trains: its models, its loaders, and its loops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import libcst as cst

from .expressions import (
    attribute,
    loader_like,
    loss_names,
    root_name,
    sized,
    targets_of,
    trains_elsewhere,
    turns_gradients_off,
    unpacked,
)
from .models import Model, assigned, makes_optimizer, origin, parameter_roots
from .script import Scope, Script

_EVALUATES = re.compile(r"\.eval\(\)|\.train\(\s*[^)\s]")
_MOST = 100  # loaders of one loop; a script of many functions may lead to more ways than that


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
        evaluates: whether it trains, and is gone round in evaluations as well: one function, or
            one loop over phases, for both.
    """

    node: cst.For | cst.While
    trains: bool
    source: cst.BaseExpression | None
    batch: set[str] = field(default_factory=set)
    index: str | None = None
    losses: set[str] = field(default_factory=set)
    evaluates: bool = False


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
        self._passed: dict[cst.CSTNode, set[str]] = {}
        self.unresolved: list[cst.CSTNode] = []
        self.parameter_names: set[str] = set()
        self.models = self._models()
        self.loops = self._loops()

    # Loaders.

    def makes_loader(self, call: cst.Call) -> bool:
        """Whether a call is `DataLoader(…)`, by whatever name it was imported."""
        return self.script.name(call.func).split(".")[-1] == "DataLoader"

    def loader_of(self, expression: cst.CSTNode) -> cst.CSTNode | None:
        """The `DataLoader(…)`, or the assignment from elsewhere, behind an expression, or None."""
        return next(self._loaders(expression, 0), None)

    def loaders_of(self, loop: Loop) -> list[cst.CSTNode]:
        """All that a loop may go over: one function may serve training and evaluation."""
        if loop.source is None:
            return []
        return list(dict.fromkeys(islice(self._loaders(loop.source, 0), _MOST)))

    def foreign(self) -> dict[cst.CSTNode, set[str]]:
        """Assignments of loaders from elsewhere, with the names of those that loops go over."""
        self._passed = {}
        for loop in self.loops:
            self.loaders_of(loop)
        return self._passed

    def _loaders(self, expression: cst.CSTNode, depth: int) -> Iterator[cst.CSTNode]:
        if depth > 6:
            return
        script = self.script
        made = [call for call in script.inside(expression, cst.Call) if call in self.loader_calls]
        if made:
            yield from made
            return
        if isinstance(expression, cst.Call):
            function = script.called(expression)
            inner = unpacked(script, expression)
            if inner is not expression:
                yield from self._loaders(inner, depth + 1)
            elif function is not None and any(
                c in self.loader_calls for c in script.inside(function, cst.Call)
            ):
                yield function
            elif loader_like(script.code(expression.func)):
                yield expression
            return
        if isinstance(expression, cst.IfExp):
            yield from self._loaders(expression.body, depth + 1)
            yield from self._loaders(expression.orelse, depth + 1)
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
                    yield from self._loaders(value, depth + 1)
            return
        found = False
        for target, value in self.assigned(written, scope):
            if value is expression:
                continue
            for one in self._loaders(value, depth + 1):
                loader = one
                if isinstance(one, cst.FunctionDef):
                    loader = self._returned(one, target, written, depth) or one
                found = True
                if isinstance(loader, cst.Call) and loader not in self.loader_calls:
                    loader = target
                if loader is target:
                    self._passed.setdefault(target, set()).add(written)
                yield loader
        if not found and scope is not script.module and not written.startswith("self."):
            for target, value in self.assigned(written, script.module):
                for one in self._loaders(value, depth + 1):
                    own = one in self.loader_calls or isinstance(one, cst.FunctionDef)
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
        found = next(self._loaders(given, depth + 1), None) if given is not None else None
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
        for loop in loops:
            loop.evaluates = loop.trains and self._evaluates_too(loop)
        return loops

    def _evaluates_too(self, loop: Loop) -> bool:
        if any(turns_gradients_off(self.script, one) for one in self._ways_to(loop.node, 0)):
            return True
        if not (_EVALUATES.search(self.script.text) and self._may_not_train(loop)):
            return False
        loaders = self.loaders_of(loop)
        return len(loaders) > 1 or any(
            not isinstance(one, cst.Call)
            or any(isinstance(up, cst.BaseComp) for up in self.script.above(one))
            for one in loaders
        )

    def _ways_to(self, node: cst.CSTNode, depth: int) -> Iterator[cst.CSTNode]:
        """All that a node stands in, and that calls of its function do."""
        for up in self.script.above(node):
            yield up
            if isinstance(up, cst.FunctionDef):
                if depth < 4:
                    for call in self.script.calls_of.get(up, []):
                        yield from self._ways_to(call, depth + 1)
                return

    def _may_not_train(self, loop: Loop) -> bool:
        """Whether the backward of a loop happens under a condition."""
        script = self.script
        outer: list[cst.CSTNode] = [loop.node]
        for call in script.inside(loop.node.body, cst.Call, deep=False):
            function = script.called(call)
            if function in self._trainers:
                outer.append(function)
        for node in outer:
            for call in script.inside(node, cst.Call):
                if call in self.backwards or script.called(call) in self._trainers:
                    for up in script.above(call):
                        if up is node:
                            break
                        if isinstance(up, cst.If | cst.IfExp):
                            return True
        return False

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
