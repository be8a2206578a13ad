"""What a loop adds up: over samples, over batches, or outputs that it keeps."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ....script.flow import given
from ....script.names import Function
from ....script.roles import LoopNode
from ...rules.facts import integer
from ..context import Context
from ..expressions import read, root_name, targets_of, words
from ..script import ForNode
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

    node: ast.AST
    target: str
    value: ast.expr
    kind: str
    how: str


def increments(context: Context, loop: Loop) -> list[Increment]:
    """What a loop adds up, in the order of the text."""
    script, found = context.script, []
    anew = made_anew(context, loop)
    for node in script.inside(loop.node.body, ast.AugAssign, deep=False):
        target = script.dotted(node.target) or (root_name(node.target) or "")
        if not isinstance(node.op, ast.Add) or not target:
            continue
        kind = _kind(context, loop, node.value)
        if kind != "skip":
            found.append(Increment(node, target, node.value, kind, "add"))
    for assign in script.inside(loop.node.body, ast.Assign, deep=False):
        value = assign.value
        target = script.dotted(assign.targets[0])
        if (
            target
            and isinstance(value, ast.BinOp)
            and isinstance(value.op, ast.Add)
            and script.dotted(value.left) == target
        ):
            kind = _kind(context, loop, value.right)
            if kind != "skip":
                found.append(Increment(assign, target, value.right, kind, "add"))
    for call in script.inside(loop.node.body, ast.Call, deep=False):
        if not isinstance(call.func, ast.Attribute) or not given(call):
            continue
        method, target = call.func.attr, script.dotted(call.func.value)
        if not target or not isinstance(script.parents.get(call), ast.Expr):
            continue
        value = given(call)[0]
        if method in ("append", "extend"):
            kind = _kind(context, loop, value)
            if (
                method == "extend"
                or kind == ""
                or isinstance(value, ast.Tuple)
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


def own(context: Context, loop: Loop, node: ast.AST) -> bool:
    """Whether something belongs to this loop, and not to one over batches inside it."""
    loops = {one.node for one in context.training.loops}
    return next((up for up in context.script.above(node) if up in loops), None) is loop.node


def made_anew(context: Context, loop: Loop) -> set[str]:
    """Names that every round gives another value: noise added to a batch is no running sum."""
    script = context.script
    node = loop.node
    names = set()
    if isinstance(node, ForNode):
        names = words(node.target)
    for one in node.body:  # not under a condition: a sum that begins anew now and then
        if isinstance(one, ast.Assign):
            written = {script.dotted(target) for target in targets_of(one.targets[0])}
            names |= {name for name in written if name and name not in read(one.value)}
    return names


def _kind(context: Context, loop: Loop, value: ast.expr) -> str:
    script, code = context.script, context.script.code(value)
    if integer(value):
        if not conditional(context, loop, value):
            return "skip" if loop.trains else "batches"
        return "sum" if not loop.trains else "skip"
    names = words(value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        if _SUM.search(script.code(value.left)) and not local_count(context, loop, value.right):
            return "sum"
        return "mean" if of_batch(context, loop, value) else "skip"
    if not of_batch(context, loop, value):
        return "skip"
    if isinstance(value, ast.Name) and COUNT.match(_made(context, loop, value)):
        return "sum"
    multiplied = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)
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
        (script.called(c) for c in script.inside(value, ast.Call) if script.called(c)), None
    )
    if function is not None:
        return _kind_of_function(context, function)
    return "mean"


def _kind_of_function(context: Context, function: Function) -> str:
    """By what a function of the script returns."""
    body = context.script.body(function.body)
    returned = [
        context.script.code(one.value)
        for one in context.script.inside(function, ast.Return)
        if one.value is not None
    ]
    if any("/" in text or ".mean(" in text for text in returned):
        return "mean"
    if any(_SUM.search(text) for text in returned):
        return "sum"
    if "backward()" in body or any(".item()" in text for text in returned):
        return "mean"
    return ""


def _made(context: Context, loop: Loop, value: ast.Name | str) -> str:
    """The text that a name was given in the loop."""
    name = value if isinstance(value, str) else value.id
    script = context.script
    for assign in script.inside(loop.node.body, ast.Assign, deep=False):
        target = assign.targets[0]
        if script.dotted(target) == name:
            return script.code(assign.value)
        if isinstance(target, ast.Tuple):
            names = [script.dotted(one) for one in target.elts]
            if name in names:
                return _part_of(context, assign.value, names.index(name), len(names))
    return ""


def _part_of(context: Context, value: ast.expr, place: int, parts: int) -> str:
    """The text of one part of what is unpacked: of a tuple, or of what a function returns."""
    script = context.script
    if isinstance(value, ast.Call):
        function = script.called(value)
        returns = [] if function is None else list(script.inside(function, ast.Return, deep=False))
        returned = returns[0].value if len(returns) == 1 else None
        if isinstance(returned, ast.Tuple) and len(returned.elts) == parts:
            part = returned.elts[place]
            made = context.training.assigned(script.dotted(part) or "", script.scope(part))
            return script.code(made[-1][1] if made else part)
    if isinstance(value, ast.Tuple) and len(value.elts) == parts:
        return script.code(value.elts[place])
    return ""


def local_count(context: Context, loop: Loop, value: ast.AST) -> bool:
    """Whether an expression is the number of samples of the batch at hand."""
    code = context.script.code(value)
    if isinstance(value, ast.Name):
        code = _made(context, loop, value)
    match = COUNT.match(code)
    return match is not None and of_batch(context, loop, value, code)


def of_batch(context: Context, loop: Loop, value: ast.AST, code: str = "") -> bool:
    """Whether something depends on the batch at hand."""
    script = context.script
    names = words(value) | set(re.findall(r"\w+", code))
    known = loop.batch | loop.losses | derived(context, loop)
    return bool(names & known) or any(
        script.called(call) is not None and context.training.trains(script.called(call).body)  # type: ignore[union-attr]
        for call in script.inside(value, ast.Call)
    )


def derived(context: Context, loop: Loop) -> set[str]:
    """Names that the loop makes of the batch, values too."""
    if loop.node not in context.derived:
        context.derived[loop.node] = _derived(context, loop)
    return context.derived[loop.node]


def _derived(context: Context, loop: Loop) -> set[str]:
    script, known = context.script, set(loop.batch | loop.losses)
    made: list[tuple[ast.AST, list[ast.AST]]] = [
        (one.value, list(one.targets))
        for one in script.inside(loop.node.body, ast.Assign, deep=False)
    ]
    made += [
        (one.value, [one.target])
        for one in script.inside(loop.node.body, ast.AugAssign, deep=False)
        if any(isinstance(parent, ForNode) for parent in _up_to(context, loop, one))
    ]
    made += [(one.iter, [one.target]) for one in script.inside(loop.node.body, ast.For, deep=False)]
    for _ in range(3):
        for value, targets in made:
            if words(value) & known:
                for target in targets:
                    known |= words(target) - {"self"}
    return known


def _is_meter(context: Context, call: ast.Call, target: str) -> bool:
    """Whether it holds a running `sum` and `count`, as ImageNet's AverageMeter does."""
    script = context.script
    made = [
        *context.training.assigned(target, script.scope(call)),
        *context.training.assigned(target, script.tree),
    ]
    if any(
        script.name(call.func).startswith("torchmetrics.")
        for _, value in made
        for call in script.inside(value, ast.Call)
    ):
        return False  # its compute() puts the ranks' numbers together
    for own in script.all(ast.ClassDef):
        if any(own.name in words(value) for _, value in made):
            written = script.body(own.body)
            return "self.sum" in written and "self.count" in written
    code = " ".join(script.code(value) for _, value in made)
    return len(given(call)) > 1 or "Meter" in code or "meter" in target.lower()


def conditional(context: Context, loop: Loop, value: ast.AST) -> bool:
    """Whether an increment happens for some samples only: then it counts these."""
    for parent in context.script.above(value):
        if parent is loop.node:
            return False
        if isinstance(parent, ast.If | LoopNode):
            return True
    return False


def by_sample(context: Context, loop: Loop, value: ast.AST) -> bool:
    """Whether an increment stands in an inner loop over the samples of a batch."""
    return any(isinstance(parent, LoopNode) for parent in _up_to(context, loop, value))


def _up_to(context: Context, loop: Loop, node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for parent in context.script.above(node):
        if parent is loop.node:
            return found
        found.append(parent)
    return []


def _is_value(context: Context, loop: Loop, value: ast.expr) -> bool:
    """Whether what is appended is one number of a batch, not the batch's outputs."""
    code = context.script.code(value)
    if READ.search(code) and not code.endswith((".tolist()", ".numpy()")):
        return True
    if ".mean(" in code or re.search(r"loss|\bacc", code):
        return True
    made = _made(context, loop, value) if isinstance(value, ast.Name) else ""
    return bool(re.search(r"loss|\.item\(\)|\.mean\(|criterion", made))
