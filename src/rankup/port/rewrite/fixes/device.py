"""Which GPU: after `rankup.setup()` plain "cuda" is this rank's, so numbers have to go."""

from __future__ import annotations

import re

import libcst as cst

from ..context import Context

_NUMBERED = re.compile(r"""^(["'])cuda:\d+\1$""")
_DEVICE_NAMES = {"device", "gpu", "gpu_id", "dev", "cuda_device", "device_id"}
_TEXT = "this rank's own GPU instead of a numbered one"


def numbered(context: Context) -> None:
    """`"cuda:0"`, `f"cuda:{n}"`, `.cuda(0)`, `torch.device(0)`, `device = 0`."""
    script = context.script
    for text in script.all(cst.SimpleString):
        if _NUMBERED.match(text.value):
            context.replace(text, text.value[0] + "cuda" + text.value[0])
            context.done(text, _TEXT)
    for formatted in script.all(cst.FormattedString):
        first = formatted.parts[0] if formatted.parts else None
        if isinstance(first, cst.FormattedStringText) and first.value == "cuda:":
            context.replace(formatted, '"cuda"')
            context.done(formatted, _TEXT)
    for sum_ in script.all(cst.BinaryOperation):
        if isinstance(sum_.left, cst.SimpleString) and sum_.left.value[1:-1] in (
            "cuda:",
            "cuda:%d",
            "cuda:%s",
        ):
            context.replace(sum_, '"cuda"')
            context.done(sum_, _TEXT)
    for call in script.all(cst.Call):
        _call(context, call)
    for node in script.all(cst.Assign):
        target = script.dotted(node.targets[0].target)
        if target.split(".")[-1] in _DEVICE_NAMES and isinstance(node.value, cst.Integer):
            # A number, since it may be printed or compared with one.
            context.replace(node.value, "rankup.setup().device.index or 0")
            context.done(node, _TEXT)


def _call(context: Context, call: cst.Call) -> None:
    script = context.script
    name = script.name(call.func)
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if method == "format" and script.code(call).startswith(('"cuda:{}"', "'cuda:{}'")):
        context.replace(call, '"cuda"')
        context.done(call, _TEXT)
    elif method == "cuda" and name != "torch.cuda":
        kept = [a for a in call.args if a.keyword is not None and a.keyword.value == "non_blocking"]
        if len(kept) != len(call.args):
            span, func = script.span(call), script.span(call.func)
            inside = ", ".join(script.code(arg) for arg in kept)
            place = type(span)(func.end, span.end)
            if not context.edits.taken(place):
                context.edits.replace(place, f"({inside})")
                context.done(call, _TEXT)
    elif name == "torch.device" and call.args:
        first = call.args[0].value
        text = first.value.strip("\"'") if isinstance(first, cst.SimpleString) else ""
        if isinstance(first, cst.Integer) or (text == "cuda" and len(call.args) > 1):
            context.replace(call, script.code(call.func) + '("cuda")')
            context.done(call, _TEXT)
    elif method == "to" and call.args and isinstance(call.args[0].value, cst.Integer):
        context.replace(call.args[0].value, "rankup.setup().device")
        context.done(call, _TEXT)


def own_choice(context: Context) -> None:
    """`CUDA_VISIBLE_DEVICES` and `set_device` in the script would put all ranks on one GPU."""
    script = context.script
    for node in script.all(cst.Assign):
        code = script.code(node.targets[0].target)
        if "environ" in code and "CUDA_VISIBLE_DEVICES" in code:
            context.remove(script.statement(node))
            context.done(node, "the launcher says which GPUs are visible: line removed")
    for call in script.all(cst.Call):
        name = script.name(call.func)
        text = script.code(call)
        if name == "torch.cuda.set_device" or (
            name in ("os.environ.setdefault", "os.putenv") and "CUDA_VISIBLE_DEVICES" in text
        ):
            statement = script.statement(call)
            if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
                context.remove(statement)
                context.done(call, "rankup.setup() has chosen the GPU: line removed")


def data_parallel(context: Context) -> None:
    """`nn.DataParallel` is what `rankup.wrap` replaces."""
    script = context.script
    calls = script.all(cst.Call)
    for call in calls:
        if script.name(call.func) not in (
            "torch.nn.DataParallel",
            "torch.nn.parallel.DataParallel",
        ):
            continue
        if not call.args:
            continue
        statement = script.statement(call)
        inner = script.code(call.args[0].value)
        assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if (
            isinstance(statement, cst.SimpleStatementLine)
            and isinstance(assign, cst.Assign)
            and assign.value is call
            and script.code(assign.targets[0].target) == inner
            and len(statement.body) == 1
        ):
            context.remove(statement)
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
