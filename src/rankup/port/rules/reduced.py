"""Whether a value that grew over this rank's batches is put together over the ranks."""

from __future__ import annotations

import re

import libcst as cst

from ..naming import words
from ..roles import Count, Loop, Roles
from ..roles.pieces import call_name, returned
from ..source import Source
from ..tree import children, walk

_REDUCES = re.compile(r"all_?reduce|all_?gather|^gather|^reduce|synchroni[sz]e|_reduce$|^sync_")
_OURS = words(
    "mean total gather batch_mean batch_sum all_reduce all_gather reduce_scatter broadcast"
)
_DEPTH = 3


def is_reduction(source: Source, call: cst.Call) -> bool:
    """A collective that puts values together, or a helper of that name."""
    dotted = source.index.called(call)
    if dotted.startswith("rankup."):
        return dotted.removeprefix("rankup.") in _OURS
    if dotted.startswith(("functools", "builtins", "torch.cuda")) or dotted == "torch.gather":
        return False
    return _REDUCES.search(call_name(call)) is not None


def reduced(source: Source, roles: Roles, loop: Loop, count: Count) -> bool:
    """Whether a count of a loop, or what is made of it, goes through a reduction."""
    around: cst.CSTNode = source.index.function(loop.node) or source.module
    if count.name.startswith("self."):
        around = source.index.class_(loop.node) or around
    if _reduces_itself(source, roles, count):
        return True
    if any(isinstance(one, cst.Call) and is_reduction(source, one) for one in walk(count.node)):
        return True
    return _reaches(source, roles, around, {count.name}, _DEPTH)


def handed_to_all(source: Source, roles: Roles, around: cst.CSTNode, names: set[str]) -> bool:
    """Whether what a function makes of these names goes through a reduction, here or above it."""
    return _reaches(source, roles, around, names, _DEPTH)


def tainted(source: Source, around: cst.CSTNode, names: set[str]) -> set[str]:
    """The names in a function that are made of others, those included."""
    found = set(names)
    pairs: list[tuple[set[str], set[str]]] = []
    for node in walk(around):
        match node:
            case cst.Assign():
                targets = {name for one in node.targets for name in mentions(one.target)}
                pairs.append((targets, mentions(node.value)))
            case cst.AnnAssign() if node.value is not None:
                pairs.append((mentions(node.target), mentions(node.value)))
            case cst.AugAssign():
                pairs.append((mentions(node.target), mentions(node.value)))
    for _ in range(4):
        before = len(found)
        for targets, used in pairs:
            if used & found:
                found |= targets
        if len(found) == before:
            break
    return found


def mentions(node: cst.CSTNode) -> set[str]:
    """Names and attributes in an expression, `total` and `self.total`."""
    found = set()
    stack = [node]
    while stack:
        one = stack.pop()
        # `loss` of `f(loss=x)` is no name of this function.
        stack += [one.value] if isinstance(one, cst.Arg) else children(one)
        if isinstance(one, cst.Name):
            found.add(one.value)
        elif isinstance(one, cst.Attribute) and isinstance(one.value, cst.Name):
            found.add(f"{one.value.value}.{one.attr.value}")
    return found - {"self"}


def _reaches(
    source: Source, roles: Roles, around: cst.CSTNode, names: set[str], depth: int
) -> bool:
    found = tainted(source, around, names)
    for node in walk(around):
        if isinstance(node, cst.Call):
            hands_on = is_reduction(source, node) or _callee_reduces(source, roles, node)
            if hands_on and mentions(node) & found:
                return True
    if not isinstance(around, cst.FunctionDef) or depth == 0:
        return False
    if not any(mentions(value) & found for value in returned(around)):
        return False
    for where, call in roles.flow.callers.get(around, ()):
        for up in where.index.up(call):
            if isinstance(up, cst.Call) and is_reduction(where, up):
                return True
            if isinstance(up, (cst.Assign, cst.AnnAssign)):
                target = up.targets[0].target if isinstance(up, cst.Assign) else up.target
                outer: cst.CSTNode = where.index.function(call) or where.module
                if _reaches(where, roles, outer, mentions(target), depth - 1):
                    return True
                break
            if isinstance(up, (cst.BaseStatement, cst.BaseSmallStatement)):
                break
    return False


def _callee_reduces(source: Source, roles: Roles, call: cst.Call) -> bool:
    """A call of a function of the script's own that has a reduction in it."""
    callee = roles.flow.callee(source, call)
    if callee is None:
        return False
    return any(
        isinstance(one, cst.Call) and is_reduction(callee[0], one) for one in walk(callee[1].body)
    )


def _reduces_itself(source: Source, roles: Roles, count: Count) -> bool:
    """A meter whose class has a reduction: torchmetrics, `meter.all_reduce()`."""
    if not isinstance(count.node, cst.Call) or not isinstance(count.node.func, cst.Attribute):
        return False
    for origin in roles.flow.origins(source, count.node.func.value):
        if isinstance(origin.node, cst.Call):
            if origin.source.index.called(origin.node).startswith("torchmetrics"):
                return True
            owner = roles.flow.class_of(origin.source, origin.node)
            if owner is not None and any(
                isinstance(one, cst.Call) and is_reduction(owner[0], one) for one in walk(owner[1])
            ):
                return True
    return False
