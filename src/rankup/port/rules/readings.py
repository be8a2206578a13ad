"""The readings of a loss: `loss.item()` is of a rank's part of the batch, and a known mean or sum.

Of all the numbers in a training step only the value that is differentiated is known to be a mean
over the batch, or declared a sum: gradients are put together as that.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from ...script.flow import call_name, given, literal
from ...script.names import (
    COMPREHENSIONS,
    Function,
    assigned,
    children,
    elements,
    made_of,
    mentioned,
    stored,
    walk,
)
from ...script.roles import LoopNode
from ...script.torch_names import SHOWING, words
from ..rewrite.context import Context
from ..rewrite.losses import Kind, differentiated
from ..rewrite.means import declared
from ..rewrite.script import Script
from .chance import draws
from .steering import steers

# These cut a value off its graph, and these only change its form.
_CUTS = words("item detach numpy tolist")
_FORMS = words("cpu cuda to float double half clone")
_READABLE = (ast.Name, ast.Call, ast.Attribute, ast.Subscript)
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OWN_COUNTER = (
    "is of rank 0's part of the batches alone: put rankup.batch_sum(…) around what is a sum over "
    "samples"
)
SHOWS = SHOWING | words("update append add progress_bar scalar")
_READS = words("item detach cpu numpy float double clone tolist data")


class Region:
    """A piece of code in which backwards stand: a loop's body, or a function's.

    Args:
        where: the loop or the function.
        backwards: those in it.

    Attributes:
        kinds: of each loss by its name, how it adds up over samples.
        defined: the statements that give it its value.
        whole: names that are of the whole batch.
    """

    def __init__(self, context: Context, where: ast.AST, backwards: list[ast.Call]) -> None:
        self.context, self.script = context, context.script
        self.where = where
        self.body: list[ast.stmt] = where.body  # type: ignore[attr-defined]
        self.kinds: dict[str, Kind] = {}
        self.defined: dict[str, set[ast.AST]] = {}
        self.wrapped: list[ast.AST] = []
        self.whole: set[str] = set()
        for call in sorted(backwards, key=self.script.span):
            self._differentiated(call)
        self._combined()

    def _differentiated(self, call: ast.Call) -> None:
        loss = differentiated(call)
        summed = isinstance(loss, ast.Call) and self.script.name(loss.func) == "rankup.summed"
        if isinstance(loss, ast.Call) and summed and loss.args:
            loss = loss.args[0]
        while isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Div | ast.Mult):
            sides = [loss.left, loss.right]
            if isinstance(loss.op, ast.Mult) and _plain_number(loss.left):
                sides.reverse()
            loss = sides[0]
        name = self.script.dotted(loss)
        if loss is None or not name or (name.count(".") and not name.startswith("self.")):
            return
        kind = declared(self.context.training, loss)
        at = self.script.span(call)[0]
        self.kinds[name] = Kind.SUM if summed or kind is Kind.SUM else Kind.MEAN
        self.defined.setdefault(name, set()).update(
            one for one in self._given(name) if self.script.span(one)[0] < at
        )

    def _given(self, name: str) -> list[ast.stmt]:
        """The statements of this region that give a name its value, in order."""
        return self._assignments.get(name, [])

    @cached_property
    def _assignments(self) -> dict[str, list[ast.stmt]]:
        script = self.script
        found: dict[str, list[ast.stmt]] = {}
        for one in script.inside(self.body, ast.stmt, deep=False):
            if not isinstance(one, ast.Assign | ast.AugAssign | ast.AnnAssign):
                continue
            for target in assigned(one):
                whole = script.dotted(target)
                for name in mentioned(target):
                    if whole in ("", name):
                        found.setdefault(name, []).append(one)
        return {name: sorted(given_, key=script.span) for name, given_ in found.items()}

    def _combined(self) -> None:
        """Names of sums of known losses: `errD = errD_real + errD_fake`."""
        for one in self.script.inside(self.body, ast.Assign, deep=False):
            name = self.script.dotted(one.targets[0])
            if name and name not in self.kinds and isinstance(one.value, ast.BinOp):
                kind = self.known(one.value)
                if kind is not None and len(self._given(name)) == 1:
                    self.kinds[name] = kind
                    self.defined[name] = {one}

    def known(self, node: ast.AST) -> Kind | None:
        """The kind of a loss, or of a sum of losses; None of another expression."""
        match node:
            case ast.Name() | ast.Attribute():
                name = self.script.dotted(node)
                if name not in self.kinds or not self._reached(node, name):
                    return None
                return self.kinds[name]
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                kinds = {self.known(left), self.known(right)}
                return kinds.pop() if len(kinds) == 1 else None
            case ast.BinOp(op=ast.Mult() | ast.Div(), left=left, right=right):
                return self.known(left) if _plain_number(right) else None
        return None

    def _reached(self, node: ast.AST, name: str) -> bool:
        """True where the value that a name has here is one that is differentiated."""
        at = self.script.span(node)[0]
        given_ = self._given(name)
        if not given_:
            return True  # a parameter of a step
        before = [one for one in given_ if self.script.span(one)[1] <= at] or given_
        while before and self._another_form(before[-1], name):
            before.pop()
        return not before or before[-1] in self.defined[name]

    def _another_form(self, statement: ast.stmt, name: str) -> bool:
        """True of `loss = loss.float()`."""
        value = value_of(self.script, statement, name)
        return (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in _FORMS
            and self.script.dotted(value.func.value) == name
        )

    def reading(self, node: ast.AST) -> Kind | None:
        """The kind of `loss.item()`, `float(loss)`, `loss.detach().cpu()`; None of anything else.

        `loss.cpu()` is none: the backward may still start from it. `loss` of `loss < best` is one,
        and of `best = loss`, where no backward starts from that.
        """
        if not isinstance(node, _READABLE):
            return None
        match self.script.parents.get(node):
            case ast.Compare(ops=ops) if all(isinstance(one, _ORDERS) for one in ops):
                if (kind := self.known(node)) is not None:
                    return kind
            case ast.Assign(value=value) as around if value is node:
                kind = self.known(node)
                if kind is not None and self._keeps(around):
                    return kind
        kind = self._read(node)
        function = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        return kind if kind is not None and (function or any(map(_cuts, walk(node)))) else None

    def _keeps(self, statement: ast.Assign) -> bool:
        """True where a statement gives a value to names that come to no backward."""
        names = mentioned(*statement.targets)
        names |= {name.partition("[")[0] for name in names}
        return not names & self._feeding

    @cached_property
    def _feeding(self) -> set[str]:
        """The names of which losses are made, in this region, and those that are differentiated."""
        calls = self.script.inside(self.script.scope(self.where), ast.Call)
        started = [one for one in calls if call_name(one) in ("backward", "grad")]
        return self.context.training.feeding(self.where, mentioned(*started) | self.kinds.keys())  # type: ignore[arg-type]

    def _read(self, node: ast.AST) -> Kind | None:
        match node:
            case ast.Call(func=ast.Name(id="float"), args=[value]):
                return self.known(value) or self._read(value)
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[]) if attr in _READS:
                return self.known(value) or self._read(value)
            case ast.Attribute(value=value, attr="data"):
                return self.known(value) or self._read(value)
            case ast.Subscript(value=ast.Attribute(value=value, attr="data"), slice=at):
                return self.known(value) if literal(at) == 0 else None
        return None

    def holds_reading(self, node: ast.expr) -> bool:
        """True of a reading of a loss, and of a name that is given nothing else."""
        if self.reading(node) is not None:
            return True
        name, at = self.script.dotted(node), self.script.span(node)[0]
        given_ = self._given(name) if name else []
        before = [one for one in given_ if self.script.span(one)[1] <= at]
        if before and before[-1] in self.body:  # `loss = loss.item()`, which each call comes by
            given_ = before[-1:]
        values = [value_of(self.script, one, name) for one in given_]
        return bool(values) and all(one is not None and self.reading(one) for one in values)

    def readings(self) -> Iterator[ast.expr]:
        """The largest readings of a loss in this region, those in a backward apart."""
        for node in self.script.inside(self.body, *_READABLE, deep=False):
            if self.largest(node) is not None:
                around = (node, *self.script.above(node))
                if not any(one in self.context.training.backwards for one in around):
                    yield node

    def largest(self, node: ast.AST) -> Kind | None:
        """The kind of a reading that is no part of a larger one."""
        kind = self.reading(node)
        around = self._up(node) if kind is not None else None
        larger = isinstance(around, ast.expr) and self.reading(around) is not None
        return None if larger else kind

    def _up(self, node: ast.AST) -> ast.AST:
        """The expression around a value of which it is read: past `loss.item` to `loss.item()`."""
        up = self.script.parents[node]
        if isinstance(up, ast.Attribute):
            call = self.script.parents[up]
            return call if isinstance(call, ast.Call) and call.func is up else up
        return up

    def alike(self, node: ast.AST) -> bool:
        """True where all ranks come by a place equally often, as far as this region goes."""
        script, inner = self.script, node
        for up in script.above(node):
            if up is self.where:
                return True
            if isinstance(up, (*COMPREHENSIONS, ast.ExceptHandler, ast.Lambda, Function)):
                return False
            test = getattr(up, "test", None)
            if isinstance(up, LoopNode) and not isinstance(up, ast.While):
                test = up.iter
            differs = test is not None and inner is not test and self.differs(test)
            drawn = (
                test is not None
                and inner is not test
                and draws(self.script.file, test)
                and not steers(self.context.training, up)
            )
            if differs or drawn or self.passes_over(up, inner):
                return False
            inner = up
        return True

    def passes_over(self, node: ast.AST, operand: ast.AST) -> bool:
        """True where some ranks may come to no later operand: `len(x) > 8 and loss.item() > 1`."""
        operands: list[ast.AST] = [operand]
        if isinstance(node, ast.BoolOp):
            operands = [*node.values]
        elif isinstance(node, ast.Compare) and operand in node.comparators[1:]:
            operands = [node.left, *node.comparators]  # `0 < x < loss.item()`
        before = operands[: operands.index(operand)]
        return any(self.differs(one) or draws(self.script.file, one) for one in before)

    def differs(self, node: ast.AST) -> bool:
        """True where a value may differ from rank to rank, also when its readings are put together.

        Draws apart.
        """
        if node in self.context.alike or self.holds_whole(node):
            return False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            return False  # `(value := loss.item()) > 1`
        inner = isinstance(node, (*COMPREHENSIONS, ast.Lambda))  # nothing is put together there
        if inner or (isinstance(node, ast.Name | ast.Attribute) and self.script.dotted(node)):
            return bool(mentioned(node) & self.local_names())
        return any(map(self.differs, children(node)))

    def holds_whole(self, node: ast.AST) -> bool:
        """True of a reading of a loss, and of a name that holds one at this place."""
        if isinstance(node, ast.Name | ast.Attribute) and self._read_before(node):
            return True
        return self.reading(node) is not None

    def _read_before(self, node: ast.expr) -> bool:
        """True where a name holds a reading at this place: `loss = loss.item()` stands above."""
        name, at = self.script.dotted(node), self.script.span(node)[0]
        before = [one for one in self._given(name) if self.script.span(one)[1] <= at]
        return bool(name) and bool(before) and self._reads(before[-1], name)

    def _reads(self, statement: ast.stmt, name: str) -> bool:
        """True where a statement gives a name the reading of a loss."""
        value = value_of(self.script, statement, name)
        return value is not None and self.reading(value) is not None and self.alike(statement)

    def whole_names(self, known: set[str]) -> set[str]:
        """Names that are given nothing but readings of the loss, and what is made of such alone.

        Of `if loss.item() < best: best = loss.item()` both are of the whole batch, or none is: a
        name counts as long as all that gives it a value holds.
        """
        stores = Counter(self._stores(self.where))
        assigned_ = {
            name: statements
            for name, statements in self._assignments.items()
            if name not in known | self.kinds.keys() and stores[name] == len(statements)
        }
        self.whole = known | assigned_.keys()
        while True:
            fails = {
                name
                for name, statements in assigned_.items()
                if not all(self._gives_whole(one, name) for one in statements)
            }
            if not fails:
                return self.whole
            assigned_ = {name: assigned_[name] for name in assigned_.keys() - fails}
            self.whole = known | assigned_.keys()

    def _stores(self, *nodes: ast.AST) -> list[str]:
        """The names that are given values in some code, by whatever statement."""
        kinds = ast.Name | ast.Attribute | ast.Subscript
        return [
            name
            for one in self.script.inside(nodes, ast.Name, ast.Attribute, ast.Subscript, deep=False)
            if isinstance(one, kinds) and isinstance(one.ctx, ast.Store)
            for name in stored(one)
        ]

    def _gives_whole(self, statement: ast.stmt, name: str) -> bool:
        value = value_of(self.script, statement, name)
        return (
            value is not None
            and not self.differs(value)
            and not draws(self.script.file, value)
            and not any(map(self.context.training.drawn, self.script.inside(value, ast.Call)))
            and self.alike(statement)
        )

    def chosen(self, names: set[str]) -> set[str]:
        """Names, and those that are given a value where a test goes by one of them."""
        script, found = self.script, set(names)
        statements = list(script.inside(self.body, ast.stmt, deep=False))
        tests = [
            (mentioned(one.test), self._stores(*one.body, *one.orelse))
            for one in script.inside(self.body, ast.If, ast.While, deep=False)
            if isinstance(one, ast.If | ast.While)
        ]
        while True:
            more = {name for test, given_ in tests if test & found for name in given_}
            more |= made_of(statements, found, gives=stored)
            if more <= found:
                return found
            found |= more

    def local(self, node: ast.AST) -> bool:
        """True where a value may differ from rank to rank."""
        return bool(mentioned(node) & self.local_names()) or bool(draws(self.script.file, node))

    def local_names(self) -> set[str]:
        raise NotImplementedError

    def steered(self) -> None:
        """`if torch.isnan(loss): break` goes by the loss of the whole batch."""
        script = self.script
        for one in script.inside(self.body, ast.stmt, deep=False):
            if not isinstance(one, ast.If | ast.While):
                continue
            if not (steers(self.context.training, one) and self.mine(one)):
                continue
            for node in script.inside(one.test, ast.Name, ast.Attribute):
                kind = self.known(node)
                if kind is None or self.covered(node) or not self.alike(node):
                    continue
                up: ast.AST = node
                while self.reading(self._up(up)) is not None:
                    up = self._up(up)
                if isinstance(up, ast.expr):
                    self.wrap(up, kind, f"{script.code(up)} is of the whole batch")

    def mine(self, node: ast.AST) -> bool:
        """True of what stands in no loop over batches within this region."""
        return next(filter(self._loops.__contains__, self.script.above(node)), None) is self.where

    @cached_property
    def _loops(self) -> set[ast.AST]:
        return {self.where, *(one.node for one in self.context.training.loops)}

    def covered(self, node: ast.AST) -> bool:
        """True of a part of what has been put together."""
        wrapped = self.wrapped
        return bool(wrapped) and any(one in wrapped for one in (node, *self.script.above(node)))

    def compared(self, node: ast.expr) -> bool:
        """True where a loss is compared with what each rank has its own of: half of a test."""
        whole, tests = node, False
        while isinstance(up := self.script.parents[whole], ast.expr):
            tests = tests or isinstance(up, ast.Compare | ast.BoolOp)
            whole = up
        return tests and self.differs(whole)

    def wrap(self, node: ast.expr, kind: Kind, text: str, at: ast.AST | None = None) -> None:
        """Put the collective around a value."""
        function = "batch_mean" if kind is Kind.MEAN else "batch_sum"
        self.wrapped.append(node)
        self.context.alike.add(node)
        self.context.around(node, f"rankup.{function}(")
        self.context.done(at or node, f"{text} (rankup.{function})")


class Step(Region):
    """A function with a backward in it, that a training loop calls for each batch."""

    def __init__(self, context: Context, function: Function, calls: list[ast.Call]) -> None:
        super().__init__(context, function, calls)
        self.whole_names(set())

    def local_names(self) -> set[str]:
        """Return the names that are given a batch, or made of it: they may be of a rank's part."""
        return self._made - self.whole

    @cached_property
    def _made(self) -> set[str]:
        assert isinstance(self.where, Function)
        own = self.context.training.given_batches(self.where)
        return self.chosen(own | self.kinds.keys())

    def write(self) -> None:
        self.steered()
        for node in list(self.readings()):
            kind = self.reading(node)
            half = self.covered(node) or self.compared(node)
            if kind is not None and self.alike(node) and not half:
                self.wrap(node, kind, f"{self.script.code(node)} is of the whole batch")
        if self.context.script.callers(self.where):  # type: ignore[arg-type]
            self._rest(self.local_names() - self.kinds.keys())
        self.context.local[self.where] = self.local_names()

    def _rest(self, local: set[str]) -> None:
        """Say what it adds up and shows of a rank's part of the batch."""
        script, shown = self.script, dict[str, ast.AST]()
        for one in script.inside(self.body, ast.Call, ast.AugAssign, deep=False):
            if isinstance(one, ast.AugAssign):
                name = script.dotted(one.target)
                grows = isinstance(one.op, ast.Add | ast.Sub) and name not in self.kinds
                if grows and name.startswith("self.") and self._own([one.value], local):
                    self.context.leave(one, f"{name} {_OWN_COUNTER}")
            elif isinstance(one, ast.Call) and call_name(one) in SHOWS | {"extend"}:
                shown |= dict.fromkeys(self._own(given(one), local), one) | shown
        if shown:
            names, at = ", ".join(sorted(shown)), next(iter(shown.values()))
            text = f"{names}: of rank 0's part of the batch, other than the loss"
            self.context.leave(at, text, comment=False)

    def _own(self, values: list[ast.expr], local: set[str]) -> set[str]:
        """The names in values that are of a rank's part, and not put together."""
        return {
            one.id
            for one in self.script.inside(values, ast.Name)
            if one.id in local and not self.covered(one) and not self._read_before(one)
        }


