"""Remarks on what port does not put together: said at the line, nothing changed."""

from __future__ import annotations

import ast

from ....script.flow import argument, call_name, given
from ....script.names import Function
from ....script.roles import LoopNode
from ..context import Context
from ..expressions import mentioned, stored, words
from ..losses import function_of
from ..script import ForNode, Script


def of_a_part(context: Context) -> None:
    """Remarks on what is of this rank's part of a batch, alone."""
    _unfrozen(context)
    _ratios(context)
    _mixed(context)
    _side_by_side(context)


def _unfrozen(context: Context) -> None:
    """Layers that begin to train when the model was wrapped long ago."""
    script = context.script
    found: list[ast.AST] = [
        one
        for one in script.all(ast.Assign)
        if script.code(one.targets[0]).endswith(".requires_grad")
        and script.code(one.value) == "True"
    ]
    found += [
        call
        for call in script.all(ast.Call)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "requires_grad_"
        and all(script.code(arg) == "True" for arg in given(call))
    ]
    models = {model.name.split(".")[0] for model in context.training.models}
    for node in found:
        above = [one for one in script.above(node) if isinstance(one, LoopNode)]
        names = {
            name
            for place in (node, *above[:1])
            for name in words(place.iter if isinstance(place, ForNode) else node)
        }
        if names & models and any(context.training.trains(one) for one in above):
            context.leave(
                node,
                "what is unfrozen behind rankup.wrap exchanges no gradients: let it train from the "
                "beginning, with a learning rate of 0 until now",
            )


def _side_by_side(context: Context) -> None:
    """`zip(one, other)` over loaders whose batches are of different sizes."""
    script, training = context.script, context.training
    heads = [
        one.node.iter for one in training.loops if one.trains and isinstance(one.node, ForNode)
    ]
    for call in (call for head in heads for call in script.inside(head, ast.Call)):
        if script.name(call.func) != "zip":
            continue
        loaders = [training.loader_of(arg) for arg in given(call)]
        made = [one for one in loaders if isinstance(one, ast.Call)]
        sizes = [argument(one, "batch_size", 1) for one in made]
        if len({script.code(one) if one else "1" for one in sizes}) > 1:
            context.leave(
                call,
                "gradients and means are weighed by this rank's part of the last loader's batch: "
                "not quite those of one GPU at a short batch of another loader",
                comment=False,
            )


def _mixed(context: Context) -> None:
    """Samples of a batch that are mixed with each other, and statistics over the batches."""
    script, training = context.script, context.training
    steps = [
        one
        for loop in training.loops
        if loop.trains
        for one in script.inside(loop.node.body, ast.Call, deep=False)
    ]
    reached = {function for call in steps if (function := script.called(call)) is not None}
    for call in script.all(ast.Call):
        name = script.name(call.func)
        if (
            name == "torch.randperm"
            and call.args
            and (call in steps or script.scope(call) in reached)
        ):
            context.leave(
                call,
                "the samples of this rank's part of a batch are put together among themselves: as "
                "random as on one GPU, but other pairs",
                comment=False,
            )


def _ratios(context: Context) -> None:
    """A loss of the script's own that divides sums over the whole batch, as Dice does."""
    script = context.script
    for function in _of_losses(context):
        for one in script.inside(function.body, ast.BinOp):
            if isinstance(one.op, ast.Div) and all(
                _sums(script, function, side) for side in (one.left, one.right)
            ):
                context.leave(
                    one,
                    "a ratio of sums over the batch, of which each rank has its part: not the "
                    "ratio of the whole batch. Take it for each sample and average these",
                )
                break


def _of_losses(context: Context) -> list[Function]:
    """The functions of this file that make a loss that is differentiated, or a part of it."""
    script, found = context.script, []
    for loop in context.training.loops:
        for assign in script.inside(loop.node.body, ast.Assign, deep=False):
            if not (loop.trains and stored(*assign.targets) & loop.losses):
                continue
            for call in script.inside(assign.value, ast.Call):
                made = function_of(script, call)
                if made is not None and made[0] is script:
                    found.append(made[1])
    return list(dict.fromkeys(found))


def _sums(script: Script, function: Function, side: ast.expr) -> bool:
    """True of a side with a sum over all there is in it, maybe through a name."""
    names = mentioned(side)
    parts = [side]
    parts += [
        one.value
        for one in script.inside(function.body, ast.Assign)
        if stored(*one.targets) & names
    ]
    return any(
        call_name(call) == "sum" and not given(call) and isinstance(call.func, ast.Attribute)
        for part in parts
        for call in script.inside(part, ast.Call)
    )
