"""The sums in a loop over batches: hits, sizes, `loss.item() * len(batch)`.

In training they are put together batch by batch, in an evaluation behind its loop. Only what holds
by construction counts; all else is `UNKNOWN`, and no change of a port rests on it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ...script.flow import argument, call_name, given, is_none, literal
from ...script.names import Function
from ...script.roles import Loop
from ...script.torch_names import LOADER_WRAPPERS, words
from ..rewrite.losses import Kind, plain_reduction
from ..rewrite.script import ForNode, Script
from ..rewrite.training import Training

_ROWS = (Kind.BATCH, Kind.ROWS)
# Methods that give a tensor back on another device, of another type, or as Python's numbers.
_SAME = words(
    "to cuda cpu float double half long int bool detach clone contiguous item tolist numpy "
    "type_as requires_grad_"
)
_EACH = words(
    "abs neg exp log sqrt square pow sigmoid tanh relu round sign clamp float logical_not "
    "view_as reshape_as isnan isfinite"
)
_COMPARE = words("eq ne lt le gt ge equal_ logical_and logical_or sub add mul div")
_ALONG = words("argmax argmin softmax log_softmax sum mean norm prod any all")
_SHAPED = words("view reshape flatten squeeze unsqueeze")
_PAIRS = frozenset({"max", "min", "topk", "sort"})
_DEEPEST = 60
# By these a loader puts batches together in its own way.
_OWN_BATCHES = ("collate_fn", "sampler", "batch_sampler")


@dataclass(frozen=True)
class Defined:
    """A value that a name is given in a loop; at `path` of it where it is unpacked."""

    statement: ast.stmt
    value: ast.expr
    path: tuple[int, ...] = ()


class Sums:
    """The kinds of the values in one loop, or in a function.

    Args:
        loop: None for a function that is not looked at for a loop.
        known: the kind of a name at its place, where that is known otherwise, as that of the loss
            that is differentiated.
        function: to be looked at instead of the loop that calls it, its parameters being known.
    """

    def __init__(
        self,
        training: Training,
        loop: Loop | None,
        known: Callable[[ast.expr], Kind | None],
        function: Function | None = None,
    ) -> None:
        self.training, self.script, self.loop = training, training.script, loop
        self._given = known
        self.rows = loop is not None and function is None and plain_batches(training, loop)
        self.targets = _targets(self.script, loop) if loop is not None and not function else {}
        where = function or (loop.node if loop is not None else None)
        self._body = where.body if where is not None else []
        self.defined = definitions(self.script, self._body)
        self.grown = {
            self.script.dotted(one.target)
            for one in self.script.inside(self._body, ast.AugAssign, deep=False)
        }
        self._known: dict[ast.expr, Kind] = {}

    def _returned(self, call: ast.Call, path: tuple[int, ...], depth: int) -> Kind:
        """The kind of what a plain function of the script returns: it only computes."""
        script, function = self.script, self.script.called(call)
        if function is None or any(one.arg is None for one in call.keywords):
            return Kind.UNKNOWN
        plain = ast.Assign | ast.AnnAssign | ast.Return | ast.Expr | ast.With
        body = list(script.inside(function.body, ast.stmt, deep=False))
        last = function.body[-1]
        if not all(isinstance(one, plain) for one in body) or not isinstance(last, ast.Return):
            return Kind.UNKNOWN
        value = last.value
        for number in path:
            if not isinstance(value, ast.Tuple) or number >= len(value.elts):
                return Kind.UNKNOWN
            value = value.elts[number]
        if value is None or sum(isinstance(one, ast.Return) for one in body) > 1:
            return Kind.UNKNOWN
        known: dict[str, Kind] = {}
        for name in script.parameters(function):
            passed = script.given(function, name, call)
            known[name] = Kind.FIXED if passed is None else self.kind(passed, depth)
        inner = Sums(self.training, self.loop, lambda one: known.get(script.dotted(one)), function)
        return inner.kind(value, depth)

    def kind(self, node: ast.expr, depth: int = 0) -> Kind:
        """The kind of an expression."""
        if depth > _DEEPEST:
            return Kind.UNKNOWN
        if isinstance(node, ast.Name | ast.Attribute) and (given_ := self._given(node)) is not None:
            return given_
        if node in self._known:
            return self._known[node]
        self._known[node] = self._kind(node, depth + 1)
        return self._known[node]

    def _kind(self, node: ast.expr, depth: int) -> Kind:
        match node:
            case ast.Constant():
                return Kind.FIXED
            case ast.Name():
                return self._name(node, depth)
            case ast.Attribute():
                return self._attribute(node, depth)
            case ast.Subscript():
                return self._subscript(node, depth)
            case ast.Call():
                return self._call(node, depth)
            case ast.Compare(left=left, comparators=others):
                return _rowwise([self.kind(one, depth) for one in (left, *others)])
            case ast.BinOp():
                return self._operation(node, depth)
            case ast.UnaryOp(op=ast.Not()):
                return Kind.UNKNOWN
            case ast.UnaryOp(operand=operand):
                return self.kind(operand, depth)
        return Kind.UNKNOWN

    def _name(self, node: ast.Name, depth: int) -> Kind:
        """The kind of a name at its place: of the last value that it is sure to have been given."""
        name, at = node.id, self.script.span(node)[0]
        if name in self.grown:
            return Kind.UNKNOWN
        found: list[Kind] = []
        target = self.targets.get(name)
        if target is not None:
            found = [target if self.rows else Kind.UNKNOWN]
        defined = self.defined.get(name, [])
        for one in defined:
            if self.script.span(one.statement)[1] > at:
                continue
            kind = self._part(one, depth)
            found = [kind] if self._always(one.statement) else [*found, kind]
        if not found:
            return Kind.UNKNOWN if defined else Kind.FIXED
        if len(found) == 1:
            return found[0]
        kinds = {Kind.ROWS if one is Kind.BATCH else one for one in found}
        return kinds.pop() if len(kinds) == 1 else Kind.UNKNOWN

    def _always(self, statement: ast.AST) -> bool:
        """True of a statement that each round comes by."""
        while statement not in self._body:
            up = self.script.parents.get(statement)
            if not isinstance(up, ast.With):
                return False
            statement = up
        return True

    def _part(self, one: Defined, depth: int) -> Kind:
        kind = self.kind(one.value, depth)
        if not one.path:
            return kind
        if isinstance(one.value, ast.Call) and self.script.called(one.value) is not None:
            return self._returned(one.value, one.path, depth)
        return Kind.ROWS if kind in (Kind.BATCH, Kind.PAIR) else Kind.UNKNOWN

    def _attribute(self, node: ast.Attribute, depth: int) -> Kind:
        kind = self.kind(node.value, depth)
        if kind is Kind.FIXED:
            changed = self.script.dotted(node) in self.grown | set(self.defined)
            return Kind.UNKNOWN if changed else kind
        return Kind.ROWS if kind in _ROWS and node.attr == "data" else Kind.UNKNOWN

    def _subscript(self, node: ast.Subscript, depth: int) -> Kind:
        value, at = node.value, node.slice
        if isinstance(value, ast.Attribute) and value.attr == "shape" and literal(at) == 0:
            return Kind.SIZE if self.kind(value.value, depth) in _ROWS else Kind.UNKNOWN
        kind = self.kind(value, depth)
        if kind is Kind.FIXED and self.kind(at, depth) is Kind.FIXED:
            return kind
        if kind is Kind.PAIR and isinstance(literal(at), int):
            return Kind.ROWS
        if kind is Kind.BATCH and isinstance(literal(at), str):
            return Kind.ROWS
        if kind is Kind.BATCH and isinstance(literal(at), int) and self._several(value):
            return Kind.ROWS
        first = at.elts[0] if isinstance(at, ast.Tuple) and at.elts else None
        whole = isinstance(first, ast.Slice) and not (first.lower or first.upper or first.step)
        return Kind.ROWS if kind in _ROWS and whole else Kind.UNKNOWN

    def _several(self, value: ast.expr) -> bool:
        """True where a loop takes the parts of a batch by number: it is a list, not a tensor."""
        written = self.script.dotted(value)
        taken = {
            one.slice.value
            for one in self.script.inside(self._body, ast.Subscript, deep=False)
            if self.script.dotted(one.value) == written and isinstance(one.slice, ast.Constant)
        }
        return len(taken) > 1

    def _operation(self, node: ast.BinOp, depth: int) -> Kind:
        left, right = self.kind(node.left, depth), self.kind(node.right, depth)
        pair = {left, right}
        if pair == {Kind.FIXED}:
            return Kind.FIXED
        if left in _ROWS or right in _ROWS:
            return Kind.UNKNOWN if isinstance(node.op, ast.MatMult) else _rowwise([left, right])
        sums = {Kind.SUM, Kind.SIZE}
        match node.op:
            case ast.Add() | ast.Sub():
                if pair <= sums:
                    return Kind.SUM
                return Kind.MEAN if pair == {Kind.MEAN} else Kind.UNKNOWN
            case ast.Mult():
                if pair == {Kind.MEAN, Kind.SIZE}:
                    return Kind.SUM
                if Kind.FIXED in pair:
                    other = left if right is Kind.FIXED else right
                    return Kind.SUM if other is Kind.SIZE else other
            case ast.Div():
                if right is Kind.FIXED and left is not Kind.FIXED:
                    return Kind.SUM if left is Kind.SIZE else left
                if left in sums and right is Kind.SIZE:
                    return Kind.MEAN
        return Kind.UNKNOWN

    def _call(self, call: ast.Call, depth: int) -> Kind:
        name = self.script.name(call.func)
        if any(isinstance(one, ast.Starred) for one in call.args):
            return Kind.UNKNOWN
        loss = plain_reduction(self.script, call)
        if loss is not None:
            values = [self.kind(one, depth) for one in call.args]
            rows = bool(values) and all(one in (*_ROWS, Kind.FIXED) for one in values)
            return loss if rows and any(one in _ROWS for one in values) else Kind.UNKNOWN
        if name in ("len", "int", "float", "abs") and len(call.args) == 1:
            return self._of_builtin(name, self.kind(call.args[0], depth))
        if self.script.called(call) is not None:
            return self._returned(call, (), depth)
        if self.runs_model(call):
            values = [self.kind(one, depth) for one in given(call)]
            named = all(one.arg for one in call.keywords)
            rows = named and bool(values) and all(one in (*_ROWS, Kind.FIXED) for one in values)
            return Kind.ROWS if rows and any(one in _ROWS for one in values) else Kind.UNKNOWN
        if isinstance(call.func, ast.Attribute) and not name.startswith("torch."):
            return self._method(call, call.func.attr, call.func.value, call.args, depth)
        if name.startswith("torch.") and call.args:
            return self._method(call, name.split(".")[-1], call.args[0], call.args[1:], depth)
        return Kind.UNKNOWN

    def runs_model(self, call: ast.Call) -> bool:
        """True of `model(x)` and `self.model(x)` of a model that is trained."""
        origins = self.script.flow.origins(self.script.file, call.func)
        # A parameter that is given back to its caller has no value of its own.
        found = {one.node for one in origins if not self._is_parameter(one.node)}
        return bool(found) and found <= self.training.trained

    def _is_parameter(self, node: ast.AST) -> bool:
        script = self.script
        return isinstance(node, ast.Name) and node.id in script.parameters(script.scope(node))

    def _of_builtin(self, name: str, kind: Kind) -> Kind:
        if kind is Kind.FIXED:
            return kind
        if name == "len":
            return Kind.SIZE if kind is Kind.ROWS else Kind.UNKNOWN
        exact = kind in (Kind.SUM, Kind.SIZE, Kind.MEAN) and name != "abs"
        return kind if exact else Kind.UNKNOWN

    def _method(
        self, call: ast.Call, name: str, value: ast.expr, rest: list[ast.expr], depth: int
    ) -> Kind:
        kind = self.kind(value, depth)
        if name in ("eq", "ne") and rest:
            return _rowwise([kind, self.kind(rest[0], depth)])
        if name == "size":
            rows = kind in _ROWS and len(rest) == 1 and literal(rest[0]) == 0
            return Kind.SIZE if rows else Kind.UNKNOWN
        if name in _SAME:
            return kind
        if kind not in _ROWS:
            scalar = kind in (Kind.SUM, Kind.MEAN) and name in ("sum", "mean") and not given(call)
            return kind if scalar else Kind.UNKNOWN
        along = argument(call, "dim") or argument(call, "axis")
        if along is None and rest:
            before = 1 if name in ("topk", "norm") else 0  # `k` and `p` stand in front of it
            along = rest[before] if len(rest) > before else None
        if name in ("numel", "sum", "mean") and along is None and not call.keywords:
            return Kind.MEAN if name == "mean" else Kind.SUM
        if name in _COMPARE or name in _EACH:
            return _rowwise([kind, *(self.kind(one, depth) for one in rest)])
        if name in _SHAPED:
            return Kind.ROWS if self._keeps_rows(name, rest, depth) else Kind.UNKNOWN
        if name in ("transpose", "permute") and rest:
            places = [_dimension(one) for one in rest]
            kept = places[0] == 0 if name == "permute" else all(one and one > 0 for one in places)
            return Kind.ROWS if kept else Kind.UNKNOWN
        inside = _dimension(along)
        if name in _ALONG and inside is not None:
            few = name in ("argmax", "argmin", "softmax", "log_softmax")
            return Kind.ROWS if inside > 0 or (few and inside == -1) else Kind.UNKNOWN
        if name in _PAIRS and (inside is not None and inside != 0):
            return Kind.PAIR
        return Kind.UNKNOWN

    def _keeps_rows(self, name: str, rest: list[ast.expr], depth: int) -> bool:
        """True where the first dimension stays that of the samples."""
        first = rest[0] if rest else None
        if name == "unsqueeze":
            place = _dimension(first)
            return place == -1 or (place or 0) > 0
        if name in ("view", "reshape"):
            if isinstance(first, ast.Tuple | ast.List):
                first = first.elts[0] if first.elts else None
            return _dimension(first) == -1 or (
                first is not None and self.kind(first, depth) is Kind.SIZE
            )
        return True


def _dimension(node: ast.expr | None) -> int | None:
    """The number of a dimension, where it is written out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal(node.operand)
        return -value if isinstance(value, int) else None
    value = literal(node)
    return value if type(value) is int else None


