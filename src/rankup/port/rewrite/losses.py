"""The loss that is differentiated: a mean over the batch, or declared a sum over it."""

from __future__ import annotations

import ast
from enum import Enum

from ...script.flow import argument, call_name, given, is_none, literal
from ...script.torch_names import CLASS_WEIGHTS, LOSS_FUNCTIONS, LOSSES, last
from .script import Script

_SIZES = ("size", "numel", "len")
# With these a loss divides by something other than the number of samples.
_WEIGHTED = ("weight", "ignore_index", "size_average", "reduce")


class Kind(Enum):
    """The kinds of values, by what they are made of."""

    BATCH = "what a loader yields: a tensor, or tensors in a list or a dictionary"
    ROWS = "a tensor with a row or an element for each sample, made of that sample alone"
    PAIR = "two of these, as `max(dim=1)` and `topk` return them"
    SIZE = "the number of samples"
    SUM = "a sum over the samples"
    MEAN = "a mean over the samples"
    MIXED = "a sum over the samples and something else: no weight of a rank's gradient is right"
    FIXED = "nothing of the batch"
    UNKNOWN = "anything"


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


def reduction(script: Script, call: ast.Call) -> Kind | None:
    """The kind of one of torch's losses by its `reduction`; None of any other call."""
    kinds = {_reduction(one) for one in _makers(script, call) if one is not None}
    return kinds.pop() if len(kinds) == 1 else None


def plain_reduction(script: Script, call: ast.Call) -> Kind | None:
    """The kind of one of torch's losses; None of other calls, UNKNOWN where it is weighted."""
    makers = [one for one in _makers(script, call) if one is not None]
    if not makers or None in _makers(script, call):
        return None
    ignores = any(call_name(one) in CLASS_WEIGHTS for one in makers)
    if ignores and says_ignored(script):
        return Kind.UNKNOWN
    for one in makers:
        given_ = [argument(one, name) for name in _WEIGHTED] + one.args[2 if one is call else 0 :]
        spread = any(keyword.arg is None for keyword in one.keywords)
        if spread or any(value is not None and not is_none(value) for value in given_):
            return Kind.UNKNOWN
    return reduction(script, call) or Kind.UNKNOWN


def says_ignored(script: Script) -> bool:
    """True where one of the files has -100, torch's own default of `ignore_index`."""
    return any(
        literal(one.operand) == 100
        for file in script.flow.files
        for one in file.names.all(ast.UnaryOp)
    )


def _makers(script: Script, call: ast.Call) -> list[ast.Call | None]:
    """The calls that say how a loss of torch is reduced; None for what is none of its losses."""
    name = script.name(call.func)
    if name.startswith("torch.nn.functional.") and last(name) in LOSS_FUNCTIONS:
        return [call]
    return [
        one.node
        if isinstance(one.node, ast.Call)
        and one.file.names.called(one.node).startswith("torch.nn.")
        and call_name(one.node) in LOSSES
        else None
        for one in script.flow.origins(script.file, call.func)
    ]


def _reduction(made: ast.Call) -> Kind:
    value = literal(argument(made, "reduction") or ast.Constant("mean"))
    if literal(argument(made, "size_average")) is False:
        value = "sum"
    kinds = {"mean": Kind.MEAN, "batchmean": Kind.MEAN, "sum": Kind.SUM, "none": Kind.ROWS}
    return kinds.get(str(value), Kind.UNKNOWN)


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
