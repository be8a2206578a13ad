"""By which names the functions of a script know its model."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .models import Model
from .script import Script


class Aliases:
    """Where an expression is the model: under its own name, or as what a function was given.

    Followed through calls of the script's own functions, not into other files.
    """

    def __init__(self, script: Script, model: Model) -> None:
        self._script, self._model = script, model
        self._given: set[tuple[cst.FunctionDef, str]] = set()
        while found := set(self._parameters()) - self._given:
            self._given |= found

    def is_model(self, node: cst.CSTNode) -> bool:
        """Whether an expression is the model itself."""
        script, model = self._script, self._model
        written = script.dotted(node)
        if not written:
            return False
        if "." in model.name and written.endswith(f".{model.name.partition('.')[2]}"):
            return True  # of whatever object: rather one too many than one not seen
        scope = script.scope(node)
        if isinstance(scope, cst.FunctionDef) and (scope, written) in self._given:
            return True
        if written != model.name:
            return False
        if scope is model.scope:
            return True
        hidden = script.parameters(scope)
        return model.scope is script.module and written not in hidden

    def all(self) -> Iterator[cst.Name | cst.Attribute]:
        """Every place where the model is named, but for those that give the name a value."""
        script = self._script
        found: tuple[cst.Name | cst.Attribute, ...] = (
            *script.all(cst.Name),
            *script.all(cst.Attribute),
        )
        for node in found:
            parent = script.parents.get(node)
            if isinstance(parent, cst.AssignTarget | cst.Param | cst.Arg) and (
                node is not getattr(parent, "value", None)
            ):
                continue
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if self.is_model(node):
                yield node

    def _parameters(self) -> Iterator[tuple[cst.FunctionDef, str]]:
        script = self._script
        for function, calls in script.calls_of.items():
            for call in calls:
                for name in script.parameters(function):
                    value = script.given(function, name, call)
                    if value is not None and self.is_model(value):
                        yield function, name


def whole_chain(script: Script, node: cst.CSTNode) -> tuple[cst.CSTNode, str]:
    """`model.body.encode` around `model`, and `body.encode`."""
    names: list[str] = []
    while isinstance(parent := script.parents.get(node), cst.Attribute) and parent.value is node:
        names.append(parent.attr.value)
        node = parent
    return node, ".".join(names)