def returns_reading(context: Context, function: Function) -> list[bool]:
    """Of what a step returns, which values are readings of its loss, and so of the whole batch."""
    calls = [one for one in context.training.backwards if context.script.scope(one) is function]
    step = Step(context, function, calls)
    found: list[bool] = []
    for one in context.script.inside(function.body, ast.Return, deep=False):
        if one.value is not None:
            whole = [step.holds_reading(value) for value in elements(one.value)]
            found = whole if not found else [a and b for a, b in zip(found, whole, strict=False)]
    return found


def value_of(script: Script, statement: ast.stmt, name: str) -> ast.expr | None:
    """The value that an assignment gives a name; of `a, b = 1, 2` its part."""
    if not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if name in (script.dotted(target), *stored(target)) and not isinstance(target, ast.Tuple):
            return statement.value
        value = statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, given_ in zip(target.elts, value.elts, strict=False):
                if script.dotted(part) == name:
                    return given_
    return None


def _plain_number(node: ast.expr) -> bool:
    """True of a number, a name or an attribute: what a loss is divided by to accumulate."""
    if type(literal(node)) in (int, float):
        return True
    if isinstance(node, ast.Call):
        return call_name(node) in ("len", "float", "int")
    return isinstance(node, ast.Name | ast.Attribute)


def _cuts(node: ast.AST) -> bool:
    """True of `.data` and of calls that give a value without its graph."""
    if isinstance(node, ast.Attribute):
        return node.attr == "data"
    return isinstance(node, ast.Call) and call_name(node) in _CUTS
