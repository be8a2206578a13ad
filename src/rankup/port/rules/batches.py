"""What a loop makes of the batches that a rank has, and where that is told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from ...script.flow import call_name, given, returned
from ...script.names import Function, children, made_of, mentioned, walk
from ...script.roles import Loop, Script
from ...script.source import File
from ...script.torch_names import words
from .facts import anywhere, dealt, loops_in, ported, sharded
from .reduced import handed_to_all, is_reduction
from .rule import Hit, Rule

_TELLS = words(
    "print print0 log info debug warning write writerow set_postfix set_postfix_str "
    "set_description add_scalar add_scalars log_metrics log_metric"
)
_LOSSES = re.compile(r"loss|err|\bacc", re.IGNORECASE)
_CHECKED = re.compile(r"isnan\(|isfinite\(|isinf\(")
_NO_VALUES = frozenset({"shape", "device", "dtype"})


def parted(script: Script, loop: Loop) -> bool:
    """Whether each rank has other batches in a loop."""
    return (
        sharded(script, loop)
        or any(dealt(script, loader) for loader in loop.loaders)
        or (not loop.loaders and anywhere(script, "deal"))
    )


def told(call: ast.Call) -> bool:
    """Whether a call prints, logs or draws what it is given."""
    return call_name(call) in _TELLS


def of_batch(file: File, loop: Loop) -> set[str]:
    """Names that a loop gives the batch, and what it makes of it on this rank alone."""
    found: set[str] = set()
    if isinstance(loop.node, ast.For):
        found = _names(loop.node.target)
        target = loop.node.target
        if "enumerate(" in file.code(loop.node.iter) and isinstance(target, ast.Tuple):
            found -= _names(target.elts[0])
    assigns = [one for one in walk(*loop.body) if isinstance(one, ast.Assign)]
    for one in assigns:
        given = (call_name(c) for c in walk(one.value) if isinstance(c, ast.Call))
        if any(name in ("next", "deal") for name in given):
            found |= {name for target in one.targets for name in _names(target)}
    return made_of(assigns, found, partial(_local_mentions, file), _names)


def made_anew(loop: Loop) -> set[str]:
    """Names that every round gives another value: `loss += penalty` is no running sum."""
    found = _names(loop.node.target) if isinstance(loop.node, ast.For) else set()
    for one in loop.body:
        if isinstance(one, ast.Assign):
            names = {name for target in one.targets for name in _names(target)}
            found |= names - mentioned(one.value)
    return found


def _local_mentions(file: File, node: ast.AST) -> set[str]:
    """The names in an expression whose values stay this rank's own: not those in a reduction."""
    if isinstance(node, ast.Call) and is_reduction(file, node):
        return set()
    if isinstance(node, ast.Attribute):
        if node.attr in _NO_VALUES:
            return set()
        if isinstance(node.value, ast.Name):
            return {node.value.id, f"{node.value.id}.{node.attr}"} - {"self"}
    if isinstance(node, ast.Name):
        return {node.id}
    found: set[str] = set()
    for child in children(node):
        found |= _local_mentions(file, child)
    return found


def _names(target: ast.AST) -> set[str]:
    return mentioned(target) - {"_"}


def loss_of_part(file: File, script: Script) -> Iterator[Hit]:
    """RK126: the loss of this rank's part of a batch, told as that of the batch."""
    if not ported(script):
        return
    for loop in loops_in(file, script.train_loops):
        if parted(script, loop):
            hit = _told_loss(file, script, loop)
            if hit is not None:
                yield Hit(
                    hit[0],
                    f"{hit[1]}: of this rank's part of the batch only",
                    f"rankup.batch_mean({hit[1]}) on all ranks, then tell it",
                )


