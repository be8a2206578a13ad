"""The loss that is differentiated: a mean over the batch, or declared a sum over it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...script.flow import argument, call_name, given, literal, returned
from ...script.names import Binding, Function, walk
from ...script.torch_names import LOSS_FUNCTIONS, LOSSES, words
from .script import Script
from .values import Kind, _reduction

_DEEPEST = 10
_SAME = words("to cuda cpu float double half item detach clone squeeze")
_SIZES = ("size", "numel", "len")
# A part of a loss that is a sum beside one that is none: no weight of a rank's gradient is right.
MIXED = "mixed"
_PER_SAMPLE = "one divided by the number of samples"
Declared = Kind | str


def differentiated(call: ast.Call) -> ast.expr | None:
    """`loss` of `loss.backward()`, `scaler.scale(loss).backward()`, `autograd.backward(loss)`."""
    if not isinstance(call.func, ast.Attribute):
        return None
    value: ast.expr = call.func.value
    if isinstance(value, ast.Call) and call_name(value) == "scale" and given(value):
        return given(value)[0]
    started = isinstance(value, ast.Name) and value.id in ("torch", "accelerator", "fabric")
    autograd = isinstance(value, ast.Attribute) and value.attr == "autograd"
    if (started or autograd) and given(call):
        return given(call)[0]
    return value


def declared(script: Script, node: ast.expr, depth: int = 0) -> Declared:
    """`SUM` where a loss adds up over the samples by what is written; `MEAN` where it averages.

    `FIXED` is nothing of the batch, `UNKNOWN` anything else, `MIXED` a sum and something else.
    """
    if depth > _DEEPEST:
        return Kind.UNKNOWN
    match node:
        case ast.Constant():
            return Kind.FIXED
        case ast.Name() | ast.Attribute():
            return _named(script, node, depth)
        case ast.Call():
            return _called(script, node, depth)
        case ast.UnaryOp(operand=operand):
            return declared(script, operand, depth + 1)
        case ast.IfExp(body=body, orelse=orelse):
            return _either([declared(script, one, depth + 1) for one in (body, orelse)])
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
            return _added([declared(script, one, depth + 1) for one in (left, right)])
        case ast.BinOp(op=ast.Pow(), left=left):
            kind = declared(script, left, depth + 1)
            return kind if kind is Kind.FIXED else Kind.UNKNOWN
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            kinds = [declared(script, one, depth + 1) for one in (left, right)]
            if _PER_SAMPLE in kinds:
                kinds.remove(_PER_SAMPLE)
                of_samples: dict[Declared, Declared] = {
                    Kind.SUM: Kind.MEAN,
                    Kind.FIXED: _PER_SAMPLE,
                    MIXED: MIXED,
                }
                return of_samples.get(kinds[0], Kind.UNKNOWN)
            kinds = [one for one in kinds if one is not Kind.FIXED] or [Kind.FIXED]
            return next((one for one in (MIXED, Kind.SUM, Kind.MEAN) if one in kinds), kinds[0])
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            kind = declared(script, left, depth + 1)
            if kind is Kind.FIXED and not constant(script, right):
                return _PER_SAMPLE
            if kind not in (Kind.SUM, MIXED) or constant(script, right):
                return kind
            return Kind.MEAN  # by the size of the batch; a ratio of two sums is said elsewhere
    return Kind.UNKNOWN


def _either(kinds: Iterable[Declared]) -> Declared:
    """Of several ways to make a value; what is nothing of the batch is where it begins."""
    found = {one for one in kinds if one is not Kind.FIXED}
    if not found:
        return Kind.FIXED
    if len(found) == 1:
        return found.pop()
    return MIXED if found & {Kind.SUM, MIXED} else Kind.MEAN


def _added(kinds: list[Declared]) -> Declared:
    found = set(kinds)
    if found & {Kind.SUM, MIXED} and len(found) > 1:
        return MIXED
    return _either(kinds)


def _named(script: Script, node: ast.Name | ast.Attribute, depth: int) -> Declared:
    names, written = script.file.names, script.dotted(node)
    if isinstance(node, ast.Name):
        _, bindings = names.bindings(node.id, names.scope(node))
    elif written.startswith("self.") and written.count(".") == 1:
        owner = names.enclosing(node, ast.ClassDef)
        bindings = names.attributes(owner).get(node.attr, []) if owner else []
    else:
        return Kind.FIXED if node.attr in ("weight", "bias") else Kind.UNKNOWN
    if any(_of_parameters(one.node) for one in bindings if one.kind == "item"):
        return Kind.FIXED
    values: list[Declared] = []
    for one in _last_of(script, node, bindings):
        if one.kind == "value" and isinstance(one.node, ast.expr):
            inside = any(at is node for at in walk(one.node))
            if inside:
                continue
            values.append(_at(script, one.node, one.path, depth))
    scope = script.scope(node)
    grown = [
        declared(script, one.value, depth + 2)
        for one in script.all(ast.AugAssign)
        if script.dotted(one.target) == written
        and script.scope(one) is scope
        and isinstance(one.op, ast.Add | ast.Sub)
        and not any(at is node for at in walk(one))
    ]
    kind = _either(values) if values else Kind.UNKNOWN
    if divided(script, written, scope):
        return Kind.MEAN
    if not grown:
        return kind
    return _added([one for one in (kind, *grown) if one is not Kind.FIXED] or [Kind.FIXED])


def _last_of(
    script: Script, node: ast.Name | ast.Attribute, bindings: list[Binding]
) -> list[Binding]:
    """The bindings that a name may have here: not those that another follows on every way."""
    at, found = script.span(node)[0], list[Binding]()
    for one in sorted(bindings, key=lambda one: script.span(one.target)):
        statement = script.file.names.statement(one.target)
        if script.span(statement)[1] > at:
            continue
        if around(script, statement, node):
            found.clear()
        found.append(one)
    return found or bindings


def around(script: Script, statement: ast.AST, node: ast.AST) -> bool:
    """True where a place is only come to by a statement: it stands in its block, or further in."""
    block = script.file.names.block(statement)
    return any(one in block for one in (node, *script.above(node)))


def divided(script: Script, name: str, scope: ast.AST) -> bool:
    """True of a name that is divided by a number of the batch: `loss /= n`."""
    return any(
        isinstance(one.op, ast.Div)
        and script.dotted(one.target) == name
        and script.scope(one) is scope
        and not constant(script, one.value)
        for one in script.all(ast.AugAssign)
    )


def _of_parameters(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call) and call_name(one) in ("parameters", "named_parameters")
        for one in walk(node)
    )


def _at(script: Script, value: ast.expr, path: tuple[int, ...], depth: int) -> Declared:
    """The kind of a part of what is unpacked: of a tuple, or of what a function returns."""
    if not path:
        return declared(script, value, depth + 1)
    if isinstance(value, ast.Tuple) and path[0] < len(value.elts):
        return _at(script, value.elts[path[0]], path[1:], depth + 1)
    if isinstance(value, ast.Call) and depth < _DEEPEST:
        found = function_of(script, value)
        if found is not None:
            other, function = found
            kinds = [_at(other, one, path, depth + 1) for one in returned(function)]
            return _either(kinds) if kinds else Kind.UNKNOWN
    return Kind.UNKNOWN


def function_of(script: Script, call: ast.Call) -> tuple[Script, Function] | None:
    """The function of the script's own files that a call runs; of a module its `forward`."""
    flow = script.whole_flow
    found = flow.definition(script.file, call.func)
    if found is None or isinstance(found[1], ast.ClassDef):
        found = flow.method(script.file, call.func, "forward") or (
            flow.method(script.file, call.func.value, call.func.attr)
            if isinstance(call.func, ast.Attribute)
            else None
        )
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    return script.sibling(found[0]), found[1]


