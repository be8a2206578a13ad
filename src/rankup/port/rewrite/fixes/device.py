"""Which GPU: after `rankup.setup()` plain "cuda" is this rank's, so numbers have to go."""

from __future__ import annotations

import ast
import re

from ....script.flow import given
from ...rules.facts import integer, string, strings
from ..context import Context

_NUMBERED = re.compile(r"""^(["'])cuda:\d+\1$""")
_DEVICE_NAMES = {"device", "gpu", "gpu_id", "dev", "cuda_device", "device_id"}
_TEXT = "this rank's own GPU instead of a numbered one"


def numbered(context: Context) -> None:
    """`"cuda:0"`, `f"cuda:{n}"`, `.cuda(0)`, `torch.device(0)`, `device = 0`."""
    script = context.script
    for text in strings(script.file):
        code = script.code(text)
        if _NUMBERED.match(code):
            context.replace(text, code[0] + "cuda" + code[0])
            context.done(text, _TEXT)
    for formatted in script.all(ast.JoinedStr):
        if formatted.values and string(formatted.values[0]) == "cuda:":
            context.replace(formatted, '"cuda"')
            context.done(formatted, _TEXT)
    for sum_ in script.all(ast.BinOp):
        if string(sum_.left) in ("cuda:", "cuda:%d", "cuda:%s"):
            context.replace(sum_, '"cuda"')
            context.done(sum_, _TEXT)
    for call in script.all(ast.Call):
        _call(context, call)
    for node in script.all(ast.Assign):
        target = script.dotted(node.targets[0])
        if target.split(".")[-1] in _DEVICE_NAMES and integer(node.value):
            # A number, since it may be printed or compared with one.
            context.replace(node.value, "rankup.setup().device.index or 0")
            context.done(node, _TEXT)


def _call(context: Context, call: ast.Call) -> None:
    script = context.script
    name = script.name(call.func)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "format" and script.code(call).startswith(('"cuda:{}"', "'cuda:{}'")):
        context.replace(call, '"cuda"')
        context.done(call, _TEXT)
    elif method == "cuda" and name != "torch.cuda":
        kept = [one for one in call.keywords if one.arg == "non_blocking"]
        if len(kept) != len(given(call)):
            inside = ", ".join(script.code(arg) for arg in kept)
            place = (script.span(call.func)[1], script.span(call)[1])
            if not context.edits.taken(place):
                context.edits.replace(place, f"({inside})")
                context.done(call, _TEXT)
    elif name == "torch.device" and given(call):
        first = given(call)[0]
        text = string(first)
        if integer(first) or (text == "cuda" and len(given(call)) > 1):
            context.replace(call, script.code(call.func) + '("cuda")')
            context.done(call, _TEXT)
    elif method == "to" and call.args and integer(call.args[0]):
        context.replace(call.args[0], "rankup.setup().device")
        context.done(call, _TEXT)


def own_choice(context: Context) -> None:
    """`CUDA_VISIBLE_DEVICES` and `set_device` in the script would put all ranks on one GPU."""
    script = context.script
    for node in script.all(ast.Assign):
        code = script.code(node.targets[0])
        if "environ" in code and "CUDA_VISIBLE_DEVICES" in code:
            context.remove(node)
            context.done(node, "the launcher says which GPUs are visible: line removed")
    for call in script.all(ast.Call):
        name = script.name(call.func)
        text = script.code(call)
        if name == "torch.cuda.set_device" or (
            name in ("os.environ.setdefault", "os.putenv") and "CUDA_VISIBLE_DEVICES" in text
        ):
            statement = script.file.names.statement(call)
            if script.row(statement) == [statement] and not hasattr(statement, "body"):
                context.remove(statement)
                context.done(call, "rankup.setup() has chosen the GPU: line removed")


def data_parallel(context: Context) -> None:
    """`nn.DataParallel` is what `rankup.wrap` replaces."""
    script = context.script
    calls = script.all(ast.Call)
    for call in calls:
        if script.name(call.func) not in (
            "torch.nn.DataParallel",
            "torch.nn.parallel.DataParallel",
        ):
            continue
        if not given(call):
            continue
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
