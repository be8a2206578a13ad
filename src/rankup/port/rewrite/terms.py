"""The terms of a loss: what it adds up, and whether each is a mean or a sum over the samples.

Read is what a script says plainly: a reduction, `.sum()`, `ignore_index`, weights of classes. What
nobody can see from the text `rankup verify` finds out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ...script.effects import run_by_call
from ...script.flow import call_name, literal, returned
from ...script.names import COMPREHENSIONS, Function, assigned, elements, stored
from ...script.roles import LoopNode
from ...script.torch_names import words
from .losses import Kind, of_torch, of_transformers, packed, reduction
from .script import ForNode, Script
from .training import Training

_SAME = words(
    "item detach data to cuda cpu float double half contiguous squeeze view reshape flatten clone"
)
_BENDING = words("sqrt log log2 log10 log1p exp expm1 pow square tanh sigmoid reciprocal relu")
_JOINS = words("stack cat concat concatenate hstack vstack")
_DEEPEST = 12


@dataclass(frozen=True)
class Term:
    """A part of a loss, to which others are added.

    Attributes:
        script: the file in which it stands.
        units: of a mean over some targets the text of what it divides by; empty where it could
            not be said.
    """

    script: Script
    node: ast.expr
    kind: Kind
    units: str = ""


def terms(training: Training, loss: ast.expr) -> list[Term]:
    """The terms that a loss adds up, through names, factors, and functions of the repository."""
    return _terms_of(training, training.script, loss)


@lru_cache(maxsize=64)
def _terms_of(training: Training, script: Script, loss: ast.expr) -> list[Term]:
    return _Terms(training).of(script, loss, 0)


def is_sum(training: Training, loss: ast.expr) -> bool:
    """True of a loss of which all terms that are known add up over the samples; a penalty by a
    model's parameters does not."""
    kinds = {one.kind for one in terms(training, loss)} - {Kind.UNKNOWN}
    return kinds == {Kind.SUM}


