"""Every finding has a page; heading, thresholds and example are written from the code."""

from __future__ import annotations

import re

from rankup.monitor.diagnose import CODES
from rankup.monitor.thresholds import LIMITS

from .pages import DOCS, have_our_thresholds, path

GENERAL = ("reading-the-report", "monitor")
PARTS = (
    *("What it looks at", "Why it matters", "Example", "What to do"),
    "When to ignore it",
)


def test_pages_and_codes_are_the_same() -> None:
    assert {page.stem for page in path("").parent.glob("RK7*.md")} == set(CODES)


def test_a_page_has_all_its_parts_and_its_links_lead_somewhere() -> None:
    for code in CODES:
        page = path(code).read_text(encoding="utf-8")
        assert set(page.splitlines()) >= {f"## {part}" for part in PARTS}, code
        for link in re.findall(r"\]\(([^)#]+)\)", page):
            assert (path(code).parent / link).exists(), link


def test_every_threshold_is_on_a_page() -> None:
    """`RANKUP_GOLDEN=write` writes their values anew."""
    pages = [*map(path, CODES), *(DOCS / f"{name}.md" for name in GENERAL)]
    named = set().union(*map(have_our_thresholds, pages))
    assert named == set(LIMITS.__dataclass_fields__)
