"""The numbers that a training loop reports: of the whole batch."""

from __future__ import annotations

import ast
import re

from ....script.flow import given
from ....script.names import Function
from ..context import Context
from ..expressions import words
from ..training import Loop
from .kinds import (
    COUNT,
    READ,
    Increment,
    by_sample,
    derived,
    increments,
    local_count,
    of_batch,
    own,
)
from .model import sums
from .units import say_weighed_by_samples

_REPORTS = (
    "print", "set_postfix", "set_description", "log", "info", "add_scalar", "write", "format",
    "progress_bar", "append", "debug", "append_row", "set_postfix_str", "update",
)  # fmt: skip


def training_numbers(context: Context) -> None:
    """`batch_mean` and `batch_sum` around what a training loop adds up, keeps or prints."""
    for loop in context.training.loops:
        if loop.trains:
            together(context, loop)


def together(context: Context, loop: Loop) -> None:
    """The numbers of a loop that all ranks go round together."""
    script = context.script
    wrapped: list[ast.AST] = []
    for one in increments(context, loop):
        if one.target in loop.losses:
            continue
        if by_sample(context, loop, one.value):
            # Ranks go round such a loop unequally often: no collective may stand in it.
            context.leave(one.node, f"{one.target} counts this rank's samples alone")
            continue
        if one.how == "meter":
            wrapped += _meter(context, loop, one)
            continue
        if one.kind == "sum":
            context.around(one.value, "rankup.batch_sum(")
            wrapped.append(one.value)
            context.done(
                one.node, f"{one.target} counts the batches of all ranks (rankup.batch_sum)"
            )
        elif one.kind == "mean":
            if not loop.trains:
                say_weighed_by_samples(context, loop, one)
            inner = _reading(context, loop, one.value)
            context.around(inner, "rankup.batch_mean(")
            wrapped.append(inner)
            context.done(one.node, f"{one.target} is of the whole batch (rankup.batch_mean)")
        elif one.kind == "rows":
            context.leave(one.node, f"{one.target} holds this rank's part of the outputs alone")
    after, late = _after(context, loop)
    for read in late:
        if _reads_loss(context, loop, read):
            context.leave(
                read,
                f"{script.code(read)} is of this rank's part of the last batch: keep "
                f"rankup.batch_mean({script.code(read)}) before the next loop begins",
            )
    numbers: list[ast.Call | ast.Subscript] = [
        *script.inside(loop.node.body, ast.Call, deep=False),
        *script.inside(loop.node.body, ast.Subscript, deep=False),
        *after,
    ]
    for call in numbers:
        if not _reads_loss(context, loop, call) and not _counts(context, loop, call):
            continue
        if by_sample(context, loop, call) or (call not in after and not own(context, loop, call)):
            continue
        above = [call, *script.above(call)]
        if any(one in above for one in wrapped) or any(
            p in context.training.backwards for p in above
        ):
            continue
        summing = COUNT.match(script.code(call)) is not None
        if summing and not _reported(context, loop, call):
            continue
        if _in_backward_value(context, loop, call):
            continue
        adds = summing or _loss_sums(context, loop, call)
        function = "rankup.batch_sum(" if adds else "rankup.batch_mean("
        context.around(call, function)
        wrapped.append(call)
        context.done(call, f"this is of the whole batch ({function[:-1]})")


def _reading(context: Context, loop: Loop, value: ast.expr) -> ast.expr:
    """The reading of a value inside an expression; all of it where there is none."""
    script = context.script
    for call in script.inside(value, ast.Call):
        if READ.search(script.code(call)) and of_batch(context, loop, call):
            return call
    return value


def _after(context: Context, loop: Loop) -> tuple[list[ast.Call], list[ast.Call]]:
    """Calls behind a loop, up to the end of the function, that may read its last loss.

    Apart from those behind a further loop, by whose batches the runtime would weigh them.
    """
    script = context.script
    if not loop.losses:
        return [], []
    found: list[ast.Call] = []
    late: list[ast.Call] = []
    calls = found
    for parent in [loop.node, *script.above(loop.node)]:
        block = script.block(parent)
        if parent in block:
            for one in block[block.index(parent) + 1 :]:
                if isinstance(one, Function | ast.ClassDef):
                    continue
                names = {
                    name
                    for a in script.inside(one, ast.Assign, deep=False)
                    for t in a.targets
                    for name in words(t)
                }
                if names & loop.losses:
                    break
                if any(
                    other.node is one or other.node in list(script.inside(one, ast.For))
                    for other in context.training.loops
                ):
                    calls = late
                    continue
                calls += [
                    call
                    for call in script.inside(one, ast.Call, deep=False)
                    if words(call) & loop.losses
                ]
        if isinstance(parent, Function):
            break
    return found, late


