"""Facts as far as a test says them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from rankup.base.findings import Finding
from rankup.login.doctor.facts import Facts
from rankup.login.question import Question


def asked(question: Question[Facts], **facts: object) -> list[Finding]:
    """The findings of a question of these facts."""
    return question.findings(cast(Facts, SimpleNamespace(**facts)))
