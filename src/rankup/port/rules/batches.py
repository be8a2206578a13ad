"""What a loop makes of the batches that a rank has, and where that is told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..naming import words
from ..roles import Loop, Roles
from ..roles.pieces import call_name, returned
from ..source import Source
from ..tree import children, walk
from .facts import anywhere, dealt, loops_in, ported, sharded
from .reduced import handed_to_all, is_reduction, mentions
from .rule import Hit, Rule

_TELLS = words(
    "print print0 log info debug warning write writerow set_postfix set_postfix_str "
    "set_description add_scalar add_scalars log_metrics log_metric"
)
_LOSSES = re.compile(r"loss|err|\bacc", re.IGNORECASE)
_CHECKED = re.compile(r"isnan\(|isfinite\(|isinf\(")
_NO_VALUES = frozenset({"shape", "device", "dtype"})


def parted(roles: Roles, loop: Loop) -> bool:
    """Whether each rank has other batches in a loop."""
    return (
        sharded(roles, loop)
        or any(dealt(roles, loader) for loader in loop.loaders)
        or (not loop.loaders and anywhere(roles, "deal"))
    )


def told(call: cst.Call) -> bool:
    """Whether a call prints, logs or draws what it is given."""
    return call_name(call) in _TELLS


def of_batch(source: Source, loop: Loop) -> set[str]:
    """Names that a loop gives the batch, and what it makes of it on this rank alone."""
    found: set[str] = set()
    if isinstance(loop.node, cst.For):
        found = _names(loop.node.target)
        target = loop.node.target
        if "enumerate(" in source.code(loop.node.iter) and isinstance(target, cst.Tuple):
            found -= _names(target.elements[0].value)
    assigns = [one for one in walk(loop.body) if isinstance(one, cst.Assign)]
    for one in assigns:
        given = (call_name(c) for c in walk(one.value) if isinstance(c, cst.Call))
        if any(name in ("next", "deal") for name in given):
            found |= {name for target in one.targets for name in _names(target.target)}
    return _made_of(source, assigns, found)


def made_anew(loop: Loop) -> set[str]:
    """Names that every round gives another value: `loss += penalty` is no running sum."""
    found = _names(loop.node.target) if isinstance(loop.node, cst.For) else set()
    for line in loop.body.body:
        for one in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.Assign):
                names = {name for target in one.targets for name in _names(target.target)}
                found |= names - mentions(one.value)
    return found


def _made_of(source: Source, assigns: list[cst.Assign], names: set[str]) -> set[str]:
    """Names, and those that are made of them without a reduction."""
    found = set(names)
    for _ in range(4):
        before = len(found)
        for one in assigns:
            if _local_mentions(source, one.value) & found:
                found |= {name for target in one.targets for name in _names(target.target)}
        if len(found) == before:
            break
    return found


def _local_mentions(source: Source, node: cst.CSTNode) -> set[str]:
    """The names in an expression whose values stay this rank's own: not those in a reduction."""
    if isinstance(node, cst.Call) and is_reduction(source, node):
        return set()
    if isinstance(node, cst.Attribute):
        if node.attr.value in _NO_VALUES:
            return set()
        if isinstance(node.value, cst.Name):
            return {node.value.value, f"{node.value.value}.{node.attr.value}"} - {"self"}
    if isinstance(node, cst.Name):
        return {node.value}
    found: set[str] = set()
    for child in [node.value] if isinstance(node, cst.Arg) else children(node):
        found |= _local_mentions(source, child)
    return found


def _names(target: cst.CSTNode) -> set[str]:
    return {one.value for one in walk(target) if isinstance(one, cst.Name)} - {"self", "_"}


