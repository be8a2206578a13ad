"""What is made of a rank's part of the batches, followed from a sharded loop to who sees it.

A name that a sharded loop binds is of a part, and so is what is made of it: by assignment, in a
list, in an object, by a call, behind the loop, until a collective puts the ranks' values together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from ...script.effects import Reached, callee, leads_to, run_by_call, trains, written
from ...script.flow import argument, call_name, first_argument, given, literal, receiver
from ...script.loops import drawn_from, taken_from
from ...script.names import (
    COMPREHENSIONS,
    Function,
    calls_in,
    children,
    elements,
    parameters,
    walk,
)
from ...script.names import written as spelled
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import EXITS, SHOWING, words
from .facts import in_parts, is_reduction, names_rank, ported, shares
from .rule import Hit, rule

BATCH, GROWN = 1, 2  # of a rank's part of one batch; added up over its parts of many
_MOST = 20_000  # statements that are followed in one script
_DEEPEST = 6  # calls within calls
# What a tensor has whatever the number of its samples.
_OF_ANY_PART = words("dtype device ndim requires_grad is_cuda __class__ __name__ dim type")
_GROW = words("append extend update add insert put appendleft setdefault")
_NO_SINK = words("backward manual_backward step zero_grad count deal shard wrap")
_TOLD = SHOWING | words("print0 log_metrics savefig save_image add_image add_images add_histogram")
_FINITE = words("isnan isfinite isinf")
_SIZES = words("len size numel")
_TODO = (
    "put it together first: rankup.batch_mean or batch_sum in a training loop, rankup.mean(total, "
    "count) or rankup.gather behind one"
)


@dataclass
class _Seen:
    """What a function does with parts.

    Attributes:
        returned: how much each value that it returns is of a part; one, where it is no tuple.
        kept: the attributes of `self` that are of a part behind it.
    """

    returned: list[int] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sink:
    """A place that is given something of a part, or goes by it.

    Attributes:
        names: of what is of a part there.
        decides: a training ends there, or a schedule goes by it.
        inside: in the round of a sharded loop.
    """

    file: File
    node: ast.AST
    names: tuple[str, ...]
    degree: int
    decides: bool
    inside: bool


@lru_cache(maxsize=1)
def sinks(script: Script) -> tuple[_Sink, ...]:
    """The places in a script that are given something of a part, each once."""
    following = _Following(script)
    following.block(_Frame(script.file), script.file.tree.body)
    return tuple(following.found.values())


@dataclass
class _Frame:
    """A function that is followed.

    Attributes:
        env: how much each name is of a part; others are not.
        parts: the parameters that are given a loader of which each rank has a part.
        whole: the parameters that are given another one.
        inside: how many sharded loops are around.
    """

    file: File
    env: dict[str, int] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    inside: int = 0
    depth: int = 0
    returned: list[int] = field(default_factory=list)

    def degree(self, name: str) -> int:
        """How much a name, or any item that it holds by a name, is of a part."""
        items = [at for one, at in self.env.items() if one.startswith(f"{name}[")]
        return max(self.env.get(name, 0), *items, 0)

    def put(self, name: str, degree: int) -> None:
        """Give a name a value that is of a part to some degree; forget what it had."""
        if not name:
            return
        for one in [one for one in self.env if one.startswith((f"{name}.", f"{name}["))]:
            del self.env[one]
        if degree:
            self.env[name] = degree
        else:
            self.env.pop(name, None)


class _Following:
    """Follows the statements of a script in their order, and its calls into functions."""

    def __init__(self, script: Script) -> None:
        self.script, self.flow = script, script.flow
        self._by_rankup = ported(script)
        self.found: dict[ast.AST, _Sink] = {}
        self._left = _MOST
        self._known: dict[object, _Seen] = {}
        self._sharded: dict[ast.AST, bool] = {}
        self._reducing: dict[Function, bool] = {}

    # Statements.

    def block(self, frame: _Frame, statements: Iterable[ast.stmt], under: int = 0) -> None:
        """Follow statements.

        Args:
            under: the degree to which what leads to them is of a part.
        """
        for one in statements:
            self._left -= 1
            if self._left > 0:
                self._statement(frame, one, under)

    def _statement(self, frame: _Frame, one: ast.stmt, under: int) -> None:
        match one:
            case ast.Assign(value=value, targets=targets):
                degrees = self._values(frame, value)
                for target in targets:
                    self._assign(frame, target, degrees, under)
            case ast.AnnAssign(value=ast.expr() as value, target=target):
                self._assign(frame, target, self._values(frame, value), under)
            case ast.AugAssign(value=value, target=target):
                if max(self.value(frame, value), under):
                    name = _named(target) or spelled(_held(target))
                    frame.env[name] = GROWN if name else 0
            case ast.Expr(value=ast.Call() as call):
                self._call(frame, call, alone=True)
            case ast.Expr(value=value):
                self.value(frame, value)
            case ast.Return():
                degrees = self._values(frame, one.value) if one.value is not None else []
                if under:
                    degrees = [max(under, degree) for degree in degrees]
                frame.returned = _joined(frame.returned, degrees)
            case ast.If():
                self._if(frame, one, under)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(frame, one, under)
            case ast.With() | ast.AsyncWith():
                for item in one.items:
                    degree = self.value(frame, item.context_expr)
                    if item.optional_vars is not None:
                        self._assign(frame, item.optional_vars, [degree], under)
                self.block(frame, one.body, under)
            case ast.Try():
                for part in (one.body, *(each.body for each in one.handlers)):
                    self.block(frame, part, under)
                self.block(frame, [*one.orelse, *one.finalbody], under)
            case ast.Match():
                for case in one.cases:
                    self.block(frame, case.body, under)
            case ast.Delete():
                for target in one.targets:
                    frame.put(spelled(target), 0)

    def _assign(self, frame: _Frame, target: ast.expr, degrees: list[int], under: int) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            each = len(degrees) == len(target.elts)
            for number, part in enumerate(target.elts):
                self._assign(frame, part, [degrees[number] if each else max(degrees)], under)
            return
        degree = max(*degrees, under)
        if _named(target):
            frame.put(_named(target), degree)
        elif isinstance(target, ast.Subscript):  # of what it holds only a part may be
            name = spelled(_held(target))
            if degree and name:
                frame.env[name] = max(degree, frame.env.get(name, 0))
        else:
            name = spelled(target.value if isinstance(target, ast.Starred) else target)
            frame.put(name, degree)

    def _if(self, frame: _Frame, one: ast.If, under: int) -> None:
        test = self.value(frame, one.test)
        if test:
            self._decided(frame, one, test)
        before = dict(frame.env)
        self.block(frame, one.body, max(test, under))
        after = frame.env
        frame.env = before
        self.block(frame, one.orelse, max(test, under))
        for name, degree in after.items():
            frame.env[name] = max(degree, frame.env.get(name, 0))

    def _loop(self, frame: _Frame, one: LoopNode, under: int) -> None:
        if isinstance(one, ast.While):
            heads, targets, degree = [], [], self.value(frame, one.test)
            if degree and trains(frame.file, self.script, *one.body):
                self._note(frame, one.test, degree, decides=True)
        else:
            heads, targets = taken_from(frame.file, one)[:1], [one.target]
            degree = self.value(frame, one.iter)
        sharded = any(self._in_parts(frame, head) for head in heads)
        counted = not isinstance(one, ast.While) and "enumerate" in frame.file.code(one.iter)
        frame.inside += sharded
        for _ in range(2):  # what a round leaves the next one finds
            for target in targets:
                parts = target.elts if counted and isinstance(target, ast.Tuple) else [target]
                for number, part in enumerate(parts):
                    first = counted and number == 0
                    over = 0 if first else BATCH if sharded else min(degree, BATCH)
                    self._assign(frame, part, [over], 0)
            self.block(frame, one.body, under)
        frame.inside -= sharded
        self.block(frame, one.orelse, under)

    # Values: how much they are of a part.

    def _values(self, frame: _Frame, node: ast.expr) -> list[int]:
        """The degree of each part of a tuple; of anything else one."""
        if isinstance(node, ast.Tuple | ast.List) and node.elts:
            return [self.value(frame, one) for one in node.elts]
        if isinstance(node, ast.Call):
            return self._call(frame, node) or [0]
        return [self.value(frame, node)]

    def value(self, frame: _Frame, node: ast.AST) -> int:
        """The degree to which an expression is of a part."""
        match node:
            case ast.Constant() | ast.Lambda():
                return 0
            case ast.Name(id=name):
                return frame.degree(name)
            case ast.Subscript(value=ast.Name(id=name)) if _named(node) in frame.env:
                return frame.env[_named(node)]
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str())):
                return frame.env.get(name, 0)
            case ast.Call():
                return max(self._call(frame, node), default=0)
            case ast.Attribute(value=inner, attr=name):
                own = frame.env.get(spelled(node), 0)
                return own or (0 if name in _OF_ANY_PART else self.value(frame, inner))
            case ast.Subscript(value=ast.Attribute(attr="shape"), slice=at) if (
                literal(at) != 0 or not self._by_rankup
            ):
                return 0  # all dimensions but the samples'
            case ast.IfExp(test=test, body=body, orelse=other):
                self.value(frame, test)
                return max(self.value(frame, body), self.value(frame, other))
            case ast.NamedExpr(target=target, value=value):
                degree = self.value(frame, value)
                frame.put(target.id, degree)
                return degree
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self._comprehension(frame, node)
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                return 0
        below = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        return max((self.value(frame, one) for one in below), default=0)

    def _comprehension(self, frame: _Frame, node: ast.expr) -> int:
        assert isinstance(node, COMPREHENSIONS)
        outer, frame.env = frame.env, dict(frame.env)
        sharded = False
        for one in node.generators:
            here = self._in_parts(frame, one.iter)
            degree = BATCH if here else self.value(frame, one.iter)
            sharded = sharded or here
            self._assign(frame, one.target, [degree], 0)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        degree = max(self.value(frame, one) for one in values)
        frame.env = outer
        return GROWN if degree and sharded else degree

    # Calls.

    def _call(self, frame: _Frame, call: ast.Call, *, alone: bool = False) -> list[int]:
        """The degree of what a call gives; of each part of a tuple that a function returns."""
        file, name, owner = frame.file, call_name(call), receiver(call)
        degrees = [self.value(frame, one) for one in given(call)]
        most = max(degrees, default=0)
        of = self.value(frame, owner) if owner is not None else 0
        dotted = file.names.called(call)
        if self._ends(frame, call):
            return [0]
        drawn = drawn_from(call)
        if drawn is not None and self._in_parts(frame, drawn):
            return [BATCH]
        if dotted == "rankup.deal":
            return [BATCH]
        if name == "size" and of and literal(first_argument(call)) not in (0, None):
            return [0]
        if name in _SIZES and not self._by_rankup:
            return [0]  # a DistributedSampler pads: all parts are of one size
        if most and not self._of_ranks(call):
            if self._told(file, call, dotted):
                self._note(frame, call, most)
                return [0]
            if name == "step" and owner is not None and self._schedules(file, owner):
                self._note(frame, call, most, decides=True)
        reached = self._followed(file, call)
        if reached is not None:
            return self._function(frame, call, reached)
        if owner is not None and name in _GROW and not dotted:
            if most and not self._puts_together(file, owner):
                frame.env[spelled(_held(owner))] = GROWN
            return [0] if alone else [max(most, of)]
        followed = name in _NO_SINK or dotted.startswith("rankup.")
        if alone and most and not followed and not self._of_ranks(call):
            self._note(frame, call, most)
        return [max(most, of)]

    def _ends(self, frame: _Frame, call: ast.Call) -> bool:
        """Take a collective: what it puts together, or changes in place, is of no part any more."""
        file, owner = frame.file, receiver(call)
        found = callee(self.flow, file, call)
        dotted = file.names.called(call)
        if dotted == "rankup.backward":
            # The value of the loss is that of the whole batch, but for a graph that is kept.
            options = [argument(call, name) for name in ("retain_graph", "create_graph")]
            kept = any(literal(one) not in (None, False) for one in options if one is not None)
            ended = [] if kept else given(call)[:1]
        elif shares(file, call) and dotted.startswith("rankup."):
            ended = []  # it gives another value
        elif shares(file, call) or (found is not None and self._reduces(*found)):
            ended = [*given(call), *([owner] if owner is not None else [])]
        else:
            return False
        for one in ended:
            for part in elements(one):
                frame.put(spelled(part), 0)
        return True

    def _reduces(self, file: File, function: Function) -> bool:
        """True of a function of the script's own that puts values together."""
        if function not in self._reducing:
            self._reducing[function] = any(
                is_reduction(where, call)
                for where, one in leads_to(self.flow, file, function)
                for call in calls_in(*one.body)
            ) and not trains(file, self.script, *function.body)
        return self._reducing[function]

    def _puts_together(self, file: File, meter: ast.expr) -> bool:
        """True of a meter whose class has a reduction of its own, as those of torchmetrics."""
        for one in self.flow.origins(file, meter):
            made = one.file.names.called(one.node) if isinstance(one.node, ast.Call) else ""
            owner = self.flow.class_of(one.file, one.node)
            if made.startswith(("torchmetrics", "ignite")) or (
                owner is not None and any(is_reduction(owner[0], at) for at in calls_in(owner[1]))
            ):
                return True
        return False

    def _told(self, file: File, call: ast.Call, dotted: str) -> bool:
        """True of a call that shows, logs or writes what it is given."""
        if self.flow.callee(file, call) is not None:
            return False  # it is followed
        shown = call_name(call) in _TOLD and not dotted.startswith(("torch.", "numpy.", "math."))
        return shown or written(self.flow, file, call) is not None or dotted == "rankup.save0"

    @staticmethod
    def _of_ranks(call: ast.Call) -> bool:
        """True of `print(rank, loss)`, which is meant of each rank."""
        return any(names_rank(one) for one in given(call))

    def _schedules(self, file: File, owner: ast.expr) -> bool:
        return any(one.kind == "scheduler" for one in self.script.of(file, owner))

    def _followed(self, file: File, call: ast.Call) -> Reached | None:
        """The function of the script's own that a call runs; a model gives what it is given."""
        found = run_by_call(self.flow, file, call)
        return None if found is None or found[1].name == "forward" else found

    def _function(self, frame: _Frame, call: ast.Call, reached: Reached) -> list[int]:
        where, function = reached
        names = [one.arg for one in parameters(function.args)]
        bound = names[:1] in (["self"], ["cls"])
        of = "self" if bound else ""
        holder = receiver(call)
        # `patience(x)` runs its `__call__`, and `super().f(x)` and `self.f(x)` go on with `self`.
        around = spelled(holder if function.name != "__call__" else call.func) if bound else ""
        if bound and isinstance(holder, ast.Call) and call_name(holder) == "super":
            around = "self"
        env: dict[str, int] = {}
        parts, whole = set[str](), set[str]()
        for number, name in enumerate(names[bound:]):
            value = argument(call, name, number)
            if value is None:
                continue
            degree = self.value(frame, value)
            if degree:
                env[name] = degree
            (parts if self._in_parts(frame, value) else whole).add(name)
        if around:
            held = {one: at for one, at in frame.env.items() if one.startswith(f"{around}.")}
            env |= {of + one[len(around) :]: degree for one, degree in held.items()}
        inner = _Frame(
            where, env, frozenset(parts), frozenset(whole), frame.inside, frame.depth + 1
        )
        seen = self._run(inner, function)
        if around:
            for one in [one for one in frame.env if one.startswith(f"{around}.")]:
                del frame.env[one]
            kept = {around + one[len(of) :]: degree for one, degree in seen.kept.items()}
            frame.env |= kept
        return seen.returned or [0]

    def _run(self, frame: _Frame, function: Function) -> _Seen:
        env = tuple(sorted(frame.env.items()))
        key = function, env, frame.parts, frame.whole, frame.inside > 0
        if key not in self._known:
            self._known[key] = _Seen()  # of a function that calls itself
            if frame.depth <= _DEEPEST:
                self.block(frame, function.body)
            kept = {one: degree for one, degree in frame.env.items() if one.startswith("self.")}
            self._known[key] = _Seen(frame.returned, kept)
        return self._known[key]

    # Loops and decisions.

    def _in_parts(self, frame: _Frame, source: ast.expr) -> bool:
        """True where each rank has a part of what an expression gives."""
        if isinstance(source, ast.Name):
            if source.id in frame.parts:
                return True
            if source.id in frame.whole:  # `rankup.shard(loader)` of a parameter
                around = list(frame.file.names.up(source))[:2]
                return any(isinstance(up, ast.Call) and call_name(up) == "shard" for up in around)
        if source not in self._sharded:
            self._sharded[source] = in_parts(self.script, frame.file, source)
        return self._sharded[source]

    def _decided(self, frame: _Frame, one: ast.If, degree: int) -> None:
        """Note a test of a part that ends a training, unless another rule looks at it."""
        names, loops = frame.file.names, [loop.node for loop in self.script.train_loops]
        finite = {call_name(call) for call in calls_in(one.test)} & _FINITE
        if finite and not {*loops}.isdisjoint(names.up(one)):
            return  # RK181
        for inner in walk(*one.body):
            ends = isinstance(inner, ast.Break | ast.Return) or (
                isinstance(inner, ast.Call) and call_name(inner) in EXITS
            )
            # By hand batches are padded: all ranks pass over the same ones.
            if not ends and not (isinstance(inner, ast.Continue) and self._by_rankup):
                continue
            left = [up for up in names.up(inner) if isinstance(up, LoopNode)]
            if isinstance(inner, ast.Break | ast.Continue):
                left = left[:1]
            function = names.function(inner) if isinstance(inner, ast.Return) else None
            bodies = [*(loop.body for loop in left), *([function.body] if function else [])]
            if any(trains(frame.file, self.script, *body) for body in bodies):
                self._note(frame, one.test, degree, decides=True)
                return

    def _note(self, frame: _Frame, node: ast.AST, degree: int, *, decides: bool = False) -> None:
        if node in self.found:
            return
        values = given(node) if isinstance(node, ast.Call) else [node]
        names = dict.fromkeys(
            name
            for value in values
            for one in self._outside_collectives(frame.file, value)
            if (name := _named(one) or spelled(one)) and frame.degree(name)
        )
        names = {one: None for one in names if not any(x.startswith(f"{one}[") for x in names)}
        inside = frame.inside > 0
        self.found[node] = _Sink(frame.file, node, tuple(names), degree, decides, inside)

    @staticmethod
    def _outside_collectives(file: File, node: ast.AST) -> Iterator[ast.AST]:
        waiting = [node]
        while waiting:
            one = waiting.pop(0)
            if not (isinstance(one, ast.Call) and shares(file, one)):
                yield one
                waiting[:0] = children(one)


