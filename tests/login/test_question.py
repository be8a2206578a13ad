"""Every question of `doctor` and `env check` has a code, and a page made of its docstring."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from rankup.login.doctor import command
from rankup.login.env.check import QUESTIONS
from rankup.login.question import Question

PAGES = Path(__file__).resolve().parents[2] / "docs" / "findings"
ALL: tuple[Question[Any], ...] = (
    *command.QUESTIONS,
    *command.OF_A_SCRIPT,
    command.late,
    command.failed,
    *QUESTIONS,
)


def test_pages_and_codes_are_the_same() -> None:
    codes = [one.code for one in ALL]
    assert len(set(codes)) == len(codes)
    assert {path.stem for path in PAGES.glob("RK5*.md")} == set(codes)


@pytest.mark.parametrize("question", ALL, ids=lambda one: one.code)
def test_the_page_is_the_question(question: Question[Any]) -> None:
    """`RANKUP_GOLDEN=write` writes the pages anew."""
    page = PAGES / f"{question.code}.md"
    if os.environ.get("RANKUP_GOLDEN") == "write":
        page.write_text(question.page(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == question.page()
    [example] = re.findall(r"^```text\n(.*?)^```", question.page(), re.MULTILINE | re.DOTALL)
    for line in example.splitlines():
        is_fine = line.startswith("ok    ") or line.lstrip().startswith("-> ")
        assert is_fine or line.endswith(f" [{question.code}]")
