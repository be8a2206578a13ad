"""What only a person can decide: a comment at the place, a line in the report, no change."""

from __future__ import annotations

import ast
import re

from ....script.flow import argument, call_name, literal
from ....script.names import Function
from ...rules.facts import starred
from ..context import Context


def by_hand(context: Context) -> None:
    """Data that only the script can cut, and training in another file."""
    _batches(context)
    _elsewhere(context)
    _masked_in_the_model(context)


def _batches(context: Context) -> None:
    """Batches that a rank gets nothing of."""
    script, whole = context.script, context.options.batch == "global"
    for call in context.training.loader_calls:
        size = argument(call, "batch_size", 1)
        chosen = argument(call, "batch_sampler") is not None or starred(call)
        trains = any(
            loop.trains and call in context.training.loaders_of(loop)
            for loop in context.training.loops
        )
        if size is not None and script.code(size) == "None":
            context.leave(call, "batch_size=None has no batches for rankup.shard to cut")
        elif whole and trains and not chosen and (size is None or _one(context, size)):
            context.leave(
                call,
                "a batch of one sample is rank 0's, and all other ranks are idle: give batch_size, "
                "of which each rank takes its part, or port with --batch per-gpu",
                comment=False,
            )


def _one(context: Context, size: ast.expr) -> bool:
    """Return whether a batch size is 1, or is by the default of the command line's option."""
    flow = context.script.flow
    origins = flow.origins(context.script.file, size)
    if origins and all(literal(one.node) == 1 for one in origins):
        return True
    named = {one.node.attr for one in origins if isinstance(one.node, ast.Attribute)}
    return any(
        literal(argument(call, "default")) == 1 and _option(call) in named
        for file in flow.files
        for call in file.names.all(ast.Call)
        if call_name(call) == "add_argument"
    )


def _option(call: ast.Call) -> str:
    """`batch_size` of `add_argument("-b", "--batch-size")`."""
    texts = [literal(one) for one in (*call.args, argument(call, "dest"))]
    names = [one for one in texts if isinstance(one, str) and not re.fullmatch("-[^-]", one)]
    return names[-1].lstrip("-").replace("-", "_") if names else ""


def _elsewhere(context: Context) -> None:
    """A training loop in another file: its numbers are of a rank's part of the batches."""
    for call in context.training.elsewhere:
        found = context.script.flow.definition(context.script.file, call.func)
        assert found is not None
        context.leave(
            call,
            f"the training loop is in {found[0].path.name}, which stays as it is: what it adds up, "
            "saves or returns is of this rank's part of the batches",
        )


def _masked_in_the_model(context: Context) -> None:
    """A model that returns its loss, a mean over valid targets: `units` looks at loops alone."""
    script = context.script
    for call in script.all(ast.Call):
        scope = script.scope(call)
        inside = isinstance(scope, Function) and scope.name == "forward"
        if inside and argument(call, "ignore_index") is not None:
            context.leave(
                call,
                "a mean over valid targets, of which the ranks have different numbers: call "
                "rankup.count(int((targets != ignored).sum())) before backward()",
            )