class _Terms:
    def __init__(self, training: Training) -> None:
        self.training = training
        self._seen: dict[ast.AST, list[Term]] = {}
        self._calls: dict[ast.AST, tuple[Script, ast.Call]] = {}  # that led to a function

    def of(self, script: Script, node: ast.expr, depth: int) -> list[Term]:
        """The terms of an expression; of one that is asked for again within itself none."""
        if node not in self._seen and depth < _DEEPEST:
            self._seen[node] = []
            self._seen[node] = list(self._find(script, node, depth + 1))
        return self._seen.get(node, [])

    def _find(self, script: Script, node: ast.expr, depth: int) -> Iterator[Term]:
        match node:
            case ast.Constant():
                return
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                yield from self.of(script, left, depth)
                yield from self.of(script, right, depth)
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                found, factor = self.of(script, left, depth), right
                if not found:
                    found, factor = self.of(script, right, depth), left
                match factor:
                    case ast.BinOp(op=ast.Div(), right=bottom):  # `(1 / n) * total`
                        yield from self._divided(script, node, found, bottom)
                    case _:
                        yield from _times(script, node, found, factor)
            case ast.BinOp(op=ast.Pow(), left=left):
                yield from _bent(script, node, self.of(script, left, depth))
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                yield from self._divided(script, node, self.of(script, left, depth), right)
            case ast.UnaryOp(operand=inner) | ast.NamedExpr(value=inner):
                yield from self.of(script, inner, depth)
            case ast.IfExp(body=body, orelse=orelse):
                yield from _either(
                    script, node, [self.of(script, x, depth) for x in (body, orelse)]
                )
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    yield from self.of(script, part, depth)
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part):
                yield from self.of(script, part, depth)
            case ast.Name() | ast.Attribute():
                yield from self._named(script, node, depth)
            case ast.Call():
                yield from self._call(script, node, depth)

    def _named(self, script: Script, node: ast.expr, depth: int) -> Iterator[Term]:
        name, scope = script.dotted(node), script.scope(node)
        if scope in self._calls and isinstance(scope, Function):
            where, call = self._calls[scope]
            passed = script.given(scope, name, call) if name in script.parameters(scope) else None
            if passed is not None:
                yield from self.of(where, passed, depth)
        for value, place in self._values(script, node, name):
            if place is None:
                yield from self.of(script, value, depth)
            elif isinstance(value, ast.Call):
                yield from self._returned(script, value, depth, place)
        for call in script.inside(scope.body, ast.Call, deep=False):
            kept = call_name(call) == "append" and isinstance(call.func, ast.Attribute)
            if kept and call.args and script.dotted(call.func.value) == name:  # type: ignore[attr-defined]
                yield from self.of(script, call.args[0], depth)
        if isinstance(node, ast.Attribute) and node.attr == "loss":  # `model(labels=…).loss`
            yield from self.of(script, node.value, depth)

    def _values(
        self, script: Script, node: ast.expr, name: str
    ) -> Iterator[tuple[ast.expr, int | None]]:
        """What a name may have been given last at its place; with its place in a tuple."""
        scope, at = script.scope(node), script.span(node)[0]
        given_: list[tuple[ast.stmt, ast.expr, int | None]] = []
        for one in script.inside(scope.body, ast.Assign, ast.AugAssign, ast.AnnAssign, deep=False):
            assert isinstance(one, ast.Assign | ast.AugAssign | ast.AnnAssign)
            for target in assigned(one):
                if script.dotted(target) == name and one.value is not None:
                    given_.append((one, one.value, None))
                names = [script.dotted(part) for part in elements(target)]
                if isinstance(target, ast.Tuple) and name in names and one.value is not None:
                    at_ = names.index(name)
                    if isinstance(one.value, ast.Tuple) and len(one.value.elts) == len(names):
                        given_.append((one, one.value.elts[at_], None))
                    else:
                        given_.append((one, one.value, at_))
        given_.sort(key=lambda one: script.span(one[0]), reverse=True)
        around = set(script.above(node))
        before = [one for one in given_ if script.span(one[0])[1] <= at]
        for statement, value, place in before or given_:
            yield value, place
            blocks = [up for up in script.above(statement) if isinstance(up, ast.If | LoopNode)]
            always = isinstance(statement, ast.Assign) and set(blocks) <= around
            if always and before:
                return

    def _divided(
        self, script: Script, node: ast.expr, top: list[Term], bottom: ast.expr
    ) -> Iterator[Term]:
        if not top or not all(one.kind is Kind.SUM for one in top) or constant(script, bottom):
            yield from top
            return
        if _sums(script, bottom):
            yield Term(script, node, Kind.MASKED, _of_mask(script, node, bottom))
        else:
            yield Term(script, node, Kind.MEAN)

    def _call(self, script: Script, call: ast.Call, depth: int) -> Iterator[Term]:
        name = call_name(call)
        masked = of_torch(script, call)
        if masked is None:
            masked = packed(script, call)
        if masked is not None:
            yield Term(script, call, Kind.MASKED, masked)
            return
        kind = reduction(script, call)
        if kind is not None:
            yield Term(script, call, kind)
            return
        by_torch = script.name(call.func).startswith("torch.")
        value = call.func.value if isinstance(call.func, ast.Attribute) and not by_torch else None
        builtin = value is None and not by_torch
        if value is None and (by_torch or name == "sum") and call.args:
            value = call.args[0]
        if value is not None and name in ("sum", "mean"):
            inner = self.of(script, value, depth)
            several = call.args[1:] if value in call.args else call.args
            if all(one.kind in (Kind.MEAN, Kind.MASKED, Kind.SUM) for one in inner) and inner:
                summed = any(one.kind is Kind.SUM for one in inner)
                yield from (
                    [Term(script, call, Kind.UNKNOWN)] if summed and name == "mean" else inner
                )
            elif name == "sum" and (several or call.keywords):
                return  # along a dimension
            elif _of_parameters(script, value):
                yield Term(script, call, Kind.FIXED)
            elif name == "mean" and not several and (_selected(script, value) is not None):
                yield Term(script, call, Kind.MASKED, _selected(script, value) or "")
            elif name == "mean":
                yield Term(script, call, Kind.MEAN)
            else:
                rows = bool(inner) and all(one.kind is Kind.ROWS for one in inner)
                adds_up = rows or not (builtin or _joined(script, value))
                yield Term(script, call, Kind.SUM if adds_up else Kind.UNKNOWN)
            return
        if value is not None and name in ("div", "mul") and call.args:
            found = self.of(script, value, depth)
            if name == "div":
                yield from self._divided(script, call, found, call.args[-1])
            else:
                yield from _times(script, call, found, call.args[-1])
            return
        if value is not None and name in _BENDING:
            yield from _bent(script, call, self.of(script, value, depth))
            return
        if value is not None and name in _SAME | _JOINS:
            yield from self.of(script, value, depth)
            return
        yield from self._returned(script, call, depth)

    def _returned(
        self, script: Script, call: ast.Call, depth: int, place: int | None = None
    ) -> Iterator[Term]:
        """The terms of what a function, a loss or a model of the repository returns."""
        units = of_transformers(self.training, script, call)
        if units is not None and place in (None, 0):
            yield Term(script, call, Kind.MASKED, units)
            return
        found = run_by_call(script.flow, script.file, call)
        if found is None:
            return
        there = script.sibling(found[0])
        if not isinstance(found[1], Function):
            return
        ways: list[list[Term]] = []
        self._calls.setdefault(found[1], (script, call))
        for value in returned(found[1]):
            if place is not None:
                if not isinstance(value, ast.Tuple) or place >= len(value.elts):
                    continue
                value = value.elts[place]
            elif isinstance(value, ast.Tuple):
                continue
            # Its names are none of the place that calls it.
            inner = self.of(there, value, depth)
            ways.append([Term(one.script, one.node, one.kind) for one in inner])
        yield from _either(script, call, ways)


