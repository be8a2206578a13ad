"""The loss that is differentiated: a mean over the batch, or declared a sum over it."""

from __future__ import annotations

import ast

from ...script.flow import call_name, given, literal
from ...script.names import Function
from ...script.torch_names import LOSS_FUNCTIONS, LOSSES
from .script import Script
from .values import Kind, _reduction

_SIZES = ("size", "numel", "len")


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


def divided(script: Script, name: str, scope: ast.AST) -> bool:
    """True of a name that is divided by a number of the batch: `loss /= n`."""
    return any(
        isinstance(one.op, ast.Div)
        and script.dotted(one.target) == name
        and script.scope(one) is scope
        and not constant(script, one.value)
        for one in script.all(ast.AugAssign)
    )


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
