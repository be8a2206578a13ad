"""The roles in a script that trains: its models, its loaders, and its loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache

from ...script import roles
from ...script.effects import callee, leads_to, trains
from ...script.flow import call_name, given, is_backward
from ...script.loops import drawn_from, gradients_off
from ...script.models import is_loader
from ...script.names import (
    Function,
    assigned,
    bound_in,
    made_of,
    mentioned,
    stored,
    targets_of,
    walk,
    words_in,
)
from ...script.roles import Loop, LoopNode
from ...script.source import File
from ...script.torch_names import LOADER_WRAPPERS, OUR_COLLECTIVES
from .models import Model, Models, models_of, optimizers
from .script import ForNode, Scope, Script, Where

_BATCHES = {"__iter__", "__next__", "next"}
_EACH_ITS_OWN = {"rank0_first", "reduce_scatter"}  # collectives whose value ranks need not share
# `zip` and `chain` have several.
_UNPACKED = LOADER_WRAPPERS - {"zip", "chain", "shard"}


class Training:
    """The roles in one file of a script.

    Attributes:
        models: those that are made in this file.
        unresolved: optimizers of this file of which the models cannot be seen.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.backwards = [
            call for call in script.all(ast.Call) if is_backward(script.flow, script.file, call)
        ]
        own = set(script.functions)
        self.elsewhere = [
            call
            for function, several in script.calls_of.items()
            if len(script.understood.to_port) > 1 and function not in own
            for call in several
            if trains(script.file, script.understood, call)
        ]
        steps = set(filter(self._steps_away, self.elsewhere))
        self._steps = {*self.backwards, *steps}
        self._trainers = self._reaching([*self.backwards, *steps])
        self.loader_calls = [
            call
            for call in script.all(ast.Call)
            if script.name(call.func).split(".")[-1] == "DataLoader"
        ]
        self._loaders: dict[ast.AST, list[ast.AST]] = {}
        self._sources: dict[ast.AST, list[ast.expr]] = {}
        self._derived: dict[ast.AST, set[str]] = {}
        self.loops = self._loops()

    # Loaders.

    def loader_of(self, expression: ast.AST) -> ast.AST | None:
        """The first of the loaders behind an expression, or None."""
        return next(iter(self.all_loaders(expression)), None)

    def loaders_of(self, loop: Loop) -> list[ast.AST]:
        """All that a loop may go over: one function may serve training and evaluation."""
        return [] if loop.source is None else self.all_loaders(loop.source)

    def all_loaders(self, expression: ast.AST) -> list[ast.AST]:
        """The `DataLoader(…)` of this script; for a loader from elsewhere the expression itself."""
        if expression not in self._loaders:
            flow, file = self.script.flow, self.script.file
            found: dict[ast.AST, None] = {}
            for one in flow.origins(file, expression):
                made: list[ast.AST] = []
                if one.file is file and isinstance(one.node, ast.expr):
                    made += [call for call in walk(one.node) if call in self.loader_calls]
                if not made and isinstance(one.node, ast.Call) and is_loader(flow, one) > 0.5:
                    made.append(expression)
                found |= dict.fromkeys(made)
            self._loaders[expression] = list(found)
        return self._loaders[expression]

    def sources(self, loop: Loop) -> list[ast.expr]:
        """The sources of a loop's batches: `loader` of `tqdm(loader)`, of `next(it)`."""
        if loop.node not in self._sources:
            self._sources[loop.node] = self._find_sources(loop)
        return self._sources[loop.node]

    def _find_sources(self, loop: Loop) -> list[ast.expr]:
        found: list[ast.expr] = []
        if isinstance(loop.node, ForNode):
            found = self._begun(loop.source or loop.node.iter, 0)
        trained = [
            self.script.line(call)
            for call in self.script.inside(loop.node.body, ast.Call, deep=False)
            if self._trains_here(call)
        ]
        for call in self.script.inside(loop.node.body, ast.Call, deep=False):
            # What is drawn behind the last backward is for an evaluation, or for the next round.
            behind = trained and self.script.line(call) > max(trained)
            if trained and (not behind or self._goes_on_with(loop.node, call)):
                found += [] if self._only_evaluated(loop, call) else self.drawn(call)
        return list(dict.fromkeys(found))

    def _only_evaluated(self, loop: Loop, call: ast.Call) -> bool:
        """True of a draw without gradients of which nothing comes to what is differentiated."""
        script, place = self.script, self._without_gradients(call)
        if place is None or loop.node not in script.above(place):
            return False
        drawn = mentioned(*assigned(script.statement(call)))
        made = made_of(script.inside(place, ast.stmt, deep=False), drawn, gives=stored)
        first: dict[str, ast.Name] = {}  # of each name behind that place
        for one in script.inside(loop.node.body, ast.Name, deep=False):
            at = script.span(one)
            if at[0] >= script.span(place)[1] and one.id in made:
                first[one.id] = min(first.get(one.id, one), one, key=script.span)
        kept = {name for name, one in first.items() if isinstance(one.ctx, ast.Load)}
        losses = [_loss_names(script, one, loop.node) for one in self.backwards]
        return not kept & self.feeding(loop.node, set().union(*losses))

    def _without_gradients(self, call: ast.Call) -> ast.AST | None:
        """The `with torch.no_grad():` around a draw, or the call of a function that has one."""
        script = self.script
        for up in script.above(call):
            if isinstance(up, Function):
                break
            if gradients_off(script.file, up):
                return up
        function = script.called(call)
        draws = [] if function is None else list(self._draws_in(function))
        off = draws and all(
            any(gradients_off(script.file, up) for up in script.above(one)) for one, _ in draws
        )
        return script.statement(call) if off else None

    def _draws_in(self, function: Function) -> Iterator[tuple[ast.Call, ast.expr]]:
        """The calls in a function that draw a batch, and of what."""
        for one in self.script.inside(function.body, ast.Call, deep=False):
            if (at := drawn_from(one)) is not None:
                yield one, at

    def _goes_on_with(self, node: LoopNode, call: ast.Call) -> bool:
        """True of `x = it.next()` in `while x is not None:`."""
        statement = self.script.statement(call)
        tested = mentioned(node.test) if isinstance(node, ast.While) else set()
        return isinstance(statement, ast.Assign) and bool(tested & stored(*assigned(statement)))

    def drawn(self, call: ast.Call) -> list[ast.expr]:
        """The loaders of `next(it)`, and of a method of the script that calls it."""
        drawn = drawn_from(call)
        found = self._begun(drawn, 0) if drawn is not None else []
        function = self.script.called(call)
        if found or function is None or function in self._trainers:
            return found
        inner = list(self._draws_in(function))
        if any(isinstance(up, LoopNode) for one, _ in inner for up in self.script.above(one)):
            return []  # it goes over the batches itself
        return [source for _, at in inner for source in self._begun(at, 0)]

    def for_evaluation(self, loop: Loop, drawn: ast.Assign) -> bool:
        """True where a training loop draws a batch of a loader that it does not train on."""
        found = [
            one for call in self.script.inside(drawn.value, ast.Call) for one in self.drawn(call)
        ]
        return bool(found) and not set(found) & set(self.sources(loop))

    def _begun(self, node: ast.expr, depth: int) -> list[ast.expr]:
        """The loaders behind an iterator."""
        script = self.script
        if isinstance(node, ast.Call) and script.name(node.func) == "rankup.shard":
            return [node]
        if isinstance(node, ast.Call) and depth < 4:
            function = script.called(node)
            own = self._iterates(node) or (
                function is not None and any(script.inside(function, ast.Yield))
            )
            passes = own or call_name(node) in LOADER_WRAPPERS
            if passes and call_name(node) not in ("range", "trange", "shard"):
                several = own or call_name(node) in ("zip", "chain")
                given_ = given(node) if several else node.args[:1]
                return [one for arg in given_ for one in self._begun(arg, depth + 1)]
        if isinstance(node, ast.Name | ast.Attribute) and depth < 4:
            name, scope = script.dotted(node), script.scope(node)
            values = [v for _, v in self.script.assigned(name, scope)] if name else []
            begun = [one for one in values if isinstance(one, ast.Call)]
            inner = [
                made
                for one in begun
                if call_name(one) not in ("DataLoader", "list")
                for made in self._begun(one, depth + 1)
                if made is not one
            ]
            if inner:
                return inner
        if isinstance(node, ast.Subscript) and self._holds_iterators(node.value):
            return []
        return [node] if self.loader_of(node) is not None else []

    def _holds_iterators(self, node: ast.expr) -> bool:
        """True of `{"a": iter(first), "b": iter(second)}`, which no call can shard."""
        script, name = self.script, self.script.dotted(node)
        values = script.assigned(name, script.scope(node)) if name else []
        return any(
            call_name(call) == "iter"
            for _, value in values
            if isinstance(value, ast.Dict | ast.List | ast.DictComp | ast.ListComp)
            for call in script.inside(value, ast.Call)
        )

    def _iterates(self, call: ast.Call) -> bool:
        """True of `Prefetcher(loader)`, an iterator that the script's files define."""
        found = self.script.flow.class_of(self.script.file, call)
        return found is not None and not _BATCHES.isdisjoint(found[0].names.members(found[1]))

    def draws_ahead(self, call: ast.AST) -> bool:
        """True where such an iterator holds the next batch when it gives one."""
        found = self.script.flow.class_of(self.script.file, call)
        if found is None or not isinstance(call, ast.Call):
            return False
        file, owner = found
        return any(
            isinstance(one, ast.Call) and drawn_from(one) is not None
            for bindings in file.names.attributes(owner).values()
            for binding in bindings
            if binding.node is not None and _method(file, binding.target) not in _BATCHES
            for one in walk(binding.node)
        )

    def derived(self, loop: Loop) -> set[str]:
        """Names that a loop makes of its batch: what may differ from rank to rank."""
        if loop.node not in self._derived:
            self._derived[loop.node] = self._made_of_batch(loop)
        return self._derived[loop.node]

    def _made_of_batch(self, loop: Loop) -> set[str]:
        script, known = self.script, set(loop.batch | loop.losses)
        statements = list(script.inside(loop.node.body, ast.stmt, deep=False))
        for one in statements:
            if not isinstance(one, ast.Assign | ast.AugAssign | ast.AnnAssign):
                continue
            calls = script.inside(one.value or [], ast.Call)
            if any(script.called(call) in self._trainers for call in calls):  # of a step
                known |= stored(*assigned(one))
        return made_of(statements, known, self._of_one_rank, stored)

    @cached_property
    def steps(self) -> dict[Function, list[ast.Call]]:
        """The functions with a backward that a training loop calls, and their backwards."""
        found: dict[Function, list[ast.Call]] = {}
        loops = {one.node for one in self.loops if one.trains}
        for call in self.backwards:
            scope = self.script.scope(call)
            if isinstance(scope, Function) and not loops & set(self.script.above(call)):
                found.setdefault(scope, []).append(call)
        return found

    def given_batches(self, step: Function) -> set[str]:
        """The parameters of a step that may hold something of a batch."""
        script, found = self.script, set[str]()
        callers = script.callers(step)
        here = [call for where, call in callers if where.file is script.file]
        for name in script.parameters(step) - {"self"}:
            values = [script.given(step, name, call) for call in here]
            seen = callers and len(here) == len(callers)
            if not seen or any(map(self._of_a_batch, values)):
                found.add(name)
        return found

    def _of_a_batch(self, value: ast.expr | None) -> bool:
        """True of an argument that is made of a batch, as far as can be seen."""
        if value is None or isinstance(value, ast.Constant):
            return False
        above = set(self.script.above(value))
        loops = [one for one in self.loops if one.trains and one.node in above]
        return not loops or any(mentioned(value) & self.derived(one) for one in loops)

    def feeding(self, where: LoopNode | Scope, losses: set[str]) -> set[str]:
        """The names in a piece of code that losses, or the steps that it calls, are made of."""
        script, found = self.script, set(losses)
        for call in script.inside(where.body, ast.Call, deep=False):
            if call not in self.backwards and self._trains_here(call):
                found |= mentioned(*given(call))
        made = [
            (mentioned(*assigned(one)), mentioned(one.value))
            for one in script.inside(where.body, ast.Assign, ast.AugAssign, deep=False)
            if isinstance(one, ast.Assign | ast.AugAssign)
        ]
        while more := {name for to, of in made if to & found for name in of} - found:
            found |= more
        return found

    def _of_one_rank(self, value: ast.AST) -> set[str]:
        """The names in a value, unless a collective gives it: that is the same on all ranks."""
        called = self.script.name(value.func) if isinstance(value, ast.Call) else ""
        library, _, name = called.partition(".")
        alike = library == "rankup" and name in OUR_COLLECTIVES - _EACH_ITS_OWN
        return set() if alike else mentioned(value)

    # Models, of all files.

    @cached_property
    def _found(self) -> Models:
        return models_of(self.script.sibling(self.script.understood.file))

    @cached_property
    def models(self) -> list[Model]:
        return [one for one in self._found.models if one.script.file is self.script.file]

    @cached_property
    def optimizers(self) -> list[ast.Call]:
        """The calls that make an optimizer in this file."""
        return [
            call for file, call in optimizers(self.script.understood) if file is self.script.file
        ]

    @property
    def unresolved(self) -> list[ast.Call]:
        return [call for call in self.optimizers if call in self._found.unresolved]

    @property
    def trained(self) -> set[ast.AST]:
        """The expressions that make the models that are trained, in any file."""
        return self._found.trained

    def runs_model(self, script: Script, call: ast.Call) -> bool:
        """True of `model(x)` of a model that is trained, in a file of the script."""
        origins = script.flow.origins(script.file, call.func)
        return any(one.node in self.trained for one in origins)

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
        """True where running a statement reaches a backward, here or in another file."""
        calls = self.script.inside(node, ast.Call, deep=False)
        return trains(self.script.file, self.script.understood, *calls)

    def _steps_away(self, call: ast.Call) -> bool:
        """True of a call of a step in another file: no loop over its batches stands there."""
        script = self.script
        found = callee(script.flow, script.file, call)
        return found is not None and not any(
            isinstance(up, LoopNode)
            for where, function in leads_to(script.flow, *found)
            for one in walk(*function.body)
            if isinstance(one, ast.Call) and trains(where, script.understood, one)
            for up in where.names.up(one)
        )

    def _trains_here(self, node: Where) -> bool:
        return any(
            call in self._steps or self.script.called(call) in self._trainers
            for call in self.script.inside(node, ast.Call, deep=False)
        )

    def _loops(self) -> list[Loop]:
        understood = self.script.understood
        several = (*understood.eval_loops, *understood.train_loops)
        found = {one.node: one for one in several}
        return [self._clear(self._loop(found[one])) for one in self.script.loops if one in found]

    def _clear(self, loop: Loop) -> Loop:
        """Say of a training loop whether it may evaluate as well."""
        if not (loop.trains and self.sources(loop)):
            return loop
        around = self._ways_to(loop.node, set())
        unclear = self._by_condition(loop) or any(
            gradients_off(self.script.file, one) for one in around
        )
        return replace(loop, unclear=unclear)

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

    def _by_condition(self, loop: Loop) -> bool:
        """True where all rounds of a loop train, or none does, as a condition has it."""
        script, node = self.script, loop.node
        return any(
            self._condition(node, call) is not None or self._step_by_condition(call)
            for call in script.inside(node.body, ast.Call, deep=False)
            if call in self.backwards or script.called(call) in self._trainers
        )

    def _step_by_condition(self, call: ast.Call) -> bool:
        """True of the call of a step that trains as an argument says, unless that is a constant."""
        script, function = self.script, self.script.called(call)
        if function is None or call in self.backwards:
            return False
        for backward in self.backwards:
            if script.scope(backward) is not function:
                continue
            condition = self._condition(function, backward)
            if condition is None:
                continue
            test, holds = condition
            passed = (
                script.given(function, test.id, call)
                if isinstance(test, ast.Name) and test.id in script.parameters(function)
                else None
            )
            if not isinstance(passed, ast.Constant) or bool(passed.value) is not holds:
                return True
        return False

    def _condition(self, node: LoopNode | Function, call: ast.Call) -> tuple[ast.expr, bool] | None:
        """The test under which a call in a loop or a function runs, and which way it goes."""
        script = self.script
        bound = bound_in(script.inside(node, ast.Name, deep=False))

        def chooses(test: ast.expr) -> bool:
            """False where it depends on the round: on what the loop gives names, or on chance."""
            called = [script.name(one.func) for one in script.inside(test, ast.Call)]
            drawn = any("random" in one or one.startswith("torch.") for one in called)
            counted = any(isinstance(one, ast.BinOp) for one in script.inside(test, ast.BinOp))
            return not (mentioned(test) & bound or drawn or counted)

        inner: ast.AST = call
        for up in script.above(call):
            if up is node:
                break
            if isinstance(up, ast.If) and (inner in up.body or inner in up.orelse):
                here = inner in up.body
                other = up.orelse if here else up.body
                if not self._trains_here(other) and chooses(up.test):
                    return up.test, here
            inner = up
        for one in script.inside(node.body, ast.If, deep=False):
            skips = bool(one.body) and isinstance(one.body[-1], ast.Continue | ast.Return)
            if skips and script.line(one) < script.line(call) and chooses(one.test):
                return one.test, False
        return None

    def _heads(self, node: ForNode) -> list[ast.expr]:
        """The iterable of a loop, and where that is a bar with a name, the iterable of the bar."""
        script, source = self.script, unpacked(self.script, node.iter)
        if not isinstance(source, ast.Name):
            return [node.iter]
        made = [
            (script.line(where), value)
            for where, value in self.script.assigned(source.id, script.scope(node))
            if script.line(where) < script.line(node) and unpacked(script, value) is not value
        ]
        return [node.iter, max(made, key=lambda one: one[0])[1]] if made else [node.iter]

    def _loop(self, found: Loop) -> Loop:
        script, node = self.script, found.node
        loop = replace(found, batch=set(), losses=set())
        if isinstance(node, ForNode):
            heads = self._heads(node)
            names = [n.id for n in script.inside(node.target, ast.Name)]
            counted = any("enumerate" in script.code(one) for one in heads) and len(names) > 1
            index = names.pop(0) if counted else None
            loop = replace(loop, source=unpacked(script, heads[-1]), index=index)
            if loop.source is not None and self._begun(loop.source, 0):
                loop.batch.update(names)
        calls = set(script.inside(node, ast.Call))
        for call in self.backwards:
            if call in calls:
                loop.losses.update(_loss_names(script, call, node))
        # What is made of a batch has its first dimension, as far as a script's own words go.
        for assign in script.inside(node.body, ast.Assign, deep=False):
            used = words_in(assign.value)
            drawn = "next(" in script.code(assign.value)
            if drawn and loop.trains and self.for_evaluation(loop, assign):
                continue
            if used & loop.batch or drawn:
                for target in assign.targets:
                    for one in targets_of(target):
                        if isinstance(one, ast.Name) and not _sized(script, assign.value):
                            loop.batch.add(one.id)
        return loop


