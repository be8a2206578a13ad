"""A question of `doctor` or `env check`: a function whose docstring is its page of the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ..base.findings import Finding, page

S = TypeVar("S")


def ok(message: str, todo: str = "", place: str = "") -> Finding:
    """Return a line that is for the user's information."""
    return Finding("", "ok", place, message, todo)


def warning(message: str, todo: str = "", place: str = "") -> Finding:
    """Return a line that may cost time or money."""
    return Finding("", "warning", place, message, todo)


def error(message: str, todo: str = "", place: str = "") -> Finding:
    """Return a line that keeps a job from running."""
    return Finding("", "error", place, message, todo)


@dataclass(frozen=True)
class Question(Generic[S]):
    """A question with its code, which is stable; `docs/findings/CODE.md` is its page.

    Attributes:
        place: what it looks at, as its lines call it.
        judge: its answers, made of what was read, without code; no answer is fine.
    """

    code: str
    title: str
    place: str
    judge: Callable[[S], Iterable[Finding]]

    def findings(self, subject: S, place: str = "") -> list[Finding]:
        """Return its answers as findings.

        Args:
            place: another name of what it looks at.
        """
        place = place or self.place
        found = self.judge(subject)
        return [replace(one, code=self.code, place=one.place or place) for one in found]

    def page(self) -> str:
        """Return its page of the documentation."""
        return page(self.code, self.title, self.judge)


def question(
    code: str, title: str, place: str
) -> Callable[[Callable[[S], Iterable[Finding]]], Question[S]]:
    """Make a function of facts, which yields answers, a question."""

    def wrap(judge: Callable[[S], Iterable[Finding]]) -> Question[S]:
        return Question(code, title, place, judge)

    return wrap
