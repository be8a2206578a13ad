"""A question of `doctor` or `env check`: a function whose docstring is its page of the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ..base.findings import Finding, Level, page

S = TypeVar("S")


class Answer(NamedTuple):
    """One line of the report.

    Attributes:
        todo: what to do about it.
        place: what was looked at; empty: the question's own.
    """

    level: Level
    message: str
    todo: str = ""
    place: str = ""


def ok(message: str, todo: str = "", place: str = "") -> Answer:
    """Return a line that is for the user's information."""
    return Answer("ok", message, todo, place)


def warning(message: str, todo: str = "", place: str = "") -> Answer:
    """Return a line that may cost time or money."""
    return Answer("warning", message, todo, place)


def error(message: str, todo: str = "", place: str = "") -> Answer:
    """Return a line that keeps a job from running."""
    return Answer("error", message, todo, place)


@dataclass(frozen=True)
class Question(Generic[S]):
    """A question with its code, which is stable; `docs/findings/CODE.md` is its page.

    Attributes:
        place: what it looks at, as its lines call it.
        judge: its answers, made of what was read; no answer is fine.
    """

    code: str
    title: str
    place: str
    judge: Callable[[S], Iterable[Answer]]

    def findings(self, subject: S, place: str = "") -> list[Finding]:
        """Return its answers as findings.

        Args:
            place: another name of what it looks at.
        """
        place = place or self.place
        return [
            Finding(self.code, one.level, one.place or place, one.message, one.todo)
            for one in self.judge(subject)
        ]

    def page(self) -> str:
        """Return its page of the documentation."""
        return page(self.code, self.title, self.judge)


def question(
    code: str, title: str, place: str
) -> Callable[[Callable[[S], Iterable[Answer]]], Question[S]]:
    """Make a function of facts, which yields answers, a question."""

    def wrap(judge: Callable[[S], Iterable[Answer]]) -> Question[S]:
        return Question(code, title, place, judge)

    return wrap
