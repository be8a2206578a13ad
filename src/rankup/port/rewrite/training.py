"""What a script trains: its models, its loaders, and its loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...script.flow import given
from ...script.loops import is_backward
from ...script.names import Function, walk
from ...script.roles import LoopNode
from ...script.torch_names import EVALUATES
from .expressions import (
    loss_names,
    sized,
    targets_of,
    trains_elsewhere,
    turns_gradients_off,
    unpacked,
    words,
)
from .loaders import Loaders, holds_loaders
from .models import Model, assigned, makes_optimizer, origin, parameter_roots
from .script import ForNode, Scope, Script, Where


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

    node: LoopNode
    trains: bool
    source: ast.expr | None
    batch: set[str] = field(default_factory=set)
    index: str | None = None
    losses: set[str] = field(default_factory=set)
    evaluates: bool = False


class Training:
    """The roles in one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.backwards = [call for call in script.all(ast.Call) if is_backward(script.file, call)]
        self.elsewhere = [call for call in script.all(ast.Call) if trains_elsewhere(script, call)]
        self._trainers = self._reaching(self.backwards)
        self._leading_away = self._reaching(self.elsewhere)
        self._loaders = Loaders(script)
        self.loader_calls = self._loaders.calls
        self.optimizers = [call for call in script.all(ast.Call) if makes_optimizer(script, call)]
        self.unresolved: list[ast.AST] = []
        self.parameter_names: set[str] = set()
        self.models = self._models()
        self.loops = self._loops()

    # Loaders.

    def loader_of(self, expression: ast.AST) -> ast.AST | None:
        """The `DataLoader(…)`, or the assignment from elsewhere, behind an expression, or None."""
        return self._loaders.of(expression)

    def loaders_of(self, loop: Loop) -> list[ast.AST]:
        """All that a loop may go over."""
        return [] if loop.source is None else self._loaders.all_of(loop.source)

    def foreign(self) -> dict[ast.AST, set[str]]:
        """Assignments of loaders from elsewhere, with the names of those that loops go over."""
        return self._loaders.foreign(one.source for one in self.loops if one.source is not None)

    # Models.

    def assigned(self, name: str, scope: Scope) -> list[tuple[ast.AST, ast.expr]]:
        """Assignments to a name in a scope (of an attribute of self: anywhere in the class)."""
        return assigned(self.script, name, scope)

    def _models(self) -> list[Model]:
        found: dict[tuple[str, ast.AST], Model] = {}
        for call in self.optimizers:
            roots = parameter_roots(self.script, given(call)[0], self.script.scope(call))
            if not roots:
                self.unresolved.append(call)
            for expression in roots:
                self.parameter_names.add(self.script.dotted(expression))
                for model in origin(self.script, expression, 0):
                    found.setdefault((model.name, model.scope), model)
        return list(found.values())

    # Loops.

    def _reaching(self, calls: list[ast.Call]) -> set[Function]:
        script = self.script
        reach = {scope for call in calls if isinstance(scope := script.scope(call), Function)}
        while True:
            more = {
                scope
                for function in reach
                for call in script.calls_of.get(function, [])
                if isinstance(scope := script.scope(call), Function)
            } - reach
            if not more:
                return reach
            reach |= more

    def trains(self, node: Where) -> bool:
        """Whether running a statement reaches a backward, here or in another file."""
        return self._trains_here(node) or any(
            call in self.elsewhere or self.script.called(call) in self._leading_away
            for call in self.script.inside(node, ast.Call, deep=False)
        )

    def _trains_here(self, node: Where) -> bool:
        return any(
            call in self.backwards or self.script.called(call) in self._trainers
            for call in self.script.inside(node, ast.Call, deep=False)
        )

    def _loops(self) -> list[Loop]:
        loops = []
        for node in self.script.loops:
            trains = self._trains_here(node.body)
            inner = [
                one
                for one in self.script.inside(node.body, ast.AST, deep=False)
                if isinstance(one, LoopNode)
                and (self._over_batches(one) or self._trains_here(one.body))
            ]
            if trains and not any(self._trains_here(one.body) for one in inner):
                loops.append(self._loop(node, True))
            elif not trains and self._over_batches(node):
                loops.append(self._loop(node, False))
        for loop in loops:
            loop.evaluates = loop.trains and self._evaluates_too(loop)
        return loops

    def _evaluates_too(self, loop: Loop) -> bool:
        if any(turns_gradients_off(self.script, one) for one in self._ways_to(loop.node, set())):
            return True
        if not (EVALUATES.search(self.script.text) and self._may_not_train(loop)):
            return False
        loaders = self.loaders_of(loop)
        return len(loaders) > 1 or any(
            not isinstance(one, ast.Call)
            or any(
                isinstance(
                    up,
                    ast.comprehension
                    | ast.ListComp
                    | ast.DictComp
                    | ast.SetComp
                    | ast.GeneratorExp,
                )
                for up in self.script.above(one)
            )
            for one in loaders
        )

    def _ways_to(self, node: ast.AST, seen: set[ast.AST]) -> Iterator[ast.AST]:
        """All that a node stands in, and that calls of its function do."""
        for up in self.script.above(node):
            yield up
            if isinstance(up, Function):
                if up not in seen:
                    seen.add(up)
                    for call in self.script.calls_of.get(up, []):
                        yield from self._ways_to(call, seen)
                return

    def _may_not_train(self, loop: Loop) -> bool:
        """Whether the backward of a loop happens under a condition."""
        script = self.script
        outer: list[ast.AST] = [loop.node]
        for call in script.inside(loop.node.body, ast.Call, deep=False):
            function = script.called(call)
            if function in self._trainers:
                outer.append(function)
        return any(
            call in self.backwards or script.called(call) in self._trainers
            for node in outer
            for call in script.inside(node, ast.Call)
            if self._conditional(loop, node, call)
        )

    def _conditional(self, loop: Loop, node: ast.AST, call: ast.Call) -> bool:
        """Whether a call in `node` is passed over by a condition; not by one on the loss."""
        script = self.script

        def of_loss(test: ast.expr) -> bool:
            names = words(test)
            return bool(names & loop.losses) or bool(names & {"isfinite", "isnan", "isinf"})

        for up in script.above(call):
            if up is node:
                break
            if isinstance(up, ast.If) and not of_loss(up.test):
                chained = len(up.orelse) == 1 and script.code(up.orelse[0]).startswith("elif")
                if chained or not self._trains_here(up.orelse):
                    return True
        leaves = (ast.Continue, ast.Return, ast.Break)
        return any(
            script.line(one) < script.line(call)
            and not of_loss(one.test)
            and any(isinstance(leaf, leaves) for leaf in walk(*one.body))
            for one in script.inside(node, ast.If, deep=False)
        )

    def _over_batches(self, node: ast.AST) -> bool:
        if not isinstance(node, ForNode):
            return False
        source = unpacked(self.script, self._heads(node)[-1])
        return not holds_loaders(self.script, source) and self.loader_of(source) is not None

    def _heads(self, node: ForNode) -> list[ast.expr]:
        """What a loop goes over, and where that is a bar with a name, what the bar goes over."""
        script, source = self.script, unpacked(self.script, node.iter)
        if not isinstance(source, ast.Name):
            return [node.iter]
        made = [
            (script.line(where), value)
            for where, value in self.assigned(source.id, script.scope(node))
            if script.line(where) < script.line(node) and unpacked(script, value) is not value
        ]
        return [node.iter, max(made, key=lambda one: one[0])[1]] if made else [node.iter]

    def _loop(self, node: LoopNode, trains: bool) -> Loop:
        script = self.script
        loop = Loop(node, trains, None)
        if isinstance(node, ForNode):
            heads = self._heads(node)
            loop.source = unpacked(script, heads[-1])
            names = [n.id for n in script.inside(node.target, ast.Name)]
            if any("enumerate" in script.code(one) for one in heads) and len(names) > 1:
                loop.index = names.pop(0)
            if self.loader_of(loop.source) is not None:
                loop.batch.update(names)
        for call in self.backwards:
            if any(parent is node for parent in script.above(call)):
                loop.losses |= loss_names(script, call)
        # What is made of a batch has its first dimension, as far as a script's own words go.
        for assign in script.inside(node.body, ast.Assign, deep=False):
            used = words(assign.value)
            drawn = "next(" in script.code(assign.value)
            if used & loop.batch or drawn:
                for target in assign.targets:
                    for one in targets_of(target):
                        if isinstance(one, ast.Name) and not sized(script, assign.value):
                            loop.batch.add(one.id)
        return loop