def _named(node: ast.AST) -> str:
    """`state['loss']` of an item with a name; empty of anything else."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
            return f"{name}[{key!r}]"
    return ""


def _held(node: ast.AST) -> ast.AST:
    """`total` of `total[label]`: what holds a value."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _joined(one: list[int], other: list[int]) -> list[int]:
    """The degrees of what a function returns at two places."""
    if len(one) != len(other):
        return [max([*one, *other], default=0)] if one else other
    return [max(pair) for pair in zip(one, other, strict=True)]


@rule("RK121", "warning", "a number of this rank's part only")
def of_a_part(file: File, script: Script) -> Iterator[Hit]:
    """What is made of the batches of a loop that gives each rank its part, and is shown, logged,
    saved or drawn, or handed to a function that is not followed, without a collective on the way:
    counters, lists, the last batch behind a loop.

    What rank 0 tells is of its part of the data: noisier, and another for each number of GPUs.

    ```diff
     rankup.setup()
     correct = 0
     with torch.no_grad():
         for x, y in rankup.shard(valid_loader):
             correct += (model(x).argmax(1) == y).sum().item()
    -print0(correct / len(valid_set))
    +print0(rankup.mean(correct, len(valid_set)))
    ```

    Puts together what is a sum over samples; behind `rankup.backward(loss)` the loss is that of the
    whole batch. In a script that joins ranks by hand only what grows over the batches is reported,
    where it is used behind the loop.
    """
    if not script.distributed:
        return
    by_rankup = ported(script)
    for one in sinks(script):
        if one.file is not file or one.decides:
            continue
        if by_rankup or (one.degree == GROWN and not one.inside):
            names = ", ".join(one.names) or "this"
            yield Hit(one.node, f"{names}: of this rank's part of the batches only", _TODO)


@rule("RK139", "error", "a training that each rank ends by a number of its own")
def ends_apart(file: File, script: Script) -> Iterator[Hit]:
    """A test of what is of a rank's part of the batches that ends a training, also by an object
    that counts its patience; a schedule that steps by such a number.

    One rank ends, and the others wait for it at the next step; learning rates differ from rank to
    rank, and the copies of the model part.

    ```diff
     rankup.setup()
     for epoch in range(10):
         for x, y in rankup.shard(loader):
             loss = F.cross_entropy(model(x), y)
             loss.backward()
    -    if loss.item() < 0.1:
    +    if rankup.broadcast(loss.item()) < 0.1:
             break
    ```

    Writes `rankup.broadcast` where a number decides plainly.
    """
    if not script.distributed:
        return
    for one in sinks(script):
        if one.file is file and one.decides:
            names = ", ".join(one.names) or "this"
            yield Hit(
                one.node,
                f"{names}: each rank goes by its own part here, and one may end before the others",
                "decide by one number on all ranks: rankup.mean(total, count), or rankup.broadcast",
            )
