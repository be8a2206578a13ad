"""What a training step runs through."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ..source import Source
from ..tree import walk
from .flow import Flow
from .kinds import Loop
from .loops import no_grad, without_gradients


def training_functions(flow: Flow, loops: Iterable[Loop]) -> frozenset[cst.FunctionDef]:
    """Functions that training loops call, in turn, apart from those that switch gradients off."""
    found: set[cst.FunctionDef] = set()
    waiting: list[tuple[Source, cst.CSTNode]] = [(loop.source, loop.node) for loop in loops]
    for loop in loops:
        for source, call in loop.backwards:
            function = source.index.function(call)
            if function is not None and function is not loop.function:
                waiting.append((source, function))
                found.add(function)
    while waiting and len(found) < 500:
        source, body = waiting.pop()
        for inner in walk(body):
            if not isinstance(inner, cst.Call):
                continue
            callee = flow.callee(source, inner)
            if callee is None or callee[1] in found or without_gradients(callee[1]):
                continue
            if any(no_grad(up) for up in source.index.up(inner)):
                continue
            if any(no_grad(one) for one in walk(callee[1])):
                continue
            found.add(callee[1])
            waiting.append((callee[0], callee[1].body))
    return frozenset(found)
