"""The numbers of a training loop: the loss, and what are sums over samples by construction."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property

from ...script.effects import callee
from ...script.flow import call_name, given
from ...script.names import (
    COMPREHENSIONS,
    Function,
    bound_in,
    calls_in,
    elements,
    made_of,
    mentioned,
    parameters,
    root_name,
    stored,
    walk,
)
from ...script.roles import Loop
from ...script.torch_names import SHOWING, words
from ..rewrite.context import Context
from ..rewrite.losses import Kind, differentiated
from ..rewrite.values import Values
from .facts import shares
from .helpers import made_in
from .kept import changed, lists
from .readings import SHOWS, Region, Step, returns_reading, value_of
from .sizes import batch_sizes
from .steering import steers

_OWN_COUNTER = (
    "is of rank 0's part of the batches alone: what is added is not seen to be a sum over samples "
    "(rankup.batch_sum) or the loss (rankup.batch_mean)"
)
_CHOSEN_COUNTER = "is rank 0's: whether something is added here goes by each rank's own part"
# Around what is shown as it is.
_WRITTEN_OUT = (ast.JoinedStr, ast.FormattedValue, ast.keyword, ast.Tuple, ast.List, ast.Dict)
_KEEPS = words("update append extend add")


def training_numbers(context: Context) -> None:
    """`batch_mean` around the loss, `batch_sum` around sums over samples; the rest is rank 0's."""
    for loop in context.training.loops:
        if loop.trains and (context.training.sources(loop) or _backwards(context, loop)):
            Numbers(context, loop).write()
    for function, calls in context.training.steps.items():
        Step(context, function, calls).write()
    _read_elsewhere(context)


def _read_elsewhere(context: Context) -> None:
    """Say where others read the loss that a training keeps: `trainer.loss.item()` in a callback."""
    script, training = context.script, context.training
    kept = {
        loss.attr: call
        for call in training.backwards
        if isinstance(loss := differentiated(call), ast.Attribute)
    }
    own: set[ast.AST] = {one.node for one in training.loops if one.trains} | {*training.steps}
    for file in script.flow.files if kept else ():
        for call in file.names.all(ast.Call):
            read = call.func.value if isinstance(call.func, ast.Attribute) else None
            if call_name(call) != "item" or not isinstance(read, ast.Attribute):
                continue
            if read.attr in kept and not (file is script.file and own & {*script.above(call)}):
                text = (
                    f"{file.code(read)} ({file.short_place(call)}): of rank 0's part of the batch"
                )
                context.leave(kept[read.attr], text, comment=False)


def _backwards(context: Context, loop: Loop) -> list[ast.Call]:
    calls = set(context.script.inside(loop.node, ast.Call))
    return [one for one in context.training.backwards if one in calls]


