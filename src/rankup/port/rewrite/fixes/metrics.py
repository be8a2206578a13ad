"""The numbers of a training loop: the loss, and what are sums over samples by construction."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from ....base.errors import UserError
from ....script.flow import call_name, given, literal
from ....script.names import COMPREHENSIONS, Function, walk
from ....script.roles import LoopNode
from ....script.torch_names import words
from ..context import Context
from ..expressions import mentioned
from ..losses import MIXED, declared, differentiated
from ..script import Script
from ..training import Loop
from ..values import Kind, Values
from .data import draws, steers

# These cut a value off its graph, and these only change its form.
_CUTS = words("item detach numpy tolist")
_FORMS = words("cpu cuda to float double half clone")
_READS = words("item detach cpu numpy float double clone tolist data")
_SHOWS = words(
    "print log info debug warning write set_postfix set_postfix_str set_description "
    "set_description_str add_scalar add_scalars log_metrics log_metric update append writerow "
    "progress_bar scalar"
)


def training_numbers(context: Context) -> None:
    """`batch_mean` around the loss, `batch_sum` around sums over samples; the rest is rank 0's."""
    for loop in context.training.loops:
        if loop.trains and (context.training.sources(loop) or _backwards(context, loop)):
            Numbers(context, loop).write()
    for function, calls in _steps(context).items():
        Step(context, function, calls).write()


def _backwards(context: Context, loop: Loop) -> list[ast.Call]:
    return [one for one in context.training.backwards if loop.node in context.script.above(one)]


def _steps(context: Context) -> dict[Function, list[ast.Call]]:
    """Functions with a backward that a training loop calls, and their backwards."""
    script, found = context.script, {}  # type: ignore[var-annotated]
    loops = {one.node for one in context.training.loops if one.trains}
    for call in context.training.backwards:
        scope = script.scope(call)
        if isinstance(scope, Function) and not loops & set(script.above(call)):
            found.setdefault(scope, []).append(call)
    return found


def summed_losses(context: Context) -> None:
    """`rankup.summed(loss).backward()` where the loss is declared a sum over the batch.

    Raises:
        UserError: it is a sum in one part and something else in another.
    """
    script = context.script
    for call in context.training.backwards:
        loss = differentiated(call)
        kind = declared(script, loss) if loss is not None else Kind.UNKNOWN
        if kind == MIXED:
            raise UserError(
                f"{script.file.path}:{script.line(call)}: not ported: this loss adds up over the "
                "samples in one part and not in another, and ranks would weigh them differently. "
                "Divide the sums by the number of samples, or take reduction='mean' throughout"
            )
        if kind is Kind.SUM and loss is not None:
            context.around(loss, "rankup.summed(")
            context.done(call, "a loss summed over the batch is summed over the ranks too")


