"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import libcst as cst

from ...base.findings import Finding, Level
from ..roles import Roles
from ..source import Source

Look = Callable[[Source, Roles], Iterable["Hit"]]


@dataclass(frozen=True, eq=False)
class Hit:
    """A place where a rule is broken."""

    node: cst.CSTNode
    message: str
    todo: str


@dataclass(frozen=True)
class Rule:
    """A rule of `check`.

    Attributes:
        code: `RK103`; its page is docs/rules/RK103.md.
        name: in words with hyphens.
        look: a pure function of a file and the roles of the script that it belongs to; called for
            the script and for each module of its folder that it imports.
        frameworks: whether it holds also where a framework (fastai, Lightning, …) trains.
    """

    code: str
    name: str
    level: Level
    look: Look
    frameworks: bool = False

    def findings(self, source: Source, roles: Roles) -> list[Finding]:
        if roles.frameworks and not self.frameworks:
            return []
        return [
            Finding(self.code, self.level, source.place(hit.node), hit.message, hit.todo)
            for hit in self.look(source, roles)
        ]