def loss_of_part(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK126: the loss of this rank's part of a batch, told as that of the batch."""
    if not ported(roles):
        return
    for loop in loops_in(source, roles.train_loops):
        if parted(roles, loop):
            hit = _told_loss(source, roles, loop)
            if hit is not None:
                yield Hit(
                    hit[0],
                    f"{hit[1]}: of this rank's part of the batch only",
                    f"rankup.batch_mean({hit[1]}) on all ranks, then tell it",
                )


def _told_loss(source: Source, roles: Roles, loop: Loop) -> tuple[cst.CSTNode, str] | None:
    """The first place where a loss is told in a training loop or behind it, and its name."""
    around: cst.CSTNode = source.index.function(loop.node) or source.module
    batch = of_batch(source, loop)
    inside = set(walk(loop.body))
    trained: set[str] = set()
    for where, call in loop.backwards:
        if where is source:
            trained |= mentions(call)
    assigns = [one for one in walk(loop.body) if isinstance(one, cst.Assign)]
    losses = _made_of(source, assigns, trained & batch)
    losses |= {name for name in batch if _LOSSES.search(name)}
    losses -= _put_together(source, around)
    end = source.last_line_of(loop.node)
    later = _made_later(source, around, end)
    anew = _given_anew(source, assigns)
    for node in walk(around):
        if isinstance(node, cst.Call) and told(node):
            values: list[cst.BaseExpression] = [arg.value for arg in node.args]
        elif isinstance(node, cst.Return) and node.value is not None and node not in inside:
            values = [node.value]
        elif isinstance(node, cst.If) and node in inside and _leaves(node):
            values = [] if _CHECKED.search(source.code(node.test)) else [node.test]  # RK181
        else:
            continue
        if node not in inside and source.line_of(node)[0] <= end:
            continue
        left = {name for one in values for name in _local_mentions(source, one)} & losses
        if left and node not in inside:
            line = source.line_of(node)[0]
            left = {name for name in left if not any(at <= line for at in later.get(name, ()))}
        if node in inside:
            left = {name for name in left if not _whole_by_now(source, node, anew.get(name, []))}
        if isinstance(node, cst.Return) and _not_for_telling(source, roles, around, node, left):
            continue
        if left:
            return node, min(left)
        sizes = [] if node not in inside else _sizes(source, values, batch)
        if sizes and isinstance(node, cst.Call):
            return node, sizes[0]
    return None


def _leaves(node: cst.If) -> bool:
    return any(isinstance(one, (cst.Raise, cst.Break)) for one in walk(node.body))


def _sizes(source: Source, values: list[cst.BaseExpression], batch: set[str]) -> list[str]:
    """`len(x)` and `x.size(0)` of the batch in what is told, where no reduction is around."""
    found: list[str] = []
    stack: list[cst.CSTNode] = list(values)
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Call) and is_reduction(source, node):
            continue
        sizes = isinstance(node, cst.Call) and call_name(node) in ("len", "size", "numel")
        if sizes and mentions(node) & batch:
            found.append(source.code(node))
        stack += children(node)
    return found


def _put_together(source: Source, around: cst.CSTNode) -> set[str]:
    """Names that a collective changes in place: `dist.all_reduce(loss)`."""
    return {
        name
        for one in walk(around)
        if isinstance(one, cst.Expr)
        and isinstance(one.value, cst.Call)
        and is_reduction(source, one.value)
        for name in mentions(one.value)
    }


def _given_anew(source: Source, assigns: list[cst.Assign]) -> dict[str, list[tuple[int, bool]]]:
    """The lines of a loop where names get a value, and whether a collective puts it together."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for one in assigns:
        target, value = one.targets[0].target, one.value
        pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [(target, value)]
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            parts = zip(target.elements, value.elements, strict=False)
            pairs = [(to.value, given.value) for to, given in parts]
        for to, given in pairs:
            whole = isinstance(given, cst.Call) and is_reduction(source, given)
            for name in _names(to):
                found.setdefault(name, []).append((source.line_of(one)[0], whole))
    return found


def _whole_by_now(source: Source, node: cst.CSTNode, given: list[tuple[int, bool]]) -> bool:
    """Whether the last value that a name got above a line is of the whole batch."""
    before = [one for one in given if one[0] < source.line_of(node)[0]]
    return bool(before) and max(before)[1]


def _made_later(source: Source, around: cst.CSTNode, first: int) -> dict[str, list[int]]:
    """Names that are given another value behind a line, and the lines where they are."""
    found: dict[str, list[int]] = {}
    for one in walk(around):
        if isinstance(one, (cst.Assign, cst.For)) and (line := source.line_of(one)[0]) > first:
            targets = [t.target for t in one.targets] if isinstance(one, cst.Assign) else []
            for target in targets or [one.target]:  # type: ignore[union-attr]
                for name in _names(target):
                    found.setdefault(name, []).append(line)
    return found


def _not_for_telling(
    source: Source, roles: Roles, around: cst.CSTNode, node: cst.Return, names: set[str]
) -> bool:
    """Whether another function returns, or whoever called puts together what is returned."""
    if not isinstance(around, cst.FunctionDef) or node.value not in returned(around):
        return True
    return handed_to_all(source, roles, around, names)


RULES = (Rule("RK126", "loss-of-part", "warning", loss_of_part),)