def _meter(context: Context, loop: Loop, one: Increment) -> list[ast.AST]:
    call = one.node
    assert isinstance(call, ast.Call)
    context.around(one.value, "rankup.batch_mean(")
    wrapped: list[ast.AST] = [one.value]
    for arg in given(call)[1:]:
        if local_count(context, loop, arg):
            context.around(arg, "rankup.batch_sum(")
            wrapped.append(arg)
    context.done(call, f"{one.target} is of the whole batch (rankup.batch_mean)")
    return wrapped


def _reads_loss(context: Context, loop: Loop, call: ast.expr) -> bool:
    """`loss.item()`, `float(loss)` of what the backward starts from, or of its parts.

    And `scores.mean().item()` of anything made of the batch.
    """
    code = context.script.code(call)
    if not READ.search(code):
        return False
    if code.endswith(".mean().item()") and of_batch(context, loop, call):
        return True
    names = words(call)
    return bool(names & (loop.losses | _losses(context, loop)))


def _losses(context: Context, loop: Loop) -> set[str]:
    """Names with `loss` in them that the loop computes: parts of what the backward starts from."""
    return {name for name in derived(context, loop) if re.search(r"loss|err|\bacc\b", name)}


def _counts(context: Context, loop: Loop, call: ast.AST) -> bool:
    return COUNT.match(context.script.code(call)) is not None and of_batch(context, loop, call)


def _reported(context: Context, loop: Loop, call: ast.AST) -> bool:
    """Whether a value goes into something printed or logged, and into nothing else."""
    script = context.script
    for parent in script.above(call):
        if isinstance(parent, ast.Call) and script.code(parent.func).split(".")[-1] in _REPORTS:
            return True
        if isinstance(parent, ast.Assign):
            name = _given_to(context, parent, call)
            uses = [
                one
                for one in script.inside(loop.node.body, ast.Name, deep=False)
                if one.id == name and parent not in script.above(one)
            ]
            return bool(uses) and all(_said(context, one) for one in uses)
        if isinstance(parent, ast.stmt):
            return False
    return False


def _said(context: Context, name: ast.Name) -> bool:
    """Whether a name is read to be told: not to be kept, or to be computed with."""
    script = context.script
    for up in script.above(name):
        if isinstance(up, ast.stmt):
            return False
        if isinstance(up, ast.Call):
            dotted = script.name(up.func)
            last = script.code(up.func).split(".")[-1]
            if dotted.split(".")[0] in ("math", "numpy", "torch"):
                return False
            if last in _REPORTS and last not in ("append", "append_row", "update"):
                return True
    return False


def _given_to(context: Context, assign: ast.Assign, call: ast.AST) -> str:
    """The name that a value goes to, of several too: `loss, n = loss.item(), len(x)`."""
    script, target = context.script, assign.targets[0]
    if not isinstance(target, ast.Tuple):
        return script.dotted(target) or ""
    if isinstance(assign.value, ast.Tuple) and len(assign.value.elts) == len(target.elts):
        for part, value in zip(target.elts, assign.value.elts, strict=True):
            if value is call or value in script.above(call):
                return script.dotted(part) or ""
    return ""


def _in_backward_value(context: Context, loop: Loop, call: ast.AST) -> bool:
    """Whether a reading flows into the loss itself, as a weight."""
    script = context.script
    for parent in script.above(call):
        if isinstance(parent, ast.Assign):
            names = {name for t in parent.targets for name in words(t)}
            return bool(names & loop.losses) and not _behind(context, loop, parent)
        if isinstance(parent, ast.stmt):
            return False
    return False


def _behind(context: Context, loop: Loop, assign: ast.Assign) -> bool:
    """Whether a statement stands behind the backward of its round."""
    script = context.script
    inside = [one for one in context.training.backwards if loop.node in script.above(one)]
    given = {name for t in assign.targets for name in words(t)}
    own = [one for one in inside if given & words(one)]
    at = script.span(assign)[0]
    return bool(inside) and all(script.span(one)[0] < at for one in own or inside)


def _loss_sums(context: Context, loop: Loop, call: ast.expr) -> bool:
    names = words(call)
    return bool(context.training.backwards) and sums(
        context, context.script.scope(call), names, call
    )
