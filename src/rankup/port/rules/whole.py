"""The numbers of a training step: behind `rankup.backward(loss)` the loss is of the whole batch.

What else a loop counts, shows or returns of its batch is put together where it is seen to be a sum
over samples, or the mean that is differentiated; the rest is rank 0's, and is said to be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ...script.flow import call_name, given, receiver, returned
from ...script.loops import drawn_from
from ...script.names import (
    COMPREHENSIONS,
    Function,
    assigned,
    bound_in,
    elements,
    made_of,
    mentioned,
    root_name,
    stored,
    walk,
)
from ...script.roles import Loop, LoopNode
from ...script.torch_names import SHOWING, words
from ..rewrite.context import Context
from ..rewrite.losses import Kind, differentiated
from ..rewrite.script import ForNode
from ..rewrite.script import Script as Source
from ..rewrite.terms import terms
from .backward import write_backward
from .chance import drawn_batches
from .facts import shares
from .sums import Sums

_KEEPS = words("update add append extend appendleft")
_COUNTS = words("update add")
# Branches and rounds that ranks may take unequally, if what they go by is of each rank's own.
_ALONE = (*COMPREHENSIONS, ast.Lambda, ast.ExceptHandler)
Plan = list[tuple[ast.expr, str]]


def whole_numbers(context: Context) -> None:
    """`rankup.backward(loss)`, and what a training reads of its batches of all ranks."""
    if context is not context.port[0]:
        return
    for one in context.port:
        one.fix = context.fix
        one.backwards = {call: write_backward(one, call) for call in one.training.backwards}
    for one in context.port:
        for function in one.training.steps:
            region = Region(one, function, None)
            region.write()
            one.returns[function] = region.returns()
    for one in context.port:
        for loop in one.training.loops:
            if loop.trains and (one.training.sources(loop) or _inside(one, loop.node)):
                Region(one, loop.node, loop).write()


def _inside(context: Context, where: ast.AST) -> list[ast.Call]:
    calls = set(context.script.inside(where, ast.Call, deep=False))
    return [one for one in context.training.backwards if one in calls]


@dataclass
class _Sink:
    """A place where something leaves a step.

    Attributes:
        grows: the name that it adds to, where it counts.
    """

    at: ast.AST
    values: list[ast.expr]
    grows: str = ""
    plan: Plan | None = field(default_factory=list)


class Region:
    """A training loop's body, or a function with a backward that is called for each batch."""

    def __init__(self, context: Context, where: LoopNode | Function, loop: Loop | None) -> None:
        self.context, self.script, self.training = context, context.script, context.training
        self.where, self.loop = where, loop
        inside = set(self.script.inside(where, ast.Call, deep=False))
        self.backwards = [one for call, one in context.backwards.items() if call in inside]
        self.counted = any(
            Kind.MASKED in {term.kind for term in terms(self.training, loss)}
            for one in self.backwards
            if (loss := differentiated(one.call)) is not None
        )
        self.names = {one.name: one for one in self.backwards if one.name}
        self._open: set[ast.AST] = set()
        self._lost: set[str] = set()  # objects that were told of a rank's part
        self.terms: dict[str, Kind] = {}
        self.statements = list(self.script.inside(where.body, ast.stmt, deep=False))
        self.defined = self._definitions()
        self.held = {
            name: [
                one
                for one in several
                if loop is not None
                and isinstance(one, ast.Assign)
                and self.training.for_evaluation(loop, one)
            ]
            for name, several in self.defined.items()
        }
        self.held = {name: several for name, several in self.held.items() if several}
        for one in self.names.values():
            for at in self.defined.get(one.name, []):
                self._terms_of(getattr(at, "value", None), one.kind)
        self.grown = {name for _, name, _ in self._growing()}
        self.local = self._made_of_batch(self.grown)
        function = where if isinstance(where, Function) else None
        self.sums = Sums(self.training, loop, self.known, function)

    def _definitions(self) -> dict[str, list[ast.stmt]]:
        found: dict[str, list[ast.stmt]] = {}
        for one in self.statements:
            for target in assigned(one):
                for part in elements(target):
                    found.setdefault(self.script.dotted(part), []).append(one)
        return {
            name: sorted(several, key=self.script.span) for name, several in found.items() if name
        }

    def _terms_of(self, node: ast.expr | None, kind: Kind) -> None:
        """The names that a loss adds up: means, where it is one, and sums, where it is one."""
        match node:
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                self._terms_of(left, kind)
                self._terms_of(right, kind)
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                self._terms_of(right if isinstance(left, ast.Constant) else left, kind)
                if isinstance(left, ast.Name | ast.Attribute):
                    self._terms_of(right, kind)
            case ast.BinOp(op=ast.Div(), left=left):
                self._terms_of(left, kind)
            case ast.Name() | ast.Attribute():
                name = self.script.dotted(node)
                if name in self.defined and name not in self.names and name not in self.terms:
                    self.terms[name] = kind
                    for at in self.defined[name]:
                        self._terms_of(getattr(at, "value", None), kind)

    # What differs from rank to rank.

    def known(self, node: ast.expr) -> Kind | None:
        """The kind of a loss at its place: nothing of the batch behind its backward."""
        name = self.script.dotted(node)
        if name in self.held and self._of_evaluation(node, name):
            return Kind.FIXED
        if name in self.terms and self._single(name):
            return self.terms[name]
        one = self.names.get(name)
        if one is None:
            return self._parameter(name)
        at = self.script.span(node)[0]
        ends = [self.script.span(b.call)[1] for b in self.backwards if b.name == name]
        behind = [end for end in ends if end <= at]
        since = [
            d
            for d in self.defined.get(name, [])
            if self.script.span(d)[0] >= max(behind, default=0)
        ]
        given_ = [d for d in since if self.script.span(d)[1] <= at]
        if behind and not given_:
            return Kind.FIXED if one.whole else one.kind
        if behind:
            value = _given_to(self.script, given_[-1], name)
            if value is None or value in self._open:
                return None
            self._open.add(value)
            local = self.locals(value)
            self._open.discard(value)
            return None if local else Kind.FIXED
        if not given_ and isinstance(self.where, LoopNode) and name in self.defined:
            return Kind.FIXED if one.whole else one.kind  # of the round before
        before = [d for d in since if self.script.span(d)[0] < min(ends)]
        return one.kind if not given_ or given_[-1] is before[-1] else None

    def _of_evaluation(self, node: ast.expr, name: str) -> bool:
        """True where a name was last given what is drawn of a loader that is not trained on."""
        at = self.script.span(node)[0]
        before = [one for one in self.defined[name] if self.script.span(one)[1] <= at]
        return bool(before) and before[-1] in self.held[name]

    def _single(self, name: str) -> bool:
        return len(self.defined.get(name, [])) == 1

    def _parameter(self, name: str) -> Kind | None:
        if isinstance(self.where, Function) and name in self.training.given_batches(self.where):
            return Kind.UNKNOWN
        return None

    def locals(self, node: ast.AST) -> set[str]:
        """The names in an expression that hold something of this rank's part there."""
        found: set[str] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one in self.context.alike or self._of_step(one) in ([], [True]):
                continue
            if isinstance(one, ast.Call) and shares(self.script.file, one):
                continue
            if isinstance(one, ast.Name | ast.Attribute):
                if self.known(one) is Kind.FIXED:
                    continue
                found |= {self.script.dotted(one)} & self.local
            if isinstance(one, ast.Subscript):  # `state["step"]`
                found |= {name for name in mentioned(one) if name.endswith("]")} & self.local
            waiting += ast.iter_child_nodes(one)
        return found

    def _made_of_batch(self, but: set[str]) -> set[str]:
        """The names that are made of a batch, but for some that may be put together."""
        seeds = set(self.names) | set(self.terms) | self._batch | self._lost
        seeds -= but
        self.local = seeds
        for one in self.statements:
            if isinstance(one, ast.Assign) and (whole := self._of_step(one.value)) is not None:
                parts = elements(one.targets[0])
                flags = whole if len(whole) == len(parts) else [all(whole)] * len(parts)
                seeds |= {
                    name
                    for part, flag in zip(parts, flags, strict=True)
                    for name in stored(part)
                    if not flag
                }
        found = set(seeds)
        while True:
            self.local = found
            more = made_of(self.statements, found, self._reads, stored) - but
            more |= self._chosen() - but
            if more <= found:
                return found
            found = found | more

    @cached_property
    def _batch(self) -> set[str]:
        """The names that a batch is given to."""
        if isinstance(self.where, Function):
            return self.training.given_batches(self.where)
        assert self.loop is not None
        found = stored(self.where.target) if isinstance(self.where, ForNode) else set()
        found = found & self.loop.batch - {self.loop.index or ""}
        drawn = set(drawn_batches(self.training))
        for one in self.statements:
            for call in self.script.inside(getattr(one, "value", None) or [], ast.Call):
                source = drawn_from(call) is not None or bool(self.training.drawn(call))
                held = any(one in several for several in self.held.values())
                if call in drawn or (source and not held):
                    found |= stored(*assigned(one))
        return found

    def _chosen(self) -> set[str]:
        """Names that are given a value where something of a rank's part says so."""
        return {
            name
            for one in self.statements
            if isinstance(one, ast.If) and self.locals(one.test)
            for inner in self.script.inside([*one.body, *one.orelse], ast.stmt, deep=False)
            for name in stored(*assigned(inner))
        }

    def _reads(self, value: ast.AST) -> set[str]:
        return set() if self._of_step(value) is not None else self.locals(value)

    def _of_step(self, value: ast.AST) -> list[bool] | None:
        """Of what a step returns, which values are of the whole batch; None of other calls."""
        called = self.context.called(value) if isinstance(value, ast.Call) else None
        if called is not None and called[1] is self.where:
            return None
        return None if called is None else called[0].returns.get(called[1])

    # What leaves the step.

    def _growing(self) -> Iterator[tuple[ast.AST, str, list[ast.expr]]]:
        """`total += n`, `total = total + n`, `mean = 0.9 * mean + 0.1 * n`, `meter.update(n)`."""
        script, steps = self.script, {*self.names, *self.terms}
        for one in self.statements:
            if isinstance(one, ast.AugAssign) and not _lists(one.value):
                name = script.dotted(one.target) or root_name(one.target)
                if name not in steps:
                    yield one, name, [one.value]
            elif isinstance(one, ast.Assign):
                pairs = [(part, one.value) for part in one.targets]
                for target in one.targets:
                    if isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
                        pairs = list(zip(target.elts, one.value.elts, strict=False))
                for part, value in pairs:
                    name = script.dotted(part)
                    again = name and isinstance(value, ast.BinOp) and name in mentioned(value)
                    if again and name not in steps:
                        yield one, name, [value]
            elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
                call = one.value
                counts = call_name(call) in _COUNTS and not self._feeds(call)
                if counts and isinstance(call.func, ast.Attribute):
                    yield one, script.dotted(call.func.value) or root_name(call.func), given(call)
                known = script.called(call) is not None or script.file.names.called(call)
                if isinstance(call.func, ast.Name) and not known:  # `stopper(accuracy)`
                    yield one, call.func.id, given(call)

    def _sinks(self) -> Iterator[_Sink]:
        for at, name, values in self._growing():
            yield _Sink(at, values, name)
        feeding = self.feeding
        for one in self.statements:
            if (
                isinstance(one, ast.AugAssign)
                and _lists(one.value)
                and self.script.dotted(one.target) not in feeding
            ):
                yield _Sink(one, elements(one.value) or [one.value])
            if (
                isinstance(one, ast.Assign)
                and any(isinstance(part, ast.Attribute | ast.Subscript) for part in one.targets)
                and not stored(*one.targets) & feeding
            ):
                yield _Sink(one, [one.value])
        for call in self.script.inside(self.where.body, ast.Call, deep=False):
            name = call_name(call)
            own = self.context.called(call) is not None or self.training.trains(call)
            steps = name == "step" and isinstance(call.func, ast.Attribute) and not own
            kept = name in SHOWING | (_KEEPS - _COUNTS) and not self._feeds(call)
            if kept or (steps and given(call)):
                yield _Sink(call, given(call))
        if isinstance(self.where, Function):
            for value in returned(self.where):
                for part in elements(value) or [value]:
                    yield _Sink(value, [part])

    @cached_property
    def feeding(self) -> set[str]:
        """The names of which losses are made."""
        return self.training.feeding(self.where, set(self.names))

    def _feeds(self, call: ast.Call) -> bool:
        """True of `losses.append(…)` of a list that a loss is made of: it keeps the graph."""
        of = receiver(call) if call_name(call) in _KEEPS else None
        return of is not None and self.script.dotted(of) in self.feeding

    def plan(self, node: ast.AST) -> Plan | None:
        """The parts of a value to put together, each with its call; None where it is rank 0's."""
        if not self.locals(node):
            return []
        if isinstance(node, ast.Call) and self._of_step(node) is not None:
            return None
        if isinstance(node, (ast.Starred, *_ALONE)):
            return None
        if isinstance(node, ast.expr) and not isinstance(node, ast.JoinedStr | ast.FormattedValue):
            kind = self.sums.kind(node)
            if kind in (Kind.SUM, Kind.SIZE):
                return [(node, "batch_sum")]
            of_loss = mentioned(node) & {*self.names, *self.terms}
            if kind is Kind.MEAN and (of_loss or not self.counted):
                return [(node, "batch_mean")]
        if isinstance(node, ast.Name):
            made = self.defined.get(node.id, [])
            if len(made) != 1 or node.id in self.feeding | self.grown or not self.alike(made[0]):
                return None
            value = _given_to(self.script, made[0], node.id)
            whole = isinstance(made[0], ast.Assign) and (
                value is not made[0].value or self.script.dotted(made[0].targets[0]) == node.id
            )
            return self.plan(value) if whole and value is not None else None
        if isinstance(node, ast.Attribute):
            return None
        parts: Plan = []
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.Call) and child is node.func:
                if not isinstance(child, ast.Attribute):
                    continue
                child = child.value
            inner = self.plan(child)
            if inner is None:
                return None
            parts += inner
        return parts

    def alike(self, node: ast.AST) -> bool:
        """True of a place that all ranks come by together."""
        inner: ast.AST = node
        for up in self.script.above(node):
            if up is self.where:
                return True
            if isinstance(up, _ALONE):
                return False
            head = up.iter if isinstance(up, ForNode) else getattr(up, "test", None)
            if head is not None and inner is not head and self.locals(head):
                return False
            inner = up
        return True

    def write(self) -> None:
        """Put collectives where they belong, and say what is left."""
        for one in self.statements:
            if isinstance(one, ast.If | ast.While) and self.alike(one):
                for node, call in self.plan(one.test) or ():
                    self._wrap(node, call)
        self.local = self._made_of_batch(self.grown)
        sinks = list(self._sinks())
        counters = [sink for sink in sinks if sink.grows]
        for sink in counters:
            sink.plan = self._planned(sink)
        if any(sink.plan is None for sink in counters):
            # All that a loop counts, or none of it: its numbers are divided by each other.
            failed = {sink.grows for sink in counters if sink.plan is None}
            failed |= {sink.grows for sink in counters if sink.plan and _adds(sink.plan)}
            self._lost = failed
            self.local = self._made_of_batch(self.grown - failed)
            for sink in counters:
                sink.plan = None if sink.grows in failed else self._planned(sink)
        for sink in sinks:
            if not sink.grows:
                sink.plan = self._planned(sink)
            for node, call in sink.plan or ():
                self._wrap(node, call)
            if sink.plan is None and isinstance(sink.at, ast.Call) and self.alike(sink.at):
                self._stepped(sink)
        self._rest([sink for sink in sinks if sink.plan is None])
        for sink in sinks:  # lists that have entries of a part
            keeps = isinstance(sink.at, ast.Call) and call_name(sink.at) in _KEEPS
            if sink.plan is None and keeps:
                self._lost = self._lost | mentioned(sink.at.func)  # type: ignore[attr-defined]
        self.local = self._made_of_batch(set())  # with what has been put together
        self.context.regions.append(self)

    def _stepped(self, sink: _Sink) -> None:
        """Let rank 0 give all what a schedule is stepped by."""
        for value in sink.values if call_name(sink.at) == "step" else ():  # type: ignore[arg-type]
            if self.context.broadcast(value):
                sink.plan = []
                self.context.leave(
                    value,
                    f"`{self.script.code(value)}` is rank 0's on all ranks, of its part of the "
                    "batch (rankup.broadcast)",
                )

    def _planned(self, sink: _Sink) -> Plan | None:
        plan: Plan = []
        for value in sink.values:
            inner = self.plan(value)
            if inner is None:
                return None
            plan += inner
        if plan and not self.alike(sink.at):
            return None
        chosen = bool(sink.grows) and not self.alike(sink.at)
        return None if chosen else plan

    def _wrap(self, node: ast.expr, call: str) -> None:
        if node not in self.context.alike:
            self.context.alike.add(node)
            self.context.around(node, f"rankup.{call}(")
            what = "of the whole batch"
            self.context.done(node, f"{self.script.code(node)} is {what} (rankup.{call})")

    def _rest(self, sinks: list[_Sink]) -> None:
        """Say once what a step shows or counts of rank 0's part alone."""
        names: dict[str, ast.AST] = {}
        for one in sinks:
            local = set().union(*map(self.locals, one.values))
            for name in [one.grows] if one.grows else sorted(local):
                if name:
                    names.setdefault(name, one.at)
        for call, name in self._behind():
            names.setdefault(name, call)
        if isinstance(self.where, Function):
            for one in sinks:
                if isinstance(self.script.parents.get(one.at), ast.Return):
                    for name in set().union(*map(self.locals, one.values)):
                        names.pop(name, None)  # its caller has it
        if names:
            self.context.leave(
                next(iter(names.values())),
                f"{', '.join(sorted(names))}: of rank 0's part of the batch (what is a sum over "
                "samples rankup.batch_sum(…) makes whole)",
                comment=False,
            )

    def _behind(self) -> Iterator[tuple[ast.Call, str]]:
        """What calls behind the loop show of its last batch."""
        end = self.script.span(self.where)[1]
        if self.loop is None:
            return
        own = bound_in(walk(self.where)) & self.local - self.grown - self._whole
        for call in self.script.inside(self.script.scope(self.where).body, ast.Call, deep=False):
            if self.script.span(call)[0] < end or call_name(call) not in SHOWING:
                continue
            for name in sorted(mentioned(*given(call)) & own):
                uses = self.script.uses(self.script.scope(self.where), name)
                before = [one for one in uses if self.script.span(one) < self.script.span(call)]
                stores = [one for one in before if isinstance(one.ctx, ast.Store)]
                if stores and self.script.span(stores[-1])[0] < end:
                    yield call, name

    @property
    def of_part(self) -> set[str]:
        """Names that are of this rank's part behind the loop."""
        return self.local - self._whole - (self._batch if self.loop is not None else set())

    @property
    def _whole(self) -> set[str]:
        """The losses that have the whole batch's value behind the loop: not of a graph kept."""
        return {name for name, one in self.names.items() if one.whole}

    def returns(self) -> list[bool]:
        """Of the values that a step returns, which are of the whole batch, now."""
        found: list[list[bool]] = []
        for value in returned(self.where):  # type: ignore[arg-type]
            parts = elements(value) or [value]
            found.append([self.plan(one) is not None and self.alike(value) for one in parts])
        if not found or len({len(one) for one in found}) > 1:
            return []
        return [all(column) for column in zip(*found, strict=True)]


def _given_to(script: Source, statement: ast.stmt, name: str) -> ast.expr | None:
    """The value that an assignment gives a name: `n` of `loss, size = m, n`."""
    value = getattr(statement, "value", None)
    for target in assigned(statement):
        names = [script.dotted(part) for part in elements(target)]
        pairs = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and name in names
        if pairs and len(names) == len(value.elts):  # type: ignore[union-attr]
            return value.elts[names.index(name)]  # type: ignore[union-attr]
    return value


def _adds(plan: Plan) -> bool:
    return any(call == "batch_sum" for _, call in plan)


def _lists(value: ast.expr) -> bool:
    """True of what a list is added to by `+=`."""
    listed = isinstance(value, ast.Call) and call_name(value) in ("tolist", "list", "sorted")
    return listed or isinstance(value, ast.List | ast.ListComp)
