"""Which function or class of a script's files a name means, and who calls it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from ..index import Scope
from .pieces import module_name
from .words import SAME

if TYPE_CHECKING:
    from ..source import Source


class Definitions:
    """The functions and classes of the files of one script."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self._modules = {module_name(one, self.sources[0]): one for one in self.sources}

    def callee(self, source: Source, call: cst.Call) -> tuple[Source, cst.FunctionDef] | None:
        """The function of these files that a call runs; of a class its `__init__`."""
        found = self._definition(source, call.func)
        if found is None:
            return None
        where, node = found
        if isinstance(node, cst.ClassDef):
            return self._method(where, node, "__init__")
        return where, node

    def bases(self, source: Source, owner: cst.ClassDef) -> Iterable[str]:
        """Dotted names of what a class inherits from, through classes of these files."""
        waiting, seen = [(source, owner)], {owner}
        while waiting:
            where, at = waiting.pop()
            for base in at.bases:
                dotted = where.index.dotted(base.value)
                if dotted:
                    yield dotted
                found = self._definition(where, base.value)
                if found and isinstance(found[1], cst.ClassDef) and found[1] not in seen:
                    seen.add(found[1])
                    waiting.append((found[0], found[1]))

    @cached_property
    def callers(self) -> dict[cst.FunctionDef, list[tuple[Source, cst.Call]]]:
        """Who calls each function of these files."""
        found: dict[cst.FunctionDef, list[tuple[Source, cst.Call]]] = {}
        for source in self.sources:
            for call in source.index.all(cst.Call):
                callee = self.callee(source, call)
                if callee is not None:
                    found.setdefault(callee[1], []).append((source, call))
        return found

    @cached_property
    def _methods(self) -> dict[str, list[tuple[Source, cst.FunctionDef]]]:
        found: dict[str, list[tuple[Source, cst.FunctionDef]]] = {}
        for source in self.sources:
            for owner in source.index.all(cst.ClassDef):
                for name, bindings in source.index.members(owner).items():
                    for one in bindings:
                        if isinstance(one.node, cst.FunctionDef):
                            found.setdefault(name, []).append((source, one.node))
        return found

    def _definition(
        self, source: Source, func: cst.CSTNode
    ) -> tuple[Source, cst.FunctionDef | cst.ClassDef] | None:
        if isinstance(func, cst.Name):
            return self._named(source, func.value, source.index.scope(func))
        if isinstance(func, cst.Attribute):
            if isinstance(func.value, cst.Name) and func.value.value in ("self", "cls"):
                owner = source.index.class_(func)
                return self._method(source, owner, func.attr.value) if owner else None
            dotted = source.index.dotted(func)
            if dotted:
                return self._imported(source, dotted)
            named = self._methods.get(func.attr.value, [])
            if len(named) == 1 and func.attr.value not in SAME | {"step", "forward", "update"}:
                return named[0]
        return None

    def _named(
        self, source: Source, name: str, scope: Scope
    ) -> tuple[Source, cst.FunctionDef | cst.ClassDef] | None:
        _, bindings = source.index.bindings(name, scope)
        for one in bindings:
            if isinstance(one.node, (cst.FunctionDef, cst.ClassDef)) and one.kind != "parameter":
                return source, one.node
            if one.kind == "import":
                return self._imported(source, one.dotted)
        if not bindings:
            for star in source.index.stars:
                found = self._imported(source, f"{star}.{name}")
                if found:
                    return found
        return None

    def _imported(
        self, source: Source, dotted: str
    ) -> tuple[Source, cst.FunctionDef | cst.ClassDef] | None:
        module, _, name = dotted.rpartition(".")
        other = self._module(source, module)
        if other is None or other is source or not name:
            return None
        return self._named(other, name, other.module)

    def _module(self, source: Source, dotted: str) -> Source | None:
        stripped = dotted.lstrip(".")
        if stripped in self._modules:
            return self._modules[stripped]
        if dotted.startswith("."):
            tail = "." + stripped
            return next((one for name, one in self._modules.items() if name.endswith(tail)), None)
        return None

    def _method(
        self, source: Source, owner: cst.ClassDef, name: str
    ) -> tuple[Source, cst.FunctionDef] | None:
        waiting, seen = [(source, owner)], {owner}
        while waiting:
            where, at = waiting.pop(0)
            for one in where.index.members(at).get(name, ()):
                if isinstance(one.node, cst.FunctionDef):
                    return where, one.node
            for base in at.bases:
                found = self._definition(where, base.value)
                if found and isinstance(found[1], cst.ClassDef) and found[1] not in seen:
                    seen.add(found[1])
                    waiting.append((found[0], found[1]))
        return None
