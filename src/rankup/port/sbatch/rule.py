"""A rule of `rankup check` about batch scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.findings import Level, page
from .script import BatchScript

if TYPE_CHECKING:
    from ..rewrite.edits import Edits

_NOQA = (
    "\n\nWhere it is meant to be so, `# noqa: {code}` says so: at the end of the line, or in a "
    "line above the command."
)


@dataclass(frozen=True)
class Hit:
    """A line that breaks a rule.

    Attributes:
        level: where it is another one than the rule's.
        fix: what `port` does: it makes edits and returns a line about them; may be empty.
    """

    line: int
    message: str
    todo: str
    level: Level | None = None
    fix: Callable[[Edits], str] | None = None


Look = Callable[[BatchScript], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """A rule of `check` about batch files.

    Attributes:
        look: yields the lines of a script that break the rule; its docstring is the rule's page,
            `docs/rules/CODE.md`, with examples that are tested.
        whole: it draws a conclusion from commands that are not there, so it is left out where a
            statement could not be parsed.
    """

    code: str
    level: Level
    title: str
    look: Look
    whole: bool = False

    def page(self) -> str:
        """Return the rule's page of the documentation."""
        return page(self.code, self.title, self.look, behind=_NOQA.format(code=self.code))


def rule(code: str, level: Level, title: str, *, whole: bool = False) -> Callable[[Look], Rule]:
    """Make a function a rule."""
    return lambda look: Rule(code, level, title, look, whole)