@dataclass
class _Known:
    """The losses of a loop or of a step: how each adds up, and where it gets its value."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    defined: dict[str, set[ast.AST]] = field(default_factory=dict)


class Region:
    """A piece of code in which backwards stand: a loop's body, or a function's.

    Args:
        where: the loop or the function.
        backwards: those in it.
    """

    def __init__(self, context: Context, where: ast.AST, backwards: list[ast.Call]) -> None:
        self.context, self.script = context, context.script
        self.where = where
        self.body: list[ast.stmt] = where.body  # type: ignore[attr-defined]
        self.losses = _Known()
        self.wrapped: list[ast.AST] = []
        for call in sorted(backwards, key=self.script.span):
            self._differentiated(call)
        self._combined()

    def _differentiated(self, call: ast.Call) -> None:
        loss = differentiated(call)
        while isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Div | ast.Mult):
            sides = [loss.left, loss.right]
            if isinstance(loss.op, ast.Mult) and _plain_number(loss.left):
                sides.reverse()
            loss = sides[0]
        name = self.script.dotted(loss)
        if loss is None or not name or (name.count(".") and not name.startswith("self.")):
            return
        kind = declared(self.script, loss)
        if kind == MIXED:
            return
        at = self.script.span(call)[0]
        self.losses.kinds[name] = Kind.SUM if kind is Kind.SUM else Kind.MEAN
        self.losses.defined.setdefault(name, set()).update(
            one for one in self._given(name) if self.script.span(one)[0] < at
        )

    def _given(self, name: str) -> list[ast.stmt]:
        """The statements of this region that give a name its value, in order."""
        script = self.script
        found = [
            one
            for one in script.inside(self.body, ast.stmt, deep=False)
            if isinstance(one, ast.Assign | ast.AugAssign | ast.AnnAssign)
            for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
            if name in mentioned(target) and script.dotted(target) in ("", name)
        ]
        return sorted(found, key=script.span)

    def _combined(self) -> None:
        """Names of sums of known losses: `errD = errD_real + errD_fake`."""
        for one in self.script.inside(self.body, ast.Assign, deep=False):
            name = self.script.dotted(one.targets[0])
            if name and name not in self.losses.kinds and isinstance(one.value, ast.BinOp):
                kind = self.known(one.value)
                if kind is not None and len(self._given(name)) == 1:
                    self.losses.kinds[name] = kind
                    self.losses.defined[name] = {one}

    def known(self, node: ast.AST) -> Kind | None:
        """Whether an expression is a loss, or a sum of them, and how it adds up over samples."""
        match node:
            case ast.Name() | ast.Attribute():
                name = self.script.dotted(node)
                if name not in self.losses.kinds or not self._reached(node, name):
                    return None
                return self.losses.kinds[name]
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                kinds = {self.known(left), self.known(right)}
                return kinds.pop() if len(kinds) == 1 else None
            case ast.BinOp(op=ast.Mult() | ast.Div(), left=left, right=right):
                return self.known(left) if _plain_number(right) else None
        return None

    def _reached(self, node: ast.AST, name: str) -> bool:
        """Whether the value that a name has here is one that is differentiated."""
        at = self.script.span(node)[0]
        given_ = self._given(name)
        if not given_:
            return True  # a parameter of a step
        before = [one for one in given_ if self.script.span(one)[1] <= at] or given_
        while before and self._another_form(before[-1], name):
            before.pop()
        return not before or before[-1] in self.losses.defined[name]

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
        """What `loss.item()`, `float(loss)`, `loss.detach().cpu()` are; None of anything else.

        `loss.cpu()` is none: the backward may still start from it.
        """
        names = [call_name(one) for one in walk(node) if isinstance(one, ast.Call)]
        data = any(isinstance(one, ast.Attribute) and one.attr == "data" for one in walk(node))
        function = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if not (data or function or set(names) & _CUTS):
            return None
        return self._read(node)

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

    def readings(self) -> Iterator[ast.expr]:
        """The largest readings of a loss in this region, those in a backward apart."""
        script = self.script
        for node in script.inside(self.body, ast.expr, deep=False):
            if self.reading(node) is None:
                continue
            up = script.parents[node]
            if isinstance(up, ast.Attribute):
                up = script.parents[up]
            if isinstance(up, ast.expr) and self.reading(up) is not None:
                continue
            inside = [node, *script.above(node)]
            if any(one in self.context.training.backwards for one in inside):
                continue
            yield node

    def alike(self, node: ast.AST) -> bool:
        """Whether all ranks come by a place equally often, as far as it stands in this region."""
        script, inner = self.script, node
        for up in script.above(node):
            if up is self.where:
                return True
            if isinstance(up, (*COMPREHENSIONS, ast.ExceptHandler, ast.Lambda, Function)):
                return False
            test = getattr(up, "test", None)
            if isinstance(up, LoopNode) and not isinstance(up, ast.While):
                test = up.iter
            names = test is not None and mentioned(test) & self.local_names()
            drawn = test is not None and draws(self.context, test) and not steers(self.context, up)
            if inner is not test and (names or drawn):
                return False
            inner = up
        return True

    def local(self, node: ast.AST) -> bool:
        """Whether a value may differ from rank to rank."""
        return bool(mentioned(node) & self.local_names()) or bool(draws(self.context, node))

    def local_names(self) -> set[str]:
        raise NotImplementedError

    def wrap(self, node: ast.expr, kind: Kind, text: str, at: ast.AST | None = None) -> None:
        """Put the collective around a value."""
        function = "batch_mean" if kind is Kind.MEAN else "batch_sum"
        self.wrapped.append(node)
        self.context.around(node, f"rankup.{function}(")
        self.context.done(at or node, f"{text} (rankup.{function})")


class Step(Region):
    """A function with a backward in it, that a training loop calls for each batch."""

    def __init__(self, context: Context, function: Function, calls: list[ast.Call]) -> None:
        super().__init__(context, function, calls)
        self.function = function

    def local_names(self) -> set[str]:
        """All that it is given or makes may be of this rank's part of the batch."""
        own = self.context.script.parameters(self.function) - {"self", "epoch", "step", "i"}
        return own | set(self.losses.kinds)

    def write(self) -> None:
        for node in list(self.readings()):
            kind = self.reading(node)
            if kind is not None and self.alike(node):
                self.wrap(node, kind, f"{self.script.code(node)} is of the whole batch")


