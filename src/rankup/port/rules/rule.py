"""A rule of `rankup check`, whose hits carry what `rankup port` does about them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ...base.errors import UserError
from ...base.findings import Finding, Level, page
from ...script.roles import Script
from ...script.source import File

if TYPE_CHECKING:
    from ..rewrite.context import Context

Look = Callable[[File, Script], Iterable["Hit"]]
Fix = Callable[["Context"], str | None]


@dataclass(frozen=True, eq=False)
class Hit:
    """A place where a rule is broken.

    Attributes:
        message, todo: what `check` prints.
        fix: what `port` does: it makes edits and returns a line for the report of what was done,
            empty where it has said so itself; None where it changed nothing.
        left: the comment of `port` where there is no fix, or it changed nothing; the message and
            what to do without one.
        comment: whether `port` puts a comment at the place, or only a line into its report.
    """

    node: ast.AST
    message: str
    todo: str
    fix: Fix | None = None
    left: str = ""
    comment: bool = True


@dataclass(frozen=True)
class Rule:
    """A rule of `check` and `port`.

    Attributes:
        look: a pure function of a file and the script that it belongs to; `check` calls it for the
            script and for each module of its repository that it imports, `port` for the script and
            for the modules that train.
            Its docstring is the rule's page, `docs/rules/CODE.md`, with examples that are tested.
        frameworks: whether it holds also where a framework (fastai, Lightning, …) trains.
    """

    code: str
    level: Level
    title: str
    look: Look
    frameworks: bool = False

    def page(self) -> str:
        """Return the rule's page of the documentation."""
        return page(self.code, self.title, self.look, before="## What it looks at\n\n")

    def findings(self, file: File, script: Script) -> list[Finding]:
        """Return the hits in a file as `check` prints them."""
        if script.frameworks and not self.frameworks:
            return []
        return [
            Finding(self.code, self.level, file.place(hit.node), hit.message, hit.todo)
            for hit in self.look(file, script)
        ]

    def mend(self, context: Context) -> None:
        """Apply the fixes of the hits in a file that is ported; comment on the others."""
        context.fix = self.code
        for hit in tuple(self.look(context.script.file, context.script.understood)):
            done = hit.fix(context) if hit.fix is not None else None
            if done:
                context.done(hit.node, done)
            elif done is None:
                text = hit.left or f"{hit.message}; {hit.todo}"
                context.leave(hit.node, text, comment=hit.comment)


def rule(
    code: str, level: Level, title: str, *, frameworks: bool = False
) -> Callable[[Look], Rule]:
    """Make a function a rule."""
    return lambda look: Rule(code, level, title, look, frameworks)


def refuse(context: Context, node: ast.AST, reason: str) -> NoReturn:
    """Say that a script is not ported, and why; a fix of what only a person can mend.

    Raises:
        UserError: always.
    """
    line = context.script.line(node)
    raise UserError(f"{context.script.file.path}:{line}: not ported: {reason}")
