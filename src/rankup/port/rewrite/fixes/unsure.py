"""Remarks on what port does not put together: said at the line, nothing changed."""

from __future__ import annotations

import ast

from ....script.flow import argument, call_name, given
from ....script.names import mentioned, words_in
from ....script.roles import LoopNode
from ....script.torch_names import words
from ..context import Context
from ..losses import differentiated
from ..means import NotSeen, check_mean
from ..script import ForNode
from ..training import Loop

_NO_MEAN = (
    "not seen to be a mean over the samples{at}: each rank's value is of its part of a batch, and "
    "ranks average them by samples"
)
_TOGETHER = (
    "the model takes a batch together{at}, where its first dimension is that of the samples: each "
    "rank those of its part"
)

_REDUCES = words("mean sum std var median quantile max min amax amin item kthvalue topk norm")


def of_a_part(context: Context) -> None:
    """Remarks on what is of this rank's part of a batch, alone."""
    _unfrozen(context)
    _not_means(context)
    _carried(context)
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
            for name in words_in(place.iter if isinstance(place, ForNode) else node)
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


def _not_means(context: Context) -> None:
    """A loss that is not seen to be a mean over the samples: said once, at its line."""
    said: set[ast.AST] = set()
    for call in context.training.backwards:
        loss = differentiated(call)
        if loss is None:
            continue
        at = _line_of(context, loss, call)
        try:
            for together in check_mean(context.training, loss):
                _leave_once(context, together, at, _TOGETHER, said)
        except NotSeen as place:
            _leave_once(context, place, at, _NO_MEAN, said)


def _leave_once(
    context: Context, place: NotSeen, otherwise: ast.AST, text: str, said: set[ast.AST]
) -> None:
    """Say something at its statement; of another file where the script leads to it."""
    script, at = context.script, ""
    node = place.node if place.script is script else otherwise
    if script.statement(node) in said:
        return
    said.add(script.statement(node))
    if place.script is not script:
        at = f" ({place.script.file.path.name}:{place.script.line(place.node)})"
    context.leave(node, text.format(at=at))


def _line_of(context: Context, loss: ast.expr | None, call: ast.Call) -> ast.AST:
    """The statement that gives a loss its value."""
    script = context.script
    name = script.dotted(loss)
    made = [
        one
        for one, _ in context.script.assigned(name, script.scope(call))
        if script.line(one) <= script.line(call)
    ]
    return max(made, key=script.line) if made else call


def _carried(context: Context) -> None:
    """A state that is made of a batch, and that the loss of the next batch is made with."""
    script = context.script
    for loop in context.training.loops:
        names = list(script.inside(loop.node, ast.Name))
        stored = [one.id for one in names if isinstance(one.ctx, ast.Store)]
        local = context.local.get(loop.node, set()) - loop.losses
        local &= _feeding(context, loop) & {one for one in stored if stored.count(one) == 1}
        for one in script.inside(loop.node.body, ast.Assign, ast.AugAssign, deep=False):
            assert isinstance(one, ast.Assign | ast.AugAssign)
            if not any(call_name(call) in _REDUCES for call in script.inside(one.value, ast.Call)):
                continue
            read = [name for name in names if script.span(name)[0] < script.span(one)[1]]
            before = {name.id for name in read if isinstance(name.ctx, ast.Load)}
            for name in sorted(mentioned(*_targets(one)) & local & before):
                context.leave(
                    one,
                    f"`{name}` goes from batch to batch and is made of this rank's part: ranks go "
                    "apart in it; put together what it is made of (rankup.all_reduce)",
                )


def _feeding(context: Context, loop: Loop) -> set[str]:
    """The names that the losses of a loop are made of."""
    found, size = set(loop.losses), -1
    assigns = list(context.script.inside(loop.node.body, ast.Assign, ast.AugAssign, deep=False))
    while len(found) > size:
        size = len(found)
        for one in assigns:
            assert isinstance(one, ast.Assign | ast.AugAssign)
            found |= mentioned(one.value) if mentioned(*_targets(one)) & found else set()
    return found


def _targets(one: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return one.targets if isinstance(one, ast.Assign) else [one.target]