def _method(file: File, node: ast.AST) -> str:
    function = file.names.function(node)
    return getattr(function, "name", "")


def unpacked(script: Script, expression: ast.expr) -> ast.expr:
    """The iterable behind `enumerate(tqdm(loader))`."""
    while isinstance(expression, ast.Call) and given(expression):
        if script.dotted(expression.func).split(".")[-1] not in _UNPACKED:
            break
        expression = given(expression)[0]
    return expression


def _sized(script: Script, expression: ast.AST) -> bool:
    """True where an expression is a number of samples or a value, no longer a batch."""
    code = script.code(expression)
    ends = (".item()", ".size(0)", ".shape[0]", ".numel()")
    return code.endswith(ends) or code.startswith(("len(", "float(", "int("))


def _loss_names(script: Script, call: ast.Call, loop: LoopNode) -> set[str]:
    """`loss` of `loss.backward()`, `scaler.scale(loss / n).backward()` and the like.

    Not `n`, unless the loop gives it a value: it holds nothing of a batch.
    """
    start = call.func.value if isinstance(call.func, ast.Attribute) else call
    if given(call) and isinstance(start, ast.Name) and start.id in ("torch", "manager", "rankup"):
        start = call
    names = set()
    divisors = {
        name
        for one in script.inside(start, ast.BinOp)
        if isinstance(one.op, ast.Div)
        for name in script.inside(one.right, ast.Name)
    }
    changed = bound_in(walk(loop))
    for name in script.inside(start, ast.Name):
        parent = script.parents.get(name)
        called = isinstance(parent, ast.Call) and parent.func is name
        if not called and (name not in divisors or name.id in changed):
            names.add(name.id)
    return names - {"scaler", "self", "torch", "amp", "rankup"}


@lru_cache(maxsize=1)
def _roles_by_file(script: roles.Script) -> dict[File, Training]:
    return {}


def training_in(script: roles.Script, file: File) -> Training:
    """The roles in one file of a script; values are followed through all of its files."""
    found = _roles_by_file(script)
    if file not in found:
        if script.file not in found:
            found[script.file] = Training(Script(script.file, script))
        if file is not script.file:
            found[file] = Training(found[script.file].script.sibling(file))
    return found[file]