def returns_reading(context: Context, function: Function) -> list[bool]:
    """Of what a step returns, which values are readings of its loss, and so of the whole batch."""
    calls = [one for one in context.training.backwards if context.script.scope(one) is function]
    step = Step(context, function, calls)
    found: list[bool] = []
    for one in context.script.inside(function.body, ast.Return, deep=False):
        if one.value is not None:
            parts = one.value.elts if isinstance(one.value, ast.Tuple) else [one.value]
            whole = [
                any(step.reading(part) is not None for part in [value]) or _made_whole(step, value)
                for value in parts
            ]
            found = whole if not found else [a and b for a, b in zip(found, whole, strict=False)]
    return found


def _made_whole(step: Region, value: ast.expr) -> bool:
    """Whether a name was given the reading of a loss."""
    name = step.script.dotted(value)
    values = [value_of(step.script, one, name) for one in step._given(name)] if name else []
    return bool(values) and all(one is not None and step.reading(one) for one in values)


def value_of(script: Script, statement: ast.stmt, name: str) -> ast.expr | None:
    """The value that an assignment gives a name; of `a, b = 1, 2` its part."""
    if not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if script.dotted(target) == name:
            return statement.value
        value = statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, given_ in zip(target.elts, value.elts, strict=False):
                if script.dotted(part) == name:
                    return given_
    return None


