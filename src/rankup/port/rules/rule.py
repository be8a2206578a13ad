"""A rule of `rankup check`, whose hits carry what `rankup port` does about them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ...base.errors import UserError
from ...base.findings import Finding, Level
from ...base.text import clean_lines
from ...script.roles import Script
from ...script.source import File

if TYPE_CHECKING:
    from ..rewrite.context import Context

# A docstring: what it looks at; why it matters; the example, a line in front of it; what port does.
_HEADINGS = ("What it looks at", "Why it matters", "Example", "What `rankup port` does")
_PAGE = re.compile(
    r"(.*?)\n\n(.*?)\n\n((?:(?:(?!\n\n).)*:\n\n)?```diff\n.*?```)(?:\n\n(.*))?", re.DOTALL
)
# Rules of what no change of loaders makes data-parallel: `port` refuses all of their hits.
REFUSED = ("RK124", "RK191")
Look = Callable[..., Iterable["Hit"]]
Fix = Callable[[Any], str | None]


@dataclass(frozen=True, eq=False)
class Hit:
    """A place where a rule is broken.

    Attributes:
        at: the node; of a batch file its line.
        message, todo: what `check` prints.
        fix: what `port` does, given the `Context` of a script or the `Edits` of a batch file: it
            makes edits and returns a line for the report of what was done, empty where it has
            said so itself; None where it changed nothing.
        left: the comment of `port` where there is no fix, or it changed nothing; the message and
            what to do without one.
        comment: whether `port` puts a comment at the place, or only a line into its report.
        level: where it is another one than the rule's.
    """

    at: Any
    message: str
    todo: str
    fix: Fix | None = None
    left: str = ""
    comment: bool = True
    level: Level | None = None


@dataclass(frozen=True)
class Rule:
    """A rule of `check` and `port`.

    Attributes:
        look: a pure function of a file and the script that it belongs to; `check` calls it for the
            script and for each module of its repository that it imports, `port` for the script and
            for the modules that train. Of a batch file it is given that. Its docstring is the
            rule's page, `docs/rules/CODE.md`, with examples that are tested.
        frameworks: whether it holds also where a framework (fastai, Lightning, …) trains.
        by_port: whether `port` mends it without a fix at the place, for all of the file.
        whole: whether it draws a conclusion from commands of a batch file that are not there, so
            that it is left out where bash did not come to the end, or something unknown decided.
    """

    code: str
    level: Level
    title: str
    look: Look
    frameworks: bool = False
    whole: bool = False
    by_port: bool = False

    def page(self) -> str:
        """Return the rule's page of the documentation."""
        match = _PAGE.fullmatch(inspect.getdoc(self.look) or "")
        assert match is not None, self.code
        parts = zip(_HEADINGS, match.groups(), strict=True)
        sections = [f"## {heading}\n\n{text}\n" for heading, text in parts if text]
        return "\n".join([f"# {self.code}: {self.title}\n", *sections])

    def finding(self, place: str, hit: Hit) -> Finding:
        """Return a hit as `check` prints it, its texts safe to show."""
        level = hit.level or self.level
        return Finding(self.code, level, place, clean_lines(hit.message), clean_lines(hit.todo))

    def hits(self, file: File, script: Script) -> Iterable[Hit]:
        """The hits in a file of a script."""
        return () if script.frameworks and not self.frameworks else self.look(file, script)

    def mend(self, context: Context) -> None:
        """Apply the fixes of the hits in a file that is ported; comment on the others."""
        context.fix = self.code
        for hit in tuple(self.look(context.script.file, context.script.understood)):
            done = hit.fix(context) if hit.fix is not None else None
            if done:
                context.done(hit.at, done)
            elif done is None:
                text = hit.left or f"{hit.message}; {hit.todo}"
                context.leave(hit.at, text, comment=hit.comment)


def rule(
    code: str,
    level: Level,
    title: str,
    *,
    frameworks: bool = False,
    whole: bool = False,
    by_port: bool = False,
) -> Callable[[Look], Rule]:
    """Make a function a rule."""
    return lambda look: Rule(code, level, title, look, frameworks, whole, by_port)


def rules_in(*modules: ModuleType) -> tuple[Rule, ...]:
    """Return the rules that modules hold, in the order of their codes."""
    held = [one for module in modules for one in vars(module).values() if isinstance(one, Rule)]
    found = {one.code: one for one in held}  # a rule that another module imports is held twice
    return tuple(found[code] for code in sorted(found))


def refuse(context: Context, node: ast.AST, reason: str) -> NoReturn:
    """Say that a script is not ported, and why; a fix of what only a person can mend.

    Raises:
        UserError: always.
    """
    line = context.script.line(node)
    raise UserError(f"{context.script.file.path}:{line}: not ported: {reason}")


def refuses(hit: Hit) -> bool:
    """True of a hit for which `port` writes nothing."""
    return isinstance(hit.fix, partial) and hit.fix.func is refuse