def _either(script: Script, node: ast.expr, ways: list[list[Term]]) -> list[Term]:
    """The terms of a value that is one of several: UNKNOWN where they are not of one kind."""
    known = [[one for one in way if one.kind is not Kind.FIXED] for way in ways]
    kinds = {frozenset(one.kind for one in way) for way in known if way}
    if len(kinds) > 1:
        return [Term(script, node, Kind.UNKNOWN)]
    return [one for way in ways for one in way]


def _times(script: Script, node: ast.expr, found: list[Term], factor: ast.expr) -> list[Term]:
    """Terms times a factor: a mean times the number of samples is a sum."""
    made = [value for _, value in script.assigned(script.dotted(factor), script.scope(factor))]
    if found and any(map(_is_size, [factor, *made])):
        means = all(one.kind is Kind.MEAN for one in found)
        return [Term(script, node, Kind.SUM if means else Kind.UNKNOWN)]
    return found


def _is_size(node: ast.expr) -> bool:
    """True of `len(x)`, `x.size(0)`, `x.shape[0]`."""
    match node:
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Call(func=ast.Attribute(attr="size"), args=[at]):
            return literal(at) == 0
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=at):
            return literal(at) == 0
    return False


def _bent(script: Script, node: ast.expr, found: list[Term]) -> list[Term]:
    """The root or the logarithm of a mean or a sum is none."""
    return [Term(script, node, Kind.UNKNOWN)] if found else []


