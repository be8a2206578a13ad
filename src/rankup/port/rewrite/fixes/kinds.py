"""What a loop adds up: over samples, over batches, or outputs that it keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from ..context import Context
from ..expressions import read, root_name, targets_of
from ..training import Loop
from .model import adds_up

_SUM = re.compile(
    r"\.sum\(|torch\.sum\(|\.size\(0\)|\.shape\[0\]|\.numel\(\)|count_nonzero|\bsum\(|\blen\("
)
COUNT = re.compile(r"^(len\(.*\)|[\w.]+\.size\(0\)|[\w.]+\.shape\[0\]|[\w.]+\.numel\(\))$")
READ = re.compile(r"\.item\(\)$|^float\(|\.cpu\(\)\.numpy\(\)$|\.tolist\(\)$")


@dataclass(frozen=True)
class Increment:
    """`target += value` in a loop, or `target.append(value)`, or a meter's update.

    Attributes:
        kind: `sum` (adds up over samples), `mean` (a mean over the batch), `batches` (a count of
            batches), `rows` (outputs of samples), or empty: not understood.
    """

    node: cst.CSTNode
    target: str
    value: cst.BaseExpression
    kind: str
    how: str


def increments(context: Context, loop: Loop) -> list[Increment]:
    """What a loop adds up, in the order of the text."""
    script, found = context.script, []
    anew = made_anew(context, loop)
    for node in script.inside(loop.node.body, cst.AugAssign, deep=False):
        target = script.dotted(node.target) or (root_name(node.target) or "")
        if not isinstance(node.operator, cst.AddAssign) or not target:
            continue
        kind = _kind(context, loop, node.value)
        if kind != "skip":
            found.append(Increment(node, target, node.value, kind, "add"))
    for assign in script.inside(loop.node.body, cst.Assign, deep=False):
        value = assign.value
        target = script.dotted(assign.targets[0].target)
        if (
            target
            and isinstance(value, cst.BinaryOperation)
            and isinstance(value.operator, cst.Add)
            and script.dotted(value.left) == target
        ):
            kind = _kind(context, loop, value.right)
            if kind != "skip":
                found.append(Increment(assign, target, value.right, kind, "add"))
    for call in script.inside(loop.node.body, cst.Call, deep=False):
        if not isinstance(call.func, cst.Attribute) or not call.args:
            continue
        method, target = call.func.attr.value, script.dotted(call.func.value)
        if not target or not isinstance(script.parents.get(call), cst.Expr):
            continue
        value = call.args[0].value
        if method in ("append", "extend"):
            kind = _kind(context, loop, value)
            if (
                method == "extend"
                or kind == ""
                or isinstance(value, cst.Tuple)
                or (kind == "mean" and not _is_value(context, loop, value))
            ):
                kind = "rows" if of_batch(context, loop, value) else "skip"
            if kind not in ("skip", "batches"):
                found.append(Increment(call, target, value, kind, method))
        elif (
            method == "update"
            and _is_meter(context, call, target)
            and _kind(context, loop, value) in ("mean", "sum", "")
        ):
            found.append(Increment(call, target, value, "mean", "meter"))
    return [one for one in found if one.target not in anew and own(context, loop, one.node)]


def own(context: Context, loop: Loop, node: cst.CSTNode) -> bool:
    """Whether something belongs to this loop, and not to one over batches inside it."""
    loops = {one.node for one in context.training.loops}
    return next((up for up in context.script.above(node) if up in loops), None) is loop.node


def made_anew(context: Context, loop: Loop) -> set[str]:
    """Names that every round gives another value: noise added to a batch is no running sum."""
    script = context.script
    node = loop.node
    names = set()
    if isinstance(node, cst.For):
        names = {name.value for name in script.inside(node.target, cst.Name)}
    for line in node.body.body:
        for assign in script.inside(line, cst.Assign, deep=False):
            if script.parents.get(assign) is not line:
                continue  # under a condition: a sum that begins anew now and then
            written = {script.dotted(one) for one in targets_of(assign.targets[0].target)}
            used = read(script, assign.value)
            names |= {name for name in written if name and name not in used}
    return names


def _kind(context: Context, loop: Loop, value: cst.BaseExpression) -> str:
    script, code = context.script, context.script.code(value)
    if isinstance(value, cst.Integer):
        if not conditional(context, loop, value):
            return "skip" if loop.trains else "batches"
        return "sum" if not loop.trains else "skip"
    names = {name.value for name in script.inside(value, cst.Name)}
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
        if _SUM.search(script.code(value.left)) and not local_count(context, loop, value.right):
            return "sum"
        return "mean" if of_batch(context, loop, value) else "skip"
    if not of_batch(context, loop, value):
        return "skip"
    if isinstance(value, cst.Name) and COUNT.match(_made(context, loop, value)):
        return "sum"
    multiplied = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply)
    if multiplied:
        sides = (value.left, value.right)  # type: ignore[attr-defined]
        if any(local_count(context, loop, side) for side in sides):
            return "sum"
    if _SUM.search(code) or adds_up(context, value, 0) or by_sample(context, loop, value):
        return "sum"
    for name in names:
        made = _made(context, loop, name)
        if made and (_SUM.search(made) and "/" not in made and ".mean(" not in made):
            return "sum"
    if any(
        adds_up(context, assigned, 0)
        for name in names
        for _, assigned in context.training.assigned(name, script.scope(value))
        if any(p is loop.node for p in script.above(assigned))
    ):
        return "sum"
    function = next(
        (script.called(c) for c in script.inside(value, cst.Call) if script.called(c)), None
    )
    if function is not None:
        return _kind_of_function(context, function)
    return "mean"


def _kind_of_function(context: Context, function: cst.FunctionDef) -> str:
    """By what a function of the script returns."""
    body = context.script.code(function.body)
    returned = [
        context.script.code(one.value)
        for one in context.script.inside(function, cst.Return)
        if one.value is not None
    ]
    if any("/" in text or ".mean(" in text for text in returned):
        return "mean"
    if any(_SUM.search(text) for text in returned):
        return "sum"
    if "backward()" in body or any(".item()" in text for text in returned):
        return "mean"
    return ""


def _made(context: Context, loop: Loop, value: cst.Name | str) -> str:
    """The text that a name was given in the loop."""
    name = value if isinstance(value, str) else value.value
    script = context.script
    for assign in script.inside(loop.node.body, cst.Assign, deep=False):
        target = assign.targets[0].target
        if script.dotted(target) == name:
            return script.code(assign.value)
        if isinstance(target, cst.Tuple):
            names = [script.dotted(one.value) for one in target.elements]
            if name in names:
                return _part_of(context, assign.value, names.index(name), len(names))
    return ""


def _part_of(context: Context, value: cst.BaseExpression, place: int, parts: int) -> str:
    """The text of one part of what is unpacked: of a tuple, or of what a function returns."""
    script = context.script
    if isinstance(value, cst.Call):
        function = script.called(value)
        returns = [] if function is None else list(script.inside(function, cst.Return, deep=False))
        given = returns[0].value if len(returns) == 1 else None
        if isinstance(given, cst.Tuple) and len(given.elements) == parts:
            part = given.elements[place].value
            made = context.training.assigned(script.dotted(part) or "", script.scope(part))
            return script.code(made[-1][1] if made else part)
    if isinstance(value, cst.Tuple) and len(value.elements) == parts:
        return script.code(value.elements[place].value)
    return ""


def local_count(context: Context, loop: Loop, value: cst.CSTNode) -> bool:
    """Whether an expression is the number of samples of the batch at hand."""
    code = context.script.code(value)
    if isinstance(value, cst.Name):
        code = _made(context, loop, value)
    match = COUNT.match(code)
    return match is not None and of_batch(context, loop, value, code)


def of_batch(context: Context, loop: Loop, value: cst.CSTNode, code: str = "") -> bool:
    """Whether something depends on the batch at hand."""
    script = context.script
    names = {name.value for name in script.inside(value, cst.Name)} | set(re.findall(r"\w+", code))
    known = loop.batch | loop.losses | derived(context, loop)
    return bool(names & known) or any(
        script.called(call) is not None and context.training.trains(script.called(call).body)  # type: ignore[union-attr]
        for call in script.inside(value, cst.Call)
    )


def derived(context: Context, loop: Loop) -> set[str]:
    """Names that the loop makes of the batch, values too."""
    if loop.node not in context.derived:
        context.derived[loop.node] = _derived(context, loop)
    return context.derived[loop.node]


def _derived(context: Context, loop: Loop) -> set[str]:
    script, known = context.script, set(loop.batch | loop.losses)
    made: list[tuple[cst.CSTNode, list[cst.CSTNode]]] = [
        (one.value, [target.target for target in one.targets])
        for one in script.inside(loop.node.body, cst.Assign, deep=False)
    ]
    made += [
        (one.value, [one.target])
        for one in script.inside(loop.node.body, cst.AugAssign, deep=False)
        if any(isinstance(parent, cst.For) for parent in _up_to(context, loop, one))
    ]
    made += [(one.iter, [one.target]) for one in script.inside(loop.node.body, cst.For, deep=False)]
    for _ in range(3):
        for value, targets in made:
            if {n.value for n in script.inside(value, cst.Name)} & known:
                for target in targets:
                    known |= {n.value for n in script.inside(target, cst.Name)} - {"self"}
    return known


def _is_meter(context: Context, call: cst.Call, target: str) -> bool:
    """Whether it holds a running `sum` and `count`, as ImageNet's AverageMeter does."""
    script = context.script
    made = [
        *context.training.assigned(target, script.scope(call)),
        *context.training.assigned(target, script.module),
    ]
    if any(
        script.name(call.func).startswith("torchmetrics.")
        for _, value in made
        for call in script.inside(value, cst.Call)
    ):
        return False  # its compute() puts the ranks' numbers together
    for own in script.all(cst.ClassDef):
        if any(
            one.value == own.name.value
            for _, value in made
            for one in script.inside(value, cst.Name)
        ):
            written = script.code(own.body)
            return "self.sum" in written and "self.count" in written
    code = " ".join(script.code(value) for _, value in made)
    return len(call.args) > 1 or "Meter" in code or "meter" in target.lower()


def conditional(context: Context, loop: Loop, value: cst.CSTNode) -> bool:
    """Whether an increment happens for some samples only: then it counts these."""
    for parent in context.script.above(value):
        if parent is loop.node:
            return False
        if isinstance(parent, cst.If | cst.For | cst.While):
            return True
    return False


def by_sample(context: Context, loop: Loop, value: cst.CSTNode) -> bool:
    """Whether an increment stands in an inner loop over the samples of a batch."""
    return any(isinstance(parent, cst.For | cst.While) for parent in _up_to(context, loop, value))


def _up_to(context: Context, loop: Loop, node: cst.CSTNode) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = []
    for parent in context.script.above(node):
        if parent is loop.node:
            return found
        found.append(parent)
    return []


def _is_value(context: Context, loop: Loop, value: cst.BaseExpression) -> bool:
    """Whether what is appended is one number of a batch, not the batch's outputs."""
    code = context.script.code(value)
    if READ.search(code) and not code.endswith((".tolist()", ".numpy()")):
        return True
    if ".mean(" in code or re.search(r"loss|\bacc", code):
        return True
    made = _made(context, loop, value) if isinstance(value, cst.Name) else ""
    return bool(re.search(r"loss|\.item\(\)|\.mean\(|criterion", made))