def _rowwise(kinds: Iterable[Kind]) -> Kind:
    """The kind of what values give that are taken together element by element."""
    found = set(kinds)
    if found == {Kind.FIXED}:
        return Kind.FIXED
    return Kind.ROWS if found <= {*_ROWS, Kind.FIXED} else Kind.UNKNOWN


def definitions(script: Script, body: list[ast.stmt]) -> dict[str, list[Defined]]:
    """The values that names and attributes are given in a block, `a += b` apart."""
    found: dict[str, list[Defined]] = {}
    for one in script.inside(body, ast.stmt, ast.NamedExpr, deep=False):
        pairs: list[tuple[ast.expr, ast.expr, tuple[int, ...]]] = []
        match one:
            case ast.Assign():
                for target in one.targets:
                    pairs += _unpacked(target, one.value, ())
            case ast.AnnAssign(value=ast.expr() as value) | ast.NamedExpr(value=value):
                pairs += _unpacked(one.target, value, ())
            case ast.For():
                pairs += _unpacked(one.target, one.iter, (-1,))
        for target, value, path in pairs:
            name = script.dotted(target)
            if name:
                found.setdefault(name, []).append(
                    Defined(script.file.names.statement(one), value, path)  # type: ignore[arg-type]
                )
    return found


def _unpacked(
    target: ast.expr, value: ast.expr, path: tuple[int, ...]
) -> Iterator[tuple[ast.expr, ast.expr, tuple[int, ...]]]:
    if isinstance(target, ast.Starred):
        target, path = target.value, (*path, -1)
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value, path
        return
    inside = value.elts if isinstance(value, ast.Tuple | ast.List) and not path else []
    match_ = len(inside) == len(target.elts) and not any(
        isinstance(one, ast.Starred) for one in (*inside, *target.elts)
    )
    for number, part in enumerate(target.elts):
        if match_:
            yield from _unpacked(part, inside[number], ())
        else:
            yield from _unpacked(part, value, (*path, number))


