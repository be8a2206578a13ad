"""Every finding has a page; its thresholds are those of the table, its example is what is said."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankup.monitor.diagnose import codes, diagnose
from rankup.monitor.thresholds import LIMITS

from .pages import shown
from .sick import Case, cases

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = DOCS / "findings"
GENERAL = ("../reading-the-report", "../monitor")
PARTS = (
    *("What it looks at", "Why it matters", "Example", "What to do"),
    "When to ignore it",
)
FIRST = {case.code: case for case in reversed(cases()) if case.expected == (case.code,)}
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) \|", re.MULTILINE)


def text(code: str) -> str:
    return (PAGES / f"{code}.md").read_text(encoding="utf-8")


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pages say times of day as they are in UTC."""
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    if before is None:
        monkeypatch.delenv("TZ")
    else:
        monkeypatch.setenv("TZ", before)
    time.tzset()


def test_pages_and_codes_are_the_same() -> None:
    assert {path.stem for path in PAGES.glob("RK7*.md")} == set(codes.TITLES)


@pytest.mark.parametrize("code", codes.TITLES)
def test_a_page_has_all_its_parts(code: str) -> None:
    lines = text(code).splitlines()
    assert lines[0] == f"# {code}: {codes.TITLES[code]}"
    for part in PARTS:
        assert f"## {part}" in lines
    assert any(f"[{code}]" in line for line in lines)


@pytest.mark.parametrize("page", [*codes.TITLES, *GENERAL])
def test_thresholds_are_those_of_the_table(page: str) -> None:
    for name, value in _ROW.findall(text(page)):
        assert value == shown(name), name


def test_every_threshold_is_on_a_page() -> None:
    named = {name for page in (*codes.TITLES, *GENERAL) for name, _ in _ROW.findall(text(page))}
    assert named == set(LIMITS.__dataclass_fields__)


@pytest.mark.parametrize("code", codes.TITLES)
def test_links_lead_somewhere(code: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", text(code)):
        assert (PAGES / link).exists(), link


@pytest.mark.slow
@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_examples_are_what_is_said(case: Case) -> None:
    (found,) = diagnose(case.trace.recording())
    example = " ".join(text(case.code).split("```text\n")[1].split("```")[0].split())
    assert " ".join(found.message.split()) in example
    assert " ".join(found.todo.split()) in example
