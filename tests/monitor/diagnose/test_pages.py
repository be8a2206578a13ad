"""Every finding has a page, and its thresholds are those of the table."""

from __future__ import annotations

import re
from pathlib import Path

from rankup.monitor.diagnose import CODES
from rankup.monitor.thresholds import GIB, LIMITS, MIB

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = DOCS / "findings"
GENERAL = ("../reading-the-report", "../monitor")
PARTS = (
    *("What it looks at", "Why it matters", "Example", "What to do"),
    "When to ignore it",
)
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) \|", re.MULTILINE)


def text(code: str) -> str:
    return (PAGES / f"{code}.md").read_text(encoding="utf-8")


def shown(name: str) -> str:
    """Its value as a page has it: bytes of memory in MiB or GiB, numbers bare."""
    value = getattr(LIMITS, name)
    if value >= GIB:
        return f"{value / GIB:g} GiB"
    return f"{value / MIB:g} MiB" if value >= 100 * MIB else f"{value:,.6g}"


def test_pages_and_codes_are_the_same() -> None:
    assert {path.stem for path in PAGES.glob("RK7*.md")} == set(CODES)


def test_a_page_has_all_its_parts_and_its_links_lead_somewhere() -> None:
    for code, known in CODES.items():
        page = text(code)
        lines = page.splitlines()
        assert lines[0] == f"# {code}: {known.title}"
        assert set(lines) >= {f"## {part}" for part in PARTS}, code
        assert any(f"[{code}]" in line for line in lines), code
        for link in re.findall(r"\]\(([^)#]+)\)", page):
            assert (PAGES / link).exists(), link


def test_thresholds_are_those_of_the_table_and_every_one_is_on_a_page() -> None:
    named = set()
    for page in (*CODES, *GENERAL):
        for name, value in _ROW.findall(text(page)):
            assert value == shown(name), name
            named.add(name)
    assert named == set(LIMITS.__dataclass_fields__)
