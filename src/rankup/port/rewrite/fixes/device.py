"""Which GPU: after `rankup.setup()` plain "cuda" is this rank's, so numbers have to go."""

from __future__ import annotations

import ast

from ....script.flow import call_name, given
from ...rules.device import (
    chosen_by_environment,
    data_parallels,
    numbered_names,
    numbered_texts,
    numbers_given,
)
from ...rules.facts import integer, string
from ..context import Context

_TEXT = "this rank's own GPU instead of a numbered one"


def numbered(context: Context) -> None:
    """`"cuda:0"`, `f"cuda:{n}"`, `.cuda(0)`, `torch.device(0)`, `device = 0`."""
    script = context.script
    for text, number in numbered_texts(script.file):
        device = (string(text) or "cuda").partition(":")[0]
        quote = script.code(text)[0] if number is None and script.code(text)[0] == "'" else '"'
        context.replace(text, quote + device + quote)
        context.done(text, _TEXT)
    for call, number in numbers_given(script.file):
        _call(context, call, number)
    for assign in numbered_names(script.file):
        # A number, since it may be printed or compared with one.
        context.replace(assign.value, "rankup.setup().device.index or 0")
        context.done(assign, _TEXT)


def _call(context: Context, call: ast.Call, number: ast.expr) -> None:
    script = context.script
    match call_name(call):
        case "cuda":
            kept = [one for one in call.keywords if one.arg == "non_blocking"]
            inside = ", ".join(script.code(arg) for arg in kept)
            place = (script.span(call.func)[1], script.span(call)[1])
            if context.edits.taken(place):
                return
            context.edits.replace(place, f"({inside})")
        case "device" if integer(given(call)[0]) or string(given(call)[0]) == "cuda":
            context.replace(call, script.code(call.func) + '("cuda")')
        case "to":
            context.replace(number, "rankup.setup().device")
        case _:
            return
    context.done(call, _TEXT)


def own_choice(context: Context) -> None:
    """`CUDA_VISIBLE_DEVICES` and `set_device` in the script would put all ranks on one GPU."""
    script = context.script
    for statement, _ in chosen_by_environment(script.file):
        if isinstance(statement, ast.Assign) or _alone(context, statement):
            context.remove(statement)
            context.done(statement, "the launcher says which GPUs are visible: line removed")
    for call in script.all(ast.Call):
        statement = script.file.names.statement(call)
        if script.name(call.func) == "torch.cuda.set_device" and _alone(context, statement):
            context.remove(statement)
            context.done(call, "rankup.setup() has chosen the GPU: line removed")


def _alone(context: Context, statement: ast.AST) -> bool:
    return context.script.row(statement) == [statement] and isinstance(statement, ast.Expr)


def data_parallel(context: Context) -> None:
    """`nn.DataParallel` is what `rankup.wrap` replaces."""
    script = context.script
    calls = script.all(ast.Call)
    for call in data_parallels(script.file):
        assign = script.parents[call]
        inner = script.code(given(call)[0])
        if (
            isinstance(assign, ast.Assign)
            and script.code(assign.targets[0]) == inner
            and script.row(assign) == [assign]
        ):
            context.remove(assign)
        else:
            context.replace(call, inner)
        context.done(call, "DataParallel taken out: each rank has one GPU")
        if any(script.name(one.func) in ("torch.save", "torch.load") for one in calls):
            context.leave(
                call,
                "names in saved files begin with `module.` no longer: take that off those of "
                "older files before they are loaded",
                comment=False,
            )
