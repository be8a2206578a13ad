"""What is known of one file: what its names are bound to, its calls, its imports."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .found import Import

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


Kind = Literal["value", "item", "import", "argument", "function", "class", "other"]


@dataclass(frozen=True)
class Guard:
    """A condition that has to be `holds` for the code below it to run."""

    test: ast.expr
    holds: bool


@dataclass(frozen=True, eq=False)
class Binding:
    """One place that gives a name its value.

    Attributes:
        scope: where `value` is to be looked at.
        index: of a tuple that `value` gives, from outside in (`for a, b in ...`).
        dotted: what an import binds the name to.
    """

    kind: Kind
    line: int
    scope: Scope
    value: ast.AST | None = None
    index: tuple[int, ...] = ()
    guards: tuple[Guard, ...] = ()
    dotted: str = ""


@dataclass(eq=False)
class Scope:
    """A module, class, function or comprehension.

    Attributes:
        inner: scopes of the functions and classes in it, by name.
        attributes: of a class: what its functions assign to `self`.
    """

    file: File
    kind: Literal["module", "class", "function", "comprehension"]
    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    inner: dict[ast.AST, Scope] = field(default_factory=dict)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)

    def find(self, name: str) -> list[Binding]:
        """The bindings of the nearest scope that has some, as Python looks a name up."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or scope.kind != "class"):
                return scope.bindings[name]
            scope = scope.parent
        return []

    def own_class(self) -> Scope | None:
        """The class whose function this is in."""
        scope: Scope | None = self
        while scope is not None and scope.kind != "class":
            scope = scope.parent
        return scope


@dataclass(frozen=True, eq=False)
class Call:
    """A call, and where it stands."""

    node: ast.Call
    scope: Scope
    guards: tuple[Guard, ...]


@dataclass(frozen=True)
class Wanted:
    """An import as it stands in the file.

    Attributes:
        names: taken out of the module (`from module import names`), `*` too.
    """

    found: Import
    names: tuple[str, ...] = ()


@dataclass(eq=False)
class File:
    """All that one file says.

    Attributes:
        name: the dotted name that it is imported by; `__main__` for the script.
        package: what its relative imports are relative to.
        stars: modules whose names it takes all.
    """

    path: Path
    name: str
    package: str
    top: Scope = field(init=False)
    calls: list[Call] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