def _targets(script: Script, loop: Loop) -> dict[str, Kind]:
    """The names of a loop's target, without the one that `enumerate` counts with."""
    if not isinstance(loop.node, ForNode):
        return {}
    target: ast.expr = loop.node.target
    if loop.index is not None and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    if isinstance(target, ast.Name):
        return {target.id: Kind.BATCH}
    return {one.id: Kind.ROWS for one in script.inside(target, ast.Name)}


def plain_batches(training: Training, loop: Loop) -> bool:
    """True where a loop goes over DataLoaders of torch that put samples of one shape together.

    With a collate function of its own a batch may be padded to its longest sample, and a sampler of
    batches may give them a meaning: there a part of a batch is not the batch's rows.
    """
    script = training.script
    if loop.source is None:
        return False
    found = [one for source in training.sources(loop) for one in loader_origins(script, source)]
    return bool(found) and all(one is not None and _plain(script, *one) for one in found)


def loader_origins(script: Script, source: ast.expr) -> list[tuple[str, ast.Call] | None]:
    """The calls that make what a loop goes over, with the full name of each; None: not seen.

    A function that is given `islice(loader, 5)` goes over no loader.
    """
    flow = script.flow
    found: list[tuple[str, ast.Call] | None] = []
    for one in flow.origins(script.file, source):
        around = {call_name(call) for _, call in one.through} & LOADER_WRAPPERS
        loader = isinstance(one.node, ast.Call) and call_name(one.node) == "DataLoader"
        if isinstance(one.node, ast.Call) and loader and around <= {"shard"}:
            found.append((one.file.names.called(one.node), one.node))
        else:
            found.append(None)
    return found


def _plain(script: Script, name: str, call: ast.Call) -> bool:
    given_ = [argument(call, one) for one in _OWN_BATCHES]
    size = argument(call, "batch_size", 1)
    return (
        name.startswith("torch.utils.data.")
        and all(one is None or is_none(one) for one in given_)
        and all(one.arg is not None or _plain_options(script, one.value) for one in call.keywords)
        and len(call.args) <= 3
        and not any(isinstance(one, ast.Starred) for one in call.args)
        and not (size is not None and is_none(size))
    )


def _plain_options(script: Script, value: ast.expr) -> bool:
    """True of `**kwargs` out of a dictionary of the script, which nowhere says how to collate."""
    made = [one.node for one in script.flow.origins(script.file, value)]
    literal_ = all(
        isinstance(one, ast.Dict) or (isinstance(one, ast.Call) and call_name(one) == "dict")
        for one in made
    )
    named = {one.arg for one in script.all(ast.keyword)}
    named |= {one.value for one in script.all(ast.Constant) if isinstance(one.value, str)}
    return literal_ and not named & set(_OWN_BATCHES)
