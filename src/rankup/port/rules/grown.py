"""What grows over the batches of a loop, and is used as if it were of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..roles import Count, Loop, Roles
from ..roles.pieces import call_name
from ..source import Source
from ..tree import walk
from .batches import made_anew, of_batch, parted, told
from .facts import loops_in, ported
from .guards import guard
from .reduced import is_reduction, mentions, reduced
from .rule import Hit, Rule

_COUNTED = re.compile(
    r"loss|acc|correct|right|hit|total|metric|score|error|err\b|mse|mae|dice|iou", re.I
)
_SUMS = re.compile(r"\.sum\(|\bsum\(|\blen\(|\.size\(|\.shape\b|numel\(|\*|share\(")


def unreduced(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK121: a mean over this rank's part, told as that of all."""
    for loop in loops_in(source, (*roles.eval_loops, *roles.train_loops)):
        left = left_local(source, roles, loop)
        if left:
            names = ", ".join(dict.fromkeys(one.name for one in left))
            yield Hit(
                left[0].node,
                f"{names}: of this rank's batches only",
                "sum and count on each rank, then rankup.mean(total, count)",
            )


def left_local(source: Source, roles: Roles, loop: Loop) -> list[Count]:
    """The counts of a loop that are used after it without being put together."""
    # Where `rankup.shard` deals, it is certain that a rank counts its own batches.
    dealt_here = ported(roles) and parted(roles, loop)
    found = [
        one
        for one in loop.counts
        if (_of_part(source, roles, loop, one) if dealt_here else _by_name(one))
        and (_used_after(source, loop, one.name) or (dealt_here and _told_inside(loop, one)))
    ]
    if dealt_here and loop in roles.eval_loops:
        found += _index(source, loop)
    if not found:
        return []
    if roles.distributed:
        if guard(source, roles, loop.node):
            return []
        if loop in roles.eval_loops and not parted(roles, loop):
            return []  # every rank has it all
        found = [one for one in found if not reduced(source, roles, loop, one)]
    return found


def _by_name(count: Count) -> bool:
    """What is added is a number of this batch, not a list of file names."""
    return (
        _COUNTED.search(count.name) is not None
        and not isinstance(count.value, cst.Integer)
        and (isinstance(count.node, cst.AugAssign) or _method(count) != "extend")
    )


def _of_part(source: Source, roles: Roles, loop: Loop, count: Count) -> bool:
    """Whether it grows by what differs from rank to rank."""
    if count.name in made_anew(loop):
        return False
    if isinstance(count.value, cst.Integer):  # batches, or samples that a condition lets through
        return loop in roles.eval_loops
    if _method(count) in ("update", "add") and not _COUNTED.search(count.name):
        return False  # a bar, a set
    return bool(mentions(count.value) & of_batch(source, loop)) or _by_name(count)


def _method(count: Count) -> str:
    return call_name(count.node) if isinstance(count.node, cst.Call) else ""


def _index(source: Source, loop: Loop) -> list[Count]:
    """What `enumerate` has counted when the loop is over: the batches of this rank."""
    node = loop.node
    if not isinstance(node, cst.For) or not isinstance(node.target, cst.Tuple):
        return []
    first = node.target.elements[0].value
    if "enumerate(" not in source.code(node.iter) or not isinstance(first, cst.Name):
        return []
    if not any(first.value in mentions(one) for one in _behind(source, node)):
        return []
    return [Count(source, first, first.value, first)]


def _behind(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements behind one in its own block."""
    body = getattr(source.index.parents.get(node), "body", ())
    at = next((k for k, one in enumerate(body) if one is node), None)
    return [] if at is None else list(body[at + 1 :])


def _used_after(source: Source, loop: Loop, name: str) -> bool:
    """Whether a count is divided, told, returned or compared: accumulated for somebody to see."""
    around: cst.CSTNode = source.index.function(loop.node) or source.module
    if name.startswith("self."):
        around = source.index.class_(loop.node) or around
    inside = set(walk(loop.node))
    for node in walk(around):
        if node in inside or node is around:
            continue
        if isinstance(node, (cst.Return, cst.BinaryOperation, cst.Comparison, cst.Call)):
            if isinstance(node, cst.Return) and node.value is None:
                continue
            if name in mentions(node):
                return True
        if isinstance(node, cst.AugAssign) and source.code(node.target) == name:
            return True
    return False


def _told_inside(loop: Loop, count: Count) -> bool:
    return any(
        isinstance(one, cst.Call) and told(one) and count.name in mentions(one)
        for one in walk(loop.body)
    )


def without_share(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK127: means over parts of batches, added up as if they were sums."""
    if not ported(roles):
        return
    for loop in loops_in(source, roles.eval_loops):
        if not parted(roles, loop):
            continue
        around: cst.CSTNode = source.index.function(loop.node) or source.module
        added = {
            name
            for one in walk(around)
            if isinstance(one, cst.Call) and source.index.called(one) == "rankup.total"
            for arg in one.args
            for name in mentions(arg.value)
        }
        for count in loop.counts:
            single = isinstance(count.node, cst.AugAssign) or _method(count) == "append"
            if count.name in added and single and _is_mean(source, roles, loop, count.value):
                yield Hit(
                    count.node,
                    f"{count.name}: means over this rank's parts of the batches, which "
                    "rankup.total adds up as if they were sums",
                    "add rankup.share(mean): the ranks' shares add up to the batch's mean",
                )


def _is_mean(source: Source, roles: Roles, loop: Loop, value: cst.BaseExpression) -> bool:
    """Whether a value is a mean over the batch: `.mean()`, or a loss that is not summed."""
    names = {one.value for one in walk(value) if isinstance(one, cst.Name)}
    parts = [value]
    parts += [
        one.value
        for one in walk(loop.body)
        if isinstance(one, cst.Assign) and source.code(one.targets[0].target) in names
    ]
    losses = {one.node for one in roles.losses}
    found = False
    for part in parts:
        code = source.code(part)
        calls = [one for one in walk(part) if isinstance(one, cst.Call)]
        if any(is_reduction(source, one) for one in calls):
            return False
        computed = [
            call
            for call in calls
            if call in losses or losses & {o.node for o in roles.flow.origins(source, call.func)}
        ]
        made = [o.node for call in computed for o in roles.flow.origins(source, call.func)]
        texts = [source.code(one) for one in (*computed, *made)]
        if any(re.search(r"reduction\s*=|size_average", text) for text in texts):
            return False
        if part is value and _SUMS.search(code):
            return False
        found = found or bool(computed) or ".mean(" in code
    return found


RULES = (
    Rule("RK121", "metric-not-reduced", "error", unreduced),
    Rule("RK127", "mean-without-share", "error", without_share),
)
