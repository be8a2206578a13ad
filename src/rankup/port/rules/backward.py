"""`rankup.backward(loss)` in the place of `loss.backward()`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...script.flow import given, literal
from ...script.names import walk
from ..rewrite.context import Context
from ..rewrite.losses import Kind, differentiated
from ..rewrite.terms import is_sum, terms
from .rule import refuse

_MIXED = (
    "this loss adds up over the samples in one part and not in another: ranks weigh them "
    "unequally. Divide the sums by the number of samples, or take reduction='mean' throughout"
)


_EITHER = (
    "not seen to be a mean over the samples, nor a sum: ranks average theirs by samples (of a sum: "
    "rankup.backward(loss, summed=True))"
)


@dataclass(frozen=True)
class Backward:
    """A backward, and the loss that has the whole batch's value behind it.

    Attributes:
        name: of the loss; empty where it has none.
        whole: its value is put in place: the graph is not kept.
    """

    call: ast.Call
    name: str
    kind: Kind
    whole: bool


def write_backward(context: Context, call: ast.Call) -> Backward:
    """Write `rankup.backward(loss)`, with the scaler and the divisor of the loss."""
    script = context.script
    loss = differentiated(call)
    assert isinstance(call.func, ast.Attribute)
    by_torch = loss is not None and loss in given(call)
    options = [one for one in call.keywords if one.value is not loss]
    kept = [one for one in options if literal(one.value) not in (None, False)]
    if loss is None or len(call.args) > by_torch or any(one.arg is None for one in options):
        return Backward(call, "", Kind.UNKNOWN, False)  # a gradient, or another's backward
    if isinstance(loss, ast.Tuple | ast.List):
        return Backward(call, "", Kind.UNKNOWN, False)
    summed = is_sum(context.training, loss)
    kinds = {one.kind for one in terms(context.training, loss)}
    if Kind.SUM in kinds and not summed:
        refuse(context, call, _MIXED)
    if Kind.UNKNOWN in kinds:
        context.leave(call, _EITHER)
    core, more = loss, ""
    match loss:
        case ast.BinOp(left=core_, op=ast.Div() | ast.Mult() as by, right=factor) if _plain(
            script.dotted(core_)
        ) and not _makes(factor):
            core, text = core_, script.code(factor)
            if isinstance(factor, ast.BinOp) and isinstance(by, ast.Div):
                text = f"({text})"
            more = f", scale={text if isinstance(by, ast.Mult) else f'1 / {text}'}"
    scaling = call.func.value
    if not by_torch and isinstance(scaling, ast.Call) and loss in given(scaling):
        assert isinstance(scaling.func, ast.Attribute)
        more = f", scaler={script.code(scaling.func.value)}{more}"
    more += ", summed=True" if summed else ""
    more += "".join(f", {one.arg}={script.code(one.value)}" for one in kept)
    start, end = script.span(call)
    inner = script.whole(core) if core is loss else script.span(core)
    if core is loss and inner == script.span(core) and script.text[inner[1]] == ")":
        inner = script.span(core)
    context.edits.around((start, end), "", "")
    if inner[0] > start:
        context.edits.replace((start, inner[0]), "rankup.backward(")
    else:
        context.edits.around((start, end), "rankup.backward(", "")
    context.edits.replace((inner[1], end), f"{more})")
    name = script.dotted(core)
    name = name if _plain(name) else ""
    text = "ranks take the step together"
    if name and not kept:
        text = f"the value of `{name}` is the whole batch's"
    if summed:
        text += ", a sum over the samples of all ranks"
    context.done(call, f"{text} (rankup.backward)")
    return Backward(call, name, Kind.SUM if summed else Kind.MEAN, not kept)


def _plain(name: str) -> bool:
    """True of `loss` and `self.loss`."""
    return bool(name) and (not name.count(".") or (name.count(".") == 1 and name[:5] == "self."))


def _makes(node: ast.expr) -> bool:
    """True of a factor that calls something: it may be of the batch."""
    return any(isinstance(one, ast.Call) for one in walk(node))
