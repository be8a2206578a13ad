"""What a loop makes of the batches that a rank has, and where that is told."""

from __future__ import annotations

import ast
import re

from ...script.flow import call_name
from ...script.names import children, walk
from ...script.roles import Loop, Script
from ...script.source import File
from ...script.torch_names import words
from .facts import anywhere, dealt, sharded
from .reduced import is_reduction, mentions

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
    return _made_of(file, assigns, found)


def made_anew(loop: Loop) -> set[str]:
    """Names that every round gives another value: `loss += penalty` is no running sum."""
    found = _names(loop.node.target) if isinstance(loop.node, ast.For) else set()
    for one in loop.body:
        if isinstance(one, ast.Assign):
            names = {name for target in one.targets for name in _names(target)}
            found |= names - mentions(one.value)
    return found


def _made_of(file: File, assigns: list[ast.Assign], names: set[str]) -> set[str]:
    """Names, and those that are made of them without a reduction."""
    found = set(names)
    for _ in range(4):
        before = len(found)
        for one in assigns:
            if _local_mentions(file, one.value) & found:
                found |= {name for target in one.targets for name in _names(target)}
        if len(found) == before:
            break
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
    return mentions(target) - {"_"}
