"""By which names the functions of a script know its model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...script.names import Function
from .models import Model
from .script import Script


class Aliases:
    """Where an expression is the model: under its own name, or as what a function was given.

    Followed through calls of the script's own functions, not into other files.
    """

    def __init__(self, script: Script, model: Model) -> None:
        self._script, self._model = script, model
        self._given: set[tuple[Function, str]] = set()
        while found := set(self._parameters()) - self._given:
            self._given |= found

    def is_model(self, node: ast.AST) -> bool:
        """Whether an expression is the model itself."""
        script, model = self._script, self._model
        written = script.dotted(node)
        if not written:
            return False
        if "." in model.name and written.endswith(f".{model.name.partition('.')[2]}"):
            return True  # of whatever object: rather one too many than one not seen
        scope = script.scope(node)
        if isinstance(scope, Function) and (scope, written) in self._given:
            return True
        if written != model.name:
            return False
        if scope is model.scope:
            return True
        hidden = script.parameters(scope)
        return model.scope is script.tree and written not in hidden

    def all(self) -> Iterator[ast.Name | ast.Attribute]:
        """Every place where the model is named, but for those that give the name a value."""
        script = self._script
        found: tuple[ast.Name | ast.Attribute, ...] = (
            *script.all(ast.Name),
            *script.all(ast.Attribute),
        )
        for node in found:
            parent = script.parents.get(node)
            if isinstance(parent, ast.Assign) and node in parent.targets:
                continue
            if self.is_model(node):
                yield node

    def _parameters(self) -> Iterator[tuple[Function, str]]:
        script = self._script
        for function, calls in script.calls_of.items():
            for call in calls:
                for name in script.parameters(function):
                    value = script.given(function, name, call)
                    if value is not None and self.is_model(value):
                        yield function, name


def whole_chain(script: Script, node: ast.AST) -> tuple[ast.AST, str]:
    """`model.body.encode` around `model`, and `body.encode`."""
    names: list[str] = []
    while isinstance(parent := script.parents.get(node), ast.Attribute) and parent.value is node:
        names.append(parent.attr)
        node = parent
    return node, ".".join(names)
