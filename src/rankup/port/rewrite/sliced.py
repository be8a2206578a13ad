"""Batches that a loop cuts out of the data by hand, in their order."""

from __future__ import annotations

import ast

from ...script.flow import given
from .expressions import targets_of, unpacked, words
from .script import ForNode, Where
from .training import Loop, Training


def by_hand(training: Training) -> tuple[int, str] | None:
    """The line of such a loop, and what stands in the way there; None where there is none."""
    for loop in training.loops:
        if loop.trains and isinstance(loop.node, ForNode) and _cuts(training, loop.node):
            kept = _kept(training, loop)
            what = "no DataLoader: this loop cuts its batches out of the data by hand, "
            if kept:
                what += (
                    f"and `{kept}` goes on from each of them to the next. A rank would need the "
                    "same columns of all of them: cut the data for it first "
                    "(`data[:, rank::world_size]`), and evaluate likewise"
                )
            else:
                what += (
                    "and rankup.shard deals those of a torch DataLoader alone. Give the data one, "
                    "or draw the batches in a function"
                )
            return training.script.line(loop.node), what
    return None


def _cuts(training: Training, node: ForNode) -> bool:
    """Whether the counter of a loop over numbers says where to cut, here or one call away."""
    script = training.script
    over = unpacked(script, node.iter)
    if not isinstance(over, ast.Call) or script.name(over.func) not in ("range", "numpy.arange"):
        return False
    counters = words(node.target)
    if _sliced(training, node.body, counters):
        return True
    for call in script.inside(node.body, ast.Call, deep=False):
        function = script.called(call)
        if function is None:
            continue
        given = {
            name
            for name in script.parameters(function)
            if isinstance(value := script.given(function, name, call), ast.Name)
            and value.id in counters
        }
        if given and _sliced(training, function, given):
            return True
    return False


def _sliced(training: Training, where: Where, names: set[str]) -> bool:
    script = training.script
    return any(names & words(part) for part in script.inside(where, ast.Slice))


def _kept(training: Training, loop: Loop) -> str:
    """A name that the model is given and gives back, such as the state of a recurrent one."""
    script = training.script
    for assign in script.inside(loop.node.body, ast.Assign, deep=False):
        if not isinstance(assign.value, ast.Call) or len(given(assign.value)) < 2:
            continue
        passed = {script.dotted(arg) for arg in given(assign.value)}
        for target in assign.targets:
            for one in targets_of(target):
                if isinstance(one, ast.Name) and one.id in passed:
                    return one.id
    return ""
