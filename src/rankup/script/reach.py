"""What a training step runs through."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .flow import Flow
from .loops import no_grad, without_gradients
from .names import Function, walk
from .roles import Loop
from .source import File


def training_functions(flow: Flow, loops: Iterable[Loop]) -> frozenset[Function]:
    """Functions that training loops call, in turn, apart from those that switch gradients off."""
    found: set[Function] = set()
    waiting: list[tuple[File, ast.AST]] = [(loop.file, loop.node) for loop in loops]
    for loop in loops:
        for file, call in loop.backwards:
            function = file.names.function(call)
            if function is not None and function is not loop.function:
                waiting.append((file, function))
                found.add(function)
    while waiting and len(found) < 500:
        file, body = waiting.pop()
        for inner in walk(body):
            if not isinstance(inner, ast.Call):
                continue
            callee = flow.callee(file, inner)
            if callee is None or callee[1] in found or without_gradients(callee[1]):
                continue
            if any(no_grad(up) for up in file.names.up(inner)):
                continue
            if any(no_grad(one) for one in walk(callee[1])):
                continue
            found.add(callee[1])
            waiting.append(callee)
    return frozenset(found)
