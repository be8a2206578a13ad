"""A rule of `rankup check` about batch scripts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...base.findings import Level
from .script import BatchScript

_NOQA = (
    "Where it is meant to be so, `# noqa: {code}` says so: at the end of the line, or in a line "
    "above the command."
)


@dataclass(frozen=True)
class Hit:
    """A line that breaks a rule; `level` where it is another one than the rule's."""

    line: int
    message: str
    todo: str
    level: Level | None = None


class Rule:
    """A rule: its docstring is its page, `docs/rules/CODE.md`, with examples that are tested.

    Attributes:
        whole: it draws a conclusion from commands that are not there, so it is left out where a
            statement could not be parsed.
    """

    code: ClassVar[str]
    level: ClassVar[Level]
    title: ClassVar[str]
    whole: ClassVar[bool] = False

    def look(self, script: BatchScript) -> Iterator[Hit]:
        """Yield the lines of a script that break the rule."""
        raise NotImplementedError

    def page(self) -> str:
        """Return the rule's page of the documentation."""
        return f"# {self.code}: {self.title}\n\n{inspect.getdoc(self)}\n\n{_NOQA}\n".replace(
            "{code}", self.code
        )
