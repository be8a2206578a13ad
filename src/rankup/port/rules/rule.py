"""What a rule is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...base.findings import Finding, Level
from ...script.roles import Script
from ...script.source import File

Look = Callable[[File, Script], Iterable["Hit"]]


@dataclass(frozen=True, eq=False)
class Hit:
    """A place where a rule is broken."""

    node: ast.AST
    message: str
    todo: str


@dataclass(frozen=True)
class Rule:
    """A rule of `check`.

    Attributes:
        code: `RK103`; its page is docs/rules/RK103.md.
        name: in words with hyphens.
        look: a pure function of a file and the script of the script that it belongs to; called for
            the script and for each module of its folder that it imports.
        frameworks: whether it holds also where a framework (fastai, Lightning, …) trains.
    """

    code: str
    name: str
    level: Level
    look: Look
    frameworks: bool = False

    def findings(self, file: File, script: Script) -> list[Finding]:
        if script.frameworks and not self.frameworks:
            return []
        return [
            Finding(self.code, self.level, file.place(hit.node), hit.message, hit.todo)
            for hit in self.look(file, script)
        ]