class Numbers(Region):
    """What one training loop adds up, keeps and shows."""

    def __init__(self, context: Context, loop: Loop) -> None:
        super().__init__(context, loop.node, _backwards(context, loop))
        self.loop = loop
        self.whole: set[str] = set()
        self._from_steps()
        self.whole = self._whole_names()
        fixed = {**dict.fromkeys(self.losses.kinds, Kind.UNKNOWN)}
        fixed |= dict.fromkeys(self.whole, Kind.FIXED)
        self.values = Values(context.training, loop, fixed)

    def _from_steps(self) -> None:
        """`loss = step(x, y)` of a function that returns the loss that it differentiates."""
        script = self.script
        self._step_values: dict[str, bool] = {}
        for one in script.inside(self.body, ast.Assign, deep=False):
            function = script.called(one.value) if isinstance(one.value, ast.Call) else None
            calls = [c for c in self.context.training.backwards if script.scope(c) is function]
            if function is None or not calls:
                continue
            whole = returns_reading(self.context, function)
            step = Step(self.context, function, calls)
            target = one.targets[0]
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            returned = [r.value for r in script.inside(function.body, ast.Return, deep=False)]
            for number, part in enumerate(parts):
                name = script.dotted(part)
                if number < len(whole) and whole[number] and len(self._given(name)) == 1:
                    self._step_values[name] = True
                if len(returned) != 1 or returned[0] is None or not name:
                    continue
                value = returned[0]
                if isinstance(target, ast.Tuple):
                    if not isinstance(value, ast.Tuple) or number >= len(value.elts):
                        continue
                    value = value.elts[number]
                kind = step.known(value)
                if kind is not None and name not in self.losses.kinds:
                    self.losses.kinds[name] = kind
                    self.losses.defined[name] = {one}

    def _whole_names(self) -> set[str]:
        """Names that hold nothing but readings of the loss, which are of the whole batch."""
        names = {
            name
            for one in self.script.inside(self.body, ast.Assign, deep=False)
            for target in one.targets
            for name in mentioned(target)
        }
        return set(self._step_values) | {
            name for name in names if all(self._reads(one, name) for one in self._given(name))
        }

    def _reads(self, statement: ast.stmt, name: str) -> bool:
        """Whether a statement gives a name the reading of a loss."""
        value = value_of(self.script, statement, name)
        return value is not None and self.reading(value) is not None and self.alike(statement)

    def _read_before(self, node: ast.expr) -> bool:
        """Whether a name holds a reading at this place: `loss = loss.item()` stands above."""
        name, at = self.script.dotted(node), self.script.span(node)[0]
        before = [one for one in self._given(name) if self.script.span(one)[1] <= at]
        return bool(name) and bool(before) and self._reads(before[-1], name)

    def local_names(self) -> set[str]:
        derived = self.context.training.derived(self.loop)
        counters = {self.script.dotted(one.target) for one in self._augmented()}
        return derived - self.whole - {name for name in counters if name in self._global_counters}

    _global_counters: frozenset[str] = frozenset()

    def wrap(self, node: ast.expr, kind: Kind, text: str, at: ast.AST | None = None) -> None:
        """Put the collective around a value; in an evaluation, which is not sharded, it is left."""
        self.put(node, [(node, kind)], text, at)

    def put(
        self,
        whole: ast.expr,
        plan: list[tuple[ast.expr, Kind]],
        text: str,
        at: ast.AST | None = None,
    ) -> None:
        """Put collectives around parts of a value, as `plan` says."""
        for node, kind in plan:
            super().wrap(node, kind, text, at)
        phase = self.loop.phase
        if phase and plan:
            alone = ast.Call | ast.AugAssign | ast.Assign | ast.keyword | ast.Tuple | ast.List
            bare = isinstance(self.script.parents[whole], alone)
            opened, closed = ("", "") if bare else ("(", ")")
            code = self.script.code(whole)
            self.context.around(whole, opened, f" if {phase} else {code}{closed}")

    def write(self) -> None:
        self._tests()
        self._counters()
        self._meters()
        self._shown()
        for node in list(self.readings()):
            if self._covered(node):
                continue
            kind = self.reading(node)
            if kind is not None and self.alike(node) and not self._mixed(node):
                self.wrap(node, kind, f"{self.script.code(node)} is of the whole batch")
        self._behind()
        self._rest()

    def _mixed(self, node: ast.expr) -> bool:
        """Whether a loss is reckoned with something of this rank's part: `loss.item() / n`."""
        whole: ast.expr = node
        reckons = (ast.Mult, ast.Div, ast.Add, ast.Sub, ast.Pow)
        while isinstance(up := self.script.parents[whole], ast.BinOp) and isinstance(
            up.op, reckons
        ):
            whole = up
        return whole is not node and self.plan(whole) is None

    def _covered(self, node: ast.AST) -> bool:
        around = [node, *self.script.above(node)]
        return any(one in self.wrapped for one in around)

    # Conditions on a batch.

    def _tests(self) -> None:
        """`if torch.isnan(loss): break` goes by the loss of the whole batch; others by rank 0."""
        script = self.script
        for one in script.inside(self.body, ast.stmt, deep=False):
            if not isinstance(one, ast.If | ast.While):
                continue
            if not (steers(self.context, one) and self._mine(one)):
                continue
            for node in script.inside(one.test, ast.Name, ast.Attribute):
                kind = self.known(node)
                if kind is None or self._covered(node) or not self.alike(one):
                    continue
                up: ast.AST = node
                while self.reading(self._up(up)) is not None:
                    up = self._up(up)
                if isinstance(up, ast.expr):
                    self.wrap(up, kind, f"{script.code(up)} is of the whole batch")
            rest = {
                name.id for name in script.inside(one.test, ast.Name) if not self._covered(name)
            }
            if rest & self.local_names() and not draws(self.context, one.test):
                self.context.around(one.test, "rankup.broadcast(")
                self.wrapped.append(one.test)
                self.context.leave(
                    one,
                    "rank 0 decides here for all ranks, by its part of the batch "
                    "(rankup.broadcast)",
                )

    def _up(self, node: ast.AST) -> ast.AST:
        """The expression around a value of which it is read: past `loss.item` to `loss.item()`."""
        up = self.script.parents[node]
        if isinstance(up, ast.Attribute):
            call = self.script.parents[up]
            return call if isinstance(call, ast.Call) and call.func is up else up
        return up

    def _mine(self, node: ast.AST) -> bool:
        loops = {one.node for one in self.context.training.loops}
        return next((up for up in self.script.above(node) if up in loops), None) is self.where

    # What grows.

    def _augmented(self) -> list[ast.AugAssign]:
        return [
            one
            for one in self.script.inside(self.body, ast.AugAssign, deep=False)
            if isinstance(one.op, ast.Add) and self._mine(one)
        ]

    def _counters(self) -> None:
        """`total += y.size(0)` and the like, where all that are divided by each other are known."""
        script = self.script
        grown: dict[str, list[tuple[ast.AST, ast.expr]]] = {}
        for one in self._augmented():
            grown.setdefault(script.dotted(one.target), []).append((one, one.value))
        for assign in script.inside(self.body, ast.Assign, deep=False):
            value, name = assign.value, script.dotted(assign.targets[0])
            adds = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
            if adds and name and script.dotted(value.left) == name and self._mine(assign):  # type: ignore[attr-defined]
                grown.setdefault(name, []).append((assign, value.right))  # type: ignore[attr-defined]
        grown.pop("", None)
        plans: dict[str, list[tuple[ast.expr, Kind]] | None] = {}
        for name, values in grown.items():
            if name in self.losses.kinds or self._made_anew(name):
                continue
            plan: list[tuple[ast.expr, Kind]] | None = []
            for at, value in values:
                part = self.plan(value) if self.alike(at) or not self.local(value) else None
                plan = None if plan is None or part is None else plan + part
            plans[name] = plan
        local = {name for name, plan in plans.items() if plan is None}
        divided = [
            mentioned(one)
            for one in script.inside(script.scope(self.where), ast.BinOp)
            if isinstance(one.op, ast.Div)
        ]
        while True:
            more = {
                name
                for names in divided
                if names & local
                for name in names & plans.keys()
                if plans[name]
            } - local
            if not more:
                break
            local |= more
        for name in plans:
            if name in local:
                if any(self.local(value) for _, value in grown[name]):
                    self._leave_counter(grown[name][0][0], name)
                self.wrapped += [value for _, value in grown[name]]
                continue
            for _, value in grown[name]:
                self.put(value, self.plan(value) or [], f"{name} is of all ranks' batches")
        self._global_counters = frozenset(name for name in plans if name not in local)

    def _made_anew(self, name: str) -> bool:
        """Whether each round gives a name another value: noise added to a batch is no counter."""
        if name in self.values._targets:
            return True
        return any(
            isinstance(one, ast.Assign) and name not in mentioned(one.value)
            for one in self.body
            if name in mentioned(*getattr(one, "targets", []))
        )

    def _leave_counter(self, node: ast.AST, name: str) -> None:
        self.context.leave(
            node,
            f"{name} is of rank 0's part of the batches alone: what is added is not seen to be a "
            "sum over samples (rankup.batch_sum) or the loss (rankup.batch_mean)",
        )

    def plan(self, node: ast.expr) -> list[tuple[ast.expr, Kind]] | None:
        """The parts of an expression to be put together over the ranks; None: not known how."""
        kind = self.reading(node) or self.known(node)
        if kind is not None:
            return [(node, kind)]
        if isinstance(node, ast.Name | ast.Attribute) and self._read_before(node):
            return []
        if isinstance(node, ast.BinOp):
            sides = [self.plan(node.left), self.plan(node.right)]
            if sides[0] is not None and sides[1] is not None:
                return [*sides[0], *sides[1]]
        kind = self.values.kind(node)
        if kind in (Kind.SUM, Kind.SIZE):
            return [(node, Kind.SUM)]
        if not self.local(node) or self._whole_step(node):
            return []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            return self.plan(node.args[0]) if node.func.id in ("int", "float", "round") else None
        return None

    def _whole_step(self, node: ast.expr) -> bool:
        """Whether a value is what a step returns of its loss, read there for the whole batch."""
        function = self.script.called(node) if isinstance(node, ast.Call) else None
        trains = any(self.script.scope(one) is function for one in self.context.training.backwards)
        return function is not None and trains and returns_reading(self.context, function) == [True]

    def _meters(self) -> None:
        """`losses.update(loss.item(), x.size(0))`: the loss, weighed by the number of samples."""
        script = self.script
        for call in script.inside(self.body, ast.Call, deep=False):
            if not isinstance(script.parents[call], ast.Expr) or len(given(call)) < 2:
                continue
            if not self.alike(call) or not self._mine(call) or self._covered(call):
                continue
            args = given(call)
            if self.reading(args[0]) is None and self.known(args[0]) is None:
                continue
            if call_name(call) not in ("update", "add"):
                continue
            plans = [self.plan(one) for one in args]
            if all(one is not None for one in plans):
                for arg, plan in zip(args, plans, strict=True):
                    self.put(arg, plan or [], f"{script.code(arg)} is of the whole batch")

    def _shown(self) -> None:
        """The loss and numbers of samples in what is printed or logged."""
        for call in self.script.inside(self.body, ast.Call, deep=False):
            if call_name(call) in _SHOWS and self._mine(call) and self.alike(call):
                for arg in given(call):
                    self._show(arg, call_name(call) == "append")

    def _show(self, node: ast.AST, alone: bool) -> None:
        if self._covered(node) or isinstance(node, (*COMPREHENSIONS, ast.Lambda)):
            return
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.JoinedStr):
            plan = self.plan(node)
            if plan is None and isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod):
                return
            if plan:
                self.put(node, plan, f"{self.script.code(node)} is of the whole batch")
                return
            if alone and plan is None:
                return
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Name):
            return
        for child in ast.iter_child_nodes(node):
            called = isinstance(node, ast.Call) and child is node.func and not _format(node)
            if isinstance(child, ast.expr | ast.keyword | ast.FormattedValue) and not called:
                self._show(child, alone)

    # Behind the loop, and what is left.

    def _behind(self) -> None:
        """`return loss.item()` behind a loop: of its last batch, of which each rank has a part."""
        script = self.script
        block = script.file.names.block(self.where)
        later = block[block.index(self.where) + 1 :] if self.where in block else []  # type: ignore[arg-type]
        late = False
        for statement in later:
            inside = list(script.inside(statement, ast.AST, deep=False))
            given_ = {
                one.id
                for one in inside
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
            if given_ & self.losses.kinds.keys():
                return
            # By the batches of a further loop over parts the runtime would weigh it.
            late = late or any(
                loop.node in inside and (loop.trains or loop.node in self.context.sharded)
                for loop in self.context.training.loops
            )
            if isinstance(statement, Function | ast.ClassDef):
                continue
            for node in script.inside(statement, ast.expr, deep=False):
                kind = self.reading(node)
                up = self._up(node)
                if kind is None or (isinstance(up, ast.expr) and self.reading(up) is not None):
                    continue
                if late:
                    self.context.leave(
                        node,
                        f"{script.code(node)} is of rank 0's part of the last batch: keep "
                        f"rankup.batch_mean({script.code(node)}) before the next loop begins",
                    )
                elif not self._covered(node):
                    self.wrap(node, kind, f"{script.code(node)} is of the whole last batch")

    def _rest(self) -> None:
        """What is shown and is of rank 0's part of a batch: said once for each loop."""
        local = self.local_names() - self.losses.kinds.keys()
        for call in self.script.inside(self.body, ast.Call, deep=False):
            if call_name(call) not in _SHOWS or not self._mine(call):
                continue
            rest = {
                one.id
                for arg in given(call)
                for one in self.script.inside(arg, ast.Name)
                if not self._covered(one) and not self._read_before(one)
            }
            found = sorted(rest & local)
            if found:
                self.context.leave(
                    call,
                    f"{', '.join(found)}: of rank 0's part of the batch; only the loss and sums "
                    "over samples are put together over the ranks",
                    comment=False,
                )
                return


def _format(call: ast.Call) -> bool:
    return call_name(call) == "format"


def _plain_number(node: ast.expr) -> bool:
    """True of a number, a name or an attribute: what a loss is divided by to accumulate."""
    if type(literal(node)) in (int, float):
        return True
    if isinstance(node, ast.Call):
        return call_name(node) in ("len", "float", "int")
    return isinstance(node, ast.Name | ast.Attribute)