class Numbers(Region):
    """The numbers that one training loop adds up, keeps and shows."""

    def __init__(self, context: Context, loop: Loop) -> None:
        super().__init__(context, loop.node, _backwards(context, loop))
        self.loop = loop
        self.blended: dict[str, ast.AST] = {}
        self._see_whole()

    def _see_whole(self) -> None:
        """Look at what is of the whole batch by now, and at the values with that."""
        self.whole_names(self._from_steps)
        fixed = dict.fromkeys(self.kinds, Kind.UNKNOWN)
        fixed |= dict.fromkeys(self.whole, Kind.FIXED)
        self.values = Values(self.context.training, self.loop, fixed)

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return list(self.script.inside(self.body, ast.Call, deep=False))

    @cached_property
    def _added(self) -> list[ast.AugAssign]:
        """`values += [x]`."""
        inside = self.script.inside(self.body, ast.AugAssign, deep=False)
        return [one for one in inside if isinstance(one.op, ast.Add) and lists(one.value)]

    @cached_property
    def _from_steps(self) -> set[str]:
        """`loss = step(x, y)` of a function that returns the loss that it differentiates."""
        found = set[str]()
        for one in self.script.inside(self.body, ast.Assign, deep=False):
            names = map(self.script.dotted, elements(one.targets[0]))
            read = zip(names, self._read_in_step(one.value), strict=False)
            found |= {name for name, reads in read if reads}
        return {name for name in found if len(self._given(name)) == 1}

    def _read_in_step(self, call: ast.AST) -> list[bool]:
        """Of what a step returns, which values are readings of its loss, made whole there."""
        called = self.context.called(call) if isinstance(call, ast.Call) else None
        if called is None:
            return []
        there, function = called
        trains = any(there.script.scope(one) is function for one in there.training.backwards)
        return returns_reading(there, function) if trains else []

    def local_names(self) -> set[str]:
        return self._of_batches - self.whole - self._global_counters - self._assumed

    @cached_property
    def _of_batches(self) -> set[str]:
        """Names that are made of batches, or given a value where something of a batch says so."""
        held = {name for one in self._held for name in stored(*one.targets)}
        return self.chosen(self.context.training.derived(self.loop) | held)

    _global_counters: frozenset[str] = frozenset()
    _assumed: frozenset[str] = frozenset()  # it is looked at whether they are global

    def put(self, plan: list[tuple[ast.expr, Kind]], text: str) -> None:
        """Put collectives around parts of a value, as `plan` says."""
        for node, kind in plan:
            self.wrap(node, kind, text)

    def write(self) -> None:
        self._tests()
        self._counters()
        self._shown()
        for node in list(self.readings()):
            if self.covered(node):
                continue
            kind = self.reading(node)
            half = self._mixed(node) or self.compared(node)
            if kind is not None and self.alike(node) and not half:
                self.wrap(node, kind, f"{self.script.code(node)} is of the whole batch")
        for call in self._calls:
            self._stepped(call)
            self._handed(call)
        self._behind()
        meters = self._rest()
        self.context.local[self.where] = self.local_names() | meters

    def _stepped(self, call: ast.Call) -> None:
        """`scheduler.step(loss)` of a tensor."""
        for arg in given(call) if call_name(call) == "step" else ():
            kind = self.known(arg)
            if kind is not None and self.alike(arg) and not self.covered(arg):
                self.wrap(arg, kind, f"{self.script.code(arg)} is of the whole batch")

    def _handed(self, call: ast.Call) -> None:
        """`note(loss)` of a function of the script's files that starts no backward from it."""
        script = self.script
        found = callee(script.flow, script.file, call)
        if found is None or not isinstance(script.parents[call], ast.Expr):
            return
        started = {call_name(one) for one in calls_in(found[1])} & {"backward", "grad"}
        if started or self.context.training.trains(call):
            return
        for arg in given(call):
            kind = self.known(arg)
            if kind is not None and self.alike(arg) and not self.covered(arg):
                self.wrap(arg, kind, f"{script.code(arg)} is of the whole batch")

    def _mixed(self, node: ast.expr) -> bool:
        """True where a loss is reckoned with something of this rank's part: `loss.item() / n`."""
        whole: ast.expr = node
        reckons = (ast.Mult, ast.Div, ast.Add, ast.Sub, ast.Pow)
        while isinstance(up := self.script.parents[whole], ast.BinOp) and isinstance(
            up.op, reckons
        ):
            whole = up
        return whole is not node and self.plan(whole) is None

    # Conditions on a batch.

    def _tests(self) -> None:
        """Also sizes: `if len(x) < 8: break`."""
        self.steered()
        script = self.script
        for one in script.inside(self.body, ast.stmt, deep=False):
            if not isinstance(one, ast.If | ast.While):
                continue
            if not (steers(self.context.training, one) and self.mine(one)):
                continue
            for size in script.inside(one.test, ast.expr):
                counted = self.values.kind(size) is Kind.SIZE and self.alike(size)
                if counted and not self.covered(size):
                    text = f"{script.code(size)} is of the whole batch"
                    self.wrap(size, Kind.SUM, text)

    # What grows.

    @cached_property
    def _grown(self) -> tuple[dict[str, list[tuple[ast.AST, ast.expr]]], set[str]]:
        """The names that go from batch to batch, what they are given there, and which are sums.

        `total += n` and `total = total + n` add up; `mean = 0.9 * mean + 0.1 * n` does not.
        """
        script, sums = self.script, set[str]()
        given_: dict[str, list[tuple[ast.AST, ast.expr]]] = {}
        carried: set[str] = set()
        for one in script.inside(self.body, ast.stmt, deep=False):
            if not isinstance(one, ast.Assign | ast.AugAssign) or not self.mine(one):
                continue
            if lists(one.value) and isinstance(one, ast.AugAssign):
                continue  # as `append` of its parts
            if isinstance(one, ast.AugAssign):
                name = script.dotted(one.target) or "".join(sorted(stored(one.target))[:1])
                given_.setdefault(name, []).append((one, one.value))
                if isinstance(one.op, ast.Add | ast.Sub):
                    sums.add(name)
                continue
            for name in map(script.dotted, elements(one.targets[0])):
                value = value_of(script, one, name) or one.value
                match value:
                    case ast.BinOp(left=left, op=ast.Add()) if script.dotted(left) == name:
                        sums.add(name)
                        value = value.right
                    case _ if self._blended(name, value):
                        carried.add(name)
                given_.setdefault(name, []).append((one, value))
        return {name: given_[name] for name in given_ if name in (sums | carried) - {""}}, sums

    def _blended(self, name: str, value: ast.expr) -> bool:
        """True of an expression that reckons with the name that it is given to."""
        match value:
            case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
                return self._blended(name, left) or self._blended(name, right)
        return self.script.dotted(value) == name

    def _counters(self) -> None:
        """`total += y.size(0)` and the like, where all that are divided by each other are known."""
        grown, sums = self._grown
        while True:
            plans, local = self._plans(grown)
            known = frozenset(name for name in plans if name not in local)
            more = known - self._global_counters
            self._global_counters |= known  # of which others may be made
            plain = (one for given_ in self._assignments.values() for one in given_)
            made = (mentioned(one.value) for one in plain if isinstance(one, ast.Assign))
            if more and any(more & names for names in made):
                self._see_whole()
            if not (more and local):
                break
        for name in plans:
            if name in local:
                parts = [at for at, value in grown[name] if self._of_training(value)]
                chosen = [at for at, _ in grown[name] if at not in parts and not self.alike(at)]
                if parts and name in sums:
                    self.context.leave(parts[0], f"{name} {_OWN_COUNTER}")
                elif chosen:
                    self.context.leave(chosen[0], f"{name} {_CHOSEN_COUNTER}")
                elif parts:
                    self.blended.setdefault(name, parts[0])
                self.wrapped += [value for _, value in grown[name]]
                continue
            for _, value in grown[name]:
                self.put(self.plan(value) or [], f"{name} is of all ranks' batches")

    def _plans(
        self, grown: dict[str, list[tuple[ast.AST, ast.expr]]]
    ) -> tuple[dict[str, list[tuple[ast.expr, Kind]] | None], set[str]]:
        """The parts of what each name grows by that are put together; and which stay local."""
        script = self.script
        plans: dict[str, list[tuple[ast.expr, Kind]] | None] = {}
        for name, values in grown.items():
            if name in self.kinds or self._reassigned(name, [at for at, _ in values]):
                continue
            plan: list[tuple[ast.expr, Kind]] | None = []
            self._assumed = frozenset({name})
            for at, value in values:
                part = self.plan(value) if self.alike(at) else None
                plan = None if plan is None or part is None else plan + part
            plans[name] = plan
        self._assumed = frozenset()
        local = {name for name, plan in plans.items() if plan is None}
        divided = [
            mentioned(one)
            for one in script.inside(script.scope(self.where), ast.BinOp)
            if isinstance(one.op, ast.Div)
        ]
        divided += self._by_the_same(plans)
        entries = [name for name in plans if "[" in name]  # of one dictionary, divided in a loop
        for root in {name.partition("[")[0] for name in entries}:
            divided.append({name for name in entries if name.startswith(f"{root}[")})
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
        return plans, local

    def _by_the_same(self, plans: dict[str, list[tuple[ast.expr, Kind]] | None]) -> list[set[str]]:
        """Names of sums over samples that are divided by one and the same number of samples."""
        sums = {
            name
            for name, plan in plans.items()
            if plan is None or any(kind is Kind.SUM for _, kind in plan)
        }
        groups: dict[str, set[str]] = {}
        for one in self.script.inside(self.script.scope(self.where), ast.BinOp):
            if isinstance(one.op, ast.Div):
                divisor = self.script.code(one.right)
                groups.setdefault(divisor, set()).update(mentioned(one.left) & sums)
        return list(groups.values())

    def _reassigned(self, name: str, grows: Sequence[ast.AST]) -> bool:
        """True where each round gives a name another value: noise that is added is no counter."""
        script = self.script
        if name in self.values.targets:
            return True
        for assign in script.inside(self.body, ast.Assign, deep=False):
            if name not in mentioned(*assign.targets):
                continue
            calls = script.inside(assign.value, ast.Call)
            if any(call_name(one) == "next" for one in calls):
                return True  # a batch
            if name in mentioned(assign.value):
                continue
            block = script.file.names.block(assign)
            behind = block[block.index(assign) + 1 :]
            if assign in self.body or any(
                up in behind for one in grows for up in (one, *script.above(one))
            ):
                return True
        return False

    def plan(self, node: ast.expr) -> list[tuple[ast.expr, Kind]] | None:
        """The parts of an expression to be put together over the ranks; None: not known how."""
        if isinstance(node, ast.Call) and shares(self.script.file, node):
            return []
        kind = self.reading(node) or self.known(node)
        if kind is not None:
            return [(node, kind)]
        if isinstance(node, ast.Name | ast.Attribute) and self._read_before(node):
            return []
        match node:
            case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
                alike = isinstance(node, ast.BinOp) or not self.local(node.test)
                sides = [self.plan(left), self.plan(right)] if alike else [None, None]
                if sides[0] is not None and sides[1] is not None:
                    return [*sides[0], *sides[1]]
        kind = self.values.kind(node)
        if kind in (Kind.SUM, Kind.SIZE):
            return [(node, Kind.SUM)]
        if not self.local(node) or self._read_in_step(node) == [True]:
            return []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            return self.plan(node.args[0]) if node.func.id in ("int", "float", "round") else None
        return None

    def _shown(self) -> None:
        """The loss and numbers of samples in what is printed or logged."""
        for call in self._calls:
            if call_name(call) in SHOWS and self.mine(call) and self.alike(call):
                for arg in given(call):
                    self._show(arg, call_name(call) == "append")
        for added in self._added:
            if isinstance(added.value, ast.List) and self.mine(added) and self.alike(added):
                for arg in added.value.elts:
                    self._show(arg, True)

    def _show(self, node: ast.AST, alone: bool) -> None:
        if self.covered(node) or isinstance(node, (*COMPREHENSIONS, ast.Lambda)):
            return
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.JoinedStr):
            plan = self.plan(node)
            if plan is None and isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mod):
                return
            if plan:
                self.put(plan, f"{self.script.code(node)} is of the whole batch")
                return
            if alone and plan is None:
                return
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Name):
            return
        for child in ast.iter_child_nodes(node):
            called = (
                isinstance(node, ast.Call) and child is node.func and call_name(node) != "format"
            )
            shown = isinstance(child, ast.expr | ast.keyword | ast.FormattedValue)
            if shown and not called and not self.passes_over(node, child):
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
            if bound_in(inside) & self.kinds.keys():
                return
            # By the batches of a further loop over parts the runtime would weigh it.
            late = late or any(
                loop.node in inside and (loop.trains or loop.node in self.context.sharded)
                for loop in self.context.training.loops
            )
            if isinstance(statement, Function | ast.ClassDef):
                continue
            for node in script.inside(statement, ast.expr, deep=False):
                if isinstance(node, ast.Call) and not late:
                    self._stepped(node)
                kind = self.largest(node) or self._shown_bare(node)
                if kind is None:
                    continue
                if late:
                    self.context.leave(
                        node,
                        f"{script.code(node)} is of rank 0's part of the last batch: keep "
                        f"rankup.batch_mean({script.code(node)}) before the next loop begins",
                    )
                elif not self.covered(node):
                    self.wrap(node, kind, f"{script.code(node)} is of the whole last batch")

    def _shown_bare(self, node: ast.expr) -> Kind | None:
        """The kind of `loss` of `print(f"{loss:.4f}")`; None of a part of another value."""
        inner: ast.AST = node
        for up in self.script.above(node):
            filled = isinstance(up, ast.BinOp) and isinstance(up.op, ast.Mod)
            if isinstance(up, ast.Call) and call_name(up) != "format":
                shown = call_name(up) in SHOWS and inner is not up.func
                return self.known(node) if shown else None
            if not (filled or isinstance(up, (*_WRITTEN_OUT, ast.Call))):
                return None
            inner = up
        return None

    def _rest(self) -> set[str]:
        """Say once for each loop what it shows of rank 0's part of a batch.

        Returns:
            The objects that are given such numbers: `accuracies` of `accuracies.update(hits)`.
        """
        local = self.local_names() - self.kinds.keys()
        whole = batch_sizes(self.context.training) - bound_in(walk(self.where))
        found: dict[str, ast.AST] = {}
        read: dict[str, ast.AST] = {}
        meters: set[str] = set()
        places: list[ast.Call | ast.AugAssign] = [*self._added]
        places += [call for call in self._calls if call_name(call) in SHOWS | {"extend"}]
        for call in filter(self.mine, places):
            shown = given(call) if isinstance(call, ast.Call) else [call.value]
            self._divided(call, local, whole)
            for value in self.script.inside(shown, ast.expr):
                bare = self.known(value) is not None
                bare = bare and not isinstance(self.script.parents[value], ast.Attribute)
                if (bare or self.largest(value) is not None) and not self.covered(value):
                    read.setdefault(self.script.code(value), call)
            for one in self.script.inside(shown, ast.Name):
                if one.id not in local or self.covered(one) or self._read_before(one):
                    continue
                above = self.script.above(one)
                stepped = any(self._read_in_step(up) == [True] for up in above)
                if not stepped and not self._of_evaluation(one):
                    found.setdefault(one.id, call)
                    if isinstance(call, ast.AugAssign):
                        meters |= mentioned(call.target)
                    elif call_name(call) in _KEEPS:
                        alone = isinstance(self.script.parents[call], ast.Expr)
                        meters |= mentioned(call.func) if alone else set()
        for call, name in (*self._shown_behind(local), *self._shown_by_functions()):
            found.setdefault(name, call)
        for call in self._calls:
            meters |= self._told(call)
        for assign in self.script.inside(self.body, ast.Assign, deep=False):
            self._extreme(assign, local)
        other = "" if read else ", other than the loss"
        found = self.blended | found | read
        if found:
            self.context.leave(
                next(iter(found.values())),
                f"{', '.join(sorted(found))}: of rank 0's part of the batch{other}",
                comment=False,
            )
        return meters

    def _told(self, call: ast.Call) -> set[str]:
        """The object of `stopper(accuracy)`, by which something may be decided later."""
        script = self.script
        tells = isinstance(script.parents[call], ast.Expr) and call_name(call) not in SHOWING
        if not tells or script.file.names.called(call) or not self.mine(call):
            return set()
        if not any(self._of_training(one) and self.differs(one) for one in given(call)):
            return set()
        made = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        roles = {one.kind for one in script.understood.of(script.file, made)}
        function = isinstance(call.func, ast.Name) and script.called(call) is not None
        return set() if roles or function else mentioned(made)

    def _shown_by_functions(self) -> Iterator[tuple[ast.Call, str]]:
        """The functions that show what they make of this rank's part."""
        script = self.script
        for call in self._calls:
            found = callee(script.flow, script.file, call)
            known = call_name(call) in SHOWS or self.context.training.trains(call)
            if found is None or known or not self.mine(call):
                continue
            function = found[1]
            names = set[str]()
            for name in parameters(function.args):
                value = script.given(function, name.arg, call)
                if value is not None and self._of_training(value) and not self.covered(value):
                    names.add(name.arg)
            made = made_of(walk(function), names) if names else set()
            shown = (one for one in walk(function) if isinstance(one, ast.Call))
            if any(call_name(one) in SHOWING and mentioned(*given(one)) & made for one in shown):
                yield call, f"what {call_name(call)}() shows"
            elif made and any(
                mentioned(*by) & made and root_name(of) not in made | made_in(function.body)
                for one in walk(function)
                for of, by in changed(one)
            ):
                yield call, f"what {call_name(call)}() keeps"

    def _shown_behind(self, local: set[str]) -> Iterator[tuple[ast.Call, str]]:
        """Yield the calls behind the loop that show the last value of a rank's own name.

        Also those that are given a table with entries for the samples of this rank alone.
        """
        script, end = self.script, self.script.span(self.where)[1]
        body = script.scope(self.where).body
        calls = [
            call
            for call in script.inside(body, ast.Call, deep=False)
            if script.span(call)[0] >= end
        ]
        if not calls:
            return
        counters, _ = self._grown
        stores: dict[str, list[ast.AST]] = {}
        tables = set[str]()
        for one in script.inside(body, ast.Name, ast.Subscript, deep=False):
            if isinstance(script.parents[one], ast.AugAssign):
                continue  # a counter
            if isinstance(one, ast.Name | ast.Subscript) and isinstance(one.ctx, ast.Store):
                names = mentioned(one) - mentioned(getattr(one, "slice", one.ctx))
                entries = {name for name in names if "[" in name}
                for name in (entries or names) & local:
                    root = name.partition("[")[0]
                    stores.setdefault(root, []).append(one)
                    if isinstance(one, ast.Subscript) and not entries:
                        tables.add(root)
        for call in calls:
            shown = call_name(call) in SHOWING
            for one in (one for arg in given(call) for one in script.inside(arg, ast.Name)):
                if one.id in counters or not (shown or one.id in tables) or self.covered(one):
                    continue
                before = [at for at in stores.get(one.id, ()) if script.span(at) < script.span(one)]
                last = max(before, key=script.span, default=None)
                inside = last is not None and self.where in script.above(last)
                if inside and not self._of_evaluation(one):
                    yield call, one.id

    def _extreme(self, assign: ast.Assign, local: set[str]) -> None:
        """Say of `worst = max(worst, error)` that it is of rank 0's part."""
        script, value = self.script, assign.value
        name = script.dotted(assign.targets[0])
        if not isinstance(value, ast.Call) or call_name(value) not in ("max", "min"):
            return
        parts = [one for arg in given(value) for one in script.inside(arg, ast.Name)]
        others = [one for one in parts if one.id in local - {name} and not self.covered(one)]
        grows = name in mentioned(*given(value)) and not self._reassigned(name, [assign])
        if grows and self.mine(assign) and not all(map(self._of_evaluation, others)):
            self.context.leave(
                assign,
                f"{name} is of rank 0's part of the batches alone: behind the loop, "
                f"{call_name(value)}(rankup.gather([{name}])) is of all ranks'",
            )

    def _of_training(self, value: ast.expr) -> bool:
        """True of what is of this rank's part, and not made of batches of an evaluation alone."""
        names = [one for one in self.script.inside(value, ast.Name) if self.local(one)]
        return self.local(value) and not (names and all(map(self._of_evaluation, names)))

    def _of_evaluation(self, name: ast.Name, depth: int = 6) -> bool:
        """True where a name was last given what is made of a batch drawn for an evaluation."""
        script, at = self.script, self.script.span(name)[0]
        before = [one for one in self._given(name.id) if script.span(one)[1] <= at]
        last = before[-1] if before else None
        if last in self._held:
            return True
        value = last.value if isinstance(last, ast.Assign) and depth else None
        return value is not None and any(
            self._of_evaluation(one, depth - 1) for one in script.inside(value, ast.Name)
        )

    @cached_property
    def _held(self) -> list[ast.Assign]:
        """The statements that draw a batch of a loader that this loop does not train on."""
        statements = self.script.inside(self.body, ast.Assign, deep=False)
        return [one for one in statements if self.context.training.for_evaluation(self.loop, one)]

    def _divided(self, call: ast.AST, local: set[str], whole: set[str]) -> None:
        """Say where something of this rank's part is divided by the size of the whole batch."""
        script = self.script
        for one in script.inside(call, ast.BinOp):
            if not isinstance(one.op, ast.Div) or self.covered(one.left):
                continue
            sizes = [script.code(part) for part in script.inside(one.right, ast.expr)]
            parts = [name for name in script.inside(one.left, ast.Name) if name.id in local]
            parts = [name for name in parts if not self._of_evaluation(name)]
            if parts and whole & set(sizes):
                self.context.leave(
                    one,
                    f"{script.code(one)}: of this rank's part of a batch, divided by the size of "
                    "the whole: put rankup.batch_sum(…) around what is a sum over samples",
                )