def reduction(script: Script, call: ast.Call) -> Kind | None:
    """The kind of one of torch's losses by its `reduction`; None of any other call."""
    name = script.name(call.func)
    if name.startswith("torch.nn.functional.") and name.split(".")[-1] in LOSS_FUNCTIONS:
        return _reduction(call)
    made: list[ast.AST] = [call.func]
    if not isinstance(call.func, ast.Call):
        made = [one.node for one in script.whole_flow.origins(script.file, call.func)]
    kinds = {
        _reduction(one) for one in made if isinstance(one, ast.Call) and call_name(one) in LOSSES
    }
    return kinds.pop() if len(kinds) == 1 else None


def _called(script: Script, call: ast.Call, depth: int) -> Declared:
    known = reduction(script, call)
    if known is not None:
        return Kind.UNKNOWN if known is Kind.ROWS else known
    name, torch_name = call_name(call), script.name(call.func).startswith("torch.")
    value: ast.expr | None = None
    if torch_name and call.args:
        value = call.args[0]
    elif isinstance(call.func, ast.Attribute):
        value = call.func.value
    if value is not None and name in ("sum", "mean"):
        if name == "mean":
            return Kind.MEAN
        if (
            argument(call, "dim")
            or argument(call, "axis")
            or len(call.args) > (1 if torch_name else 0)
        ):
            return Kind.UNKNOWN
        inner = declared(script, value, depth + 1)
        if inner is Kind.FIXED or (inner is Kind.MEAN and not isinstance(value, ast.BinOp)):
            return inner  # a single number already, or the model's own weights
        stacked = isinstance(value, ast.Call) and call_name(value) in ("stack", "cat", "tensor")
        return Kind.UNKNOWN if stacked else Kind.SUM
    if value is not None and name in ("mul", "div") and given(call):
        factor = call.args[-1] if call.args else given(call)[0]
        operation = ast.Mult() if name == "mul" else ast.Div()
        return declared(script, ast.BinOp(value, operation, factor), depth + 1)
    if value is not None and name in _SAME:
        return declared(script, value, depth + 1)
    if value is not None and _root_fixed(script, value, depth):
        return Kind.FIXED
    found = function_of(script, call)
    if found is not None:
        other, function = found
        kinds = [declared(other, one, depth + 1) for one in returned(function)]
        return _either(kinds) if kinds else Kind.UNKNOWN
    return Kind.UNKNOWN


def _root_fixed(script: Script, value: ast.expr, depth: int) -> bool:
    """True of `p.pow(2)` for a parameter `p`: the same on all ranks."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return isinstance(value, ast.Name | ast.Attribute) and (
        declared(script, value, depth + 1) is Kind.FIXED
    )


def sized(node: ast.AST) -> bool:
    """True of an expression that asks a batch for its length."""
    match node:
        case ast.Call():
            return call_name(node) in _SIZES
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
    return False


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
        or (isinstance(one, ast.Attribute) and not sized(one) and one.attr != "shape")
        or (isinstance(one, ast.Call) and call_name(one) in ("getenv", "get"))
        for one in found
    )