def _told_loss(file: File, script: Script, loop: Loop) -> tuple[ast.AST, str] | None:
    """The first place where a loss is told in a training loop or behind it, and its name."""
    around: ast.AST = file.names.function(loop.node) or file.tree
    batch = of_batch(file, loop)
    inside = set(walk(*loop.body))
    trained: set[str] = set()
    for where, call in loop.backwards:
        if where is file:
            trained |= mentioned(call)
    assigns = [one for one in walk(*loop.body) if isinstance(one, ast.Assign)]
    losses = made_of(assigns, trained & batch, partial(_local_mentions, file), _names)
    losses |= {name for name in batch if _LOSSES.search(name)}
    losses -= _put_together(file, around)
    end = file.last_line(loop.node)
    later = _made_later(file, around, end)
    anew = _given_anew(file, assigns)
    for node in walk(around):
        if isinstance(node, ast.Call) and told(node):
            values = given(node)
        elif isinstance(node, ast.Return) and node.value is not None and node not in inside:
            values = [node.value]
        elif isinstance(node, ast.If) and node in inside and _leaves(node):
            values = [] if _CHECKED.search(file.code(node.test)) else [node.test]  # RK181
        else:
            continue
        if node not in inside and file.line(node)[0] <= end:
            continue
        left = {name for one in values for name in _local_mentions(file, one)} & losses
        if left and node not in inside:
            line = file.line(node)[0]
            left = {name for name in left if not any(at <= line for at in later.get(name, ()))}
        if node in inside:
            left = {name for name in left if not _whole_by_now(file, node, anew.get(name, []))}
        if isinstance(node, ast.Return) and _not_for_telling(file, script, around, node, left):
            continue
        if left:
            return node, min(left)
        sizes = [] if node not in inside else _sizes(file, values, batch)
        if sizes and isinstance(node, ast.Call):
            return node, sizes[0]
    return None


def _leaves(node: ast.If) -> bool:
    return any(isinstance(one, (ast.Raise, ast.Break)) for one in walk(*node.body))


def _sizes(file: File, values: list[ast.expr], batch: set[str]) -> list[str]:
    """`len(x)` and `x.size(0)` of the batch in what is told, where no reduction is around."""
    found: list[str] = []
    stack: list[ast.AST] = list(values)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and is_reduction(file, node):
            continue
        sizes = isinstance(node, ast.Call) and call_name(node) in ("len", "size", "numel")
        if sizes and mentioned(node) & batch:
            found.append(file.code(node))
        stack += children(node)
    return found


def _put_together(file: File, around: ast.AST) -> set[str]:
    """Names that a collective changes in place: `dist.all_reduce(loss)`."""
    return {
        name
        for one in walk(around)
        if isinstance(one, ast.Expr)
        and isinstance(one.value, ast.Call)
        and is_reduction(file, one.value)
        for name in mentioned(one.value)
    }


def _given_anew(file: File, assigns: list[ast.Assign]) -> dict[str, list[tuple[int, bool]]]:
    """The lines of a loop where names get a value, and whether a collective puts it together."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for one in assigns:
        target, value = one.targets[0], one.value
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            parts = zip(target.elts, value.elts, strict=False)
            pairs = list(parts)
        for to, made in pairs:
            whole = isinstance(made, ast.Call) and is_reduction(file, made)
            for name in _names(to):
                found.setdefault(name, []).append((file.line(one)[0], whole))
    return found


def _whole_by_now(file: File, node: ast.AST, given: list[tuple[int, bool]]) -> bool:
    """Whether the last value that a name got above a line is of the whole batch."""
    before = [one for one in given if one[0] < file.line(node)[0]]
    return bool(before) and max(before)[1]


def _made_later(file: File, around: ast.AST, first: int) -> dict[str, list[int]]:
    """Names that are given another value behind a line, and the lines where they are."""
    found: dict[str, list[int]] = {}
    for one in walk(around):
        if isinstance(one, (ast.Assign, ast.For)) and (line := file.line(one)[0]) > first:
            for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                for name in _names(target):
                    found.setdefault(name, []).append(line)
    return found


def _not_for_telling(
    file: File, script: Script, around: ast.AST, node: ast.Return, names: set[str]
) -> bool:
    """Whether another function returns, or whoever called puts together what is returned."""
    if not isinstance(around, Function) or node.value not in returned(around):
        return True
    return handed_to_all(file, script, around, names)


RULES = (Rule("RK126", "loss-of-part", "warning", loss_of_part),)