def _joined(script: Script, node: ast.expr, left: int = 4) -> bool:
    """True of values that a `stack` or a `cat` put together: of losses they are terms, not samples.

    Also by a name, times weights, and of another shape.
    """
    if not left:
        return False
    match node:
        case ast.Call():
            if call_name(node) in _JOINS:
                return True
            by_method = call_name(node) in _SAME and isinstance(node.func, ast.Attribute)
            inner = [node.func.value] if by_method else []  # type: ignore[attr-defined]
        case ast.BinOp(op=ast.Mult(), left=first, right=second):
            inner = [first, second]
        case ast.Name() | ast.Attribute():
            inner = [one for _, one in script.assigned(script.dotted(node), script.scope(node))]
        case _:
            inner = []
    return any(_joined(script, one, left - 1) for one in inner)


def _sums(script: Script, node: ast.expr) -> bool:
    """True of `mask.sum().clamp(min=1)`, also by a name."""
    values = [
        node,
        *(value for _, value in script.assigned(script.dotted(node), script.scope(node))),
    ]
    return any(
        call_name(one) == "sum" for value in values for one in script.inside(value, ast.Call)
    )


def _of_mask(script: Script, node: ast.expr, bottom: ast.expr) -> str:
    """`mask.sum()` of `(losses * mask).sum() / mask.sum().clamp(min=1)`; else empty."""
    while isinstance(bottom, ast.Call) and isinstance(bottom.func, ast.Attribute):
        mask = script.dotted(bottom.func.value)
        if call_name(bottom) == "sum":
            top = node.left if isinstance(node, ast.BinOp) else node
            inside = {script.dotted(one) for one in script.inside(top, ast.Name, ast.Attribute)}
            # Without its `.clamp(min=1)`: a rank with no target that counts has no weight.
            return f"{mask}.sum()" if mask and mask in inside and not bottom.args else ""
        bottom = bottom.func.value
    return ""


def _selected(script: Script, value: ast.expr) -> str | None:
    """The units of `losses[mask].mean()` and `losses.masked_select(mask).mean()`; None of others.

    Empty where the mask may as well be indices.
    """
    by_name = isinstance(value, ast.Call) and call_name(value) == "masked_select"
    if isinstance(value, ast.Call) and by_name and value.args:
        mask = value.args[-1]
    elif isinstance(value, ast.Subscript):
        mask = value.slice
    else:
        return None
    if isinstance(mask, ast.Compare):
        return f"({script.code(mask)}).sum()"
    name = script.dotted(mask)
    made = [one for _, one in script.assigned(name, script.scope(mask))] if name else []
    if by_name or (made and all(isinstance(one, ast.Compare) for one in made)):
        return f"{name}.sum()" if name else ""
    return "" if isinstance(mask, ast.Name) else None


def _of_parameters(script: Script, value: ast.expr) -> bool:
    """True of what is made of a model's parameters: a penalty, which is nothing of the batch."""
    heads: list[ast.expr] = [value]
    names = {one.id for one in script.inside(value, ast.Name)}
    for up in script.above(value):
        if isinstance(up, ForNode) and stored(up.target) & names:
            heads.append(up.iter)
        if isinstance(up, COMPREHENSIONS):
            heads += [one.iter for one in up.generators if stored(one.target) & names]
    known = {"parameters", "named_parameters", "weight", "bias"}
    return any(
        isinstance(one, ast.Attribute) and one.attr in known
        for head in heads
        for one in script.inside(head, ast.Attribute)
    )


def constant(script: Script, node: ast.expr) -> bool:
    """True of a divisor that is the same for every batch: 32, `args.batch_size`."""
    if type(literal(node)) in (int, float):
        return True
    if isinstance(node, ast.BinOp):
        return constant(script, node.left) and constant(script, node.right)
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    found = [one.node for one in script.flow.origins(script.file, node)]
    return all(
        type(literal(one)) in (int, float)
        or (isinstance(one, ast.Attribute) and one.attr != "shape")
        or (isinstance(one, ast.Call) and call_name(one) in ("getenv", "get"))
        for one in found
    )
