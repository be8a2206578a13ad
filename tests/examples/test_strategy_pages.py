"""The pages on strategies: links that lead somewhere, pictures that agree with theory and fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.drawn import pipelines

DOCS = Path(__file__).resolve().parents[2] / "docs"
START = DOCS / "which-strategy.md"
PAGES = [START, DOCS / "terms.md", *sorted((DOCS / "strategies").glob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _targets(page: Path) -> list[Path]:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    return [(page.parent / link.partition("#")[0]).resolve() for link in links]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_of_a_page_are_there(page: Path) -> None:
    targets = _targets(page)
    assert targets
    assert [str(target) for target in targets if not target.exists()] == []


def test_all_pages_and_examples_are_reached_from_the_first() -> None:
    found = {START}
    while new := {t for page in found if page.suffix == ".md" for t in _targets(page)} - found:
        found |= new
    examples = (DOCS.parent / "examples").glob("*.py")
    # The pictures of the report are on its own page.
    pictures = {p for p in (DOCS / "pictures").glob("*.png") if not p.stem.startswith("report-")}
    assert {*PAGES, *examples, *pictures} <= found


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.png")), ids=lambda p: p.stem)
def test_a_picture_is_small(picture: Path) -> None:
    assert 2_000 < picture.stat().st_size < 60_000


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (2, 8), (4, 4), (4, 8), (4, 16)])
def test_the_drawn_bubbles_are_those_of_theory(ranks: int, chunks: int) -> None:
    drawn = pipelines()
    for name, orders, rounds in (
        ("one by one", drawn.one_by_one(ranks, chunks), 1),
        ("gpipe", drawn.gpipe(ranks, chunks), 1),
        ("1f1b", drawn.one_f_one_b(ranks, chunks), 1),
        ("interleaved", drawn.interleaved(ranks, chunks, 2), 2),
    ):
        # GPipe (Huang et al., 2019), 1F1B (Narayanan et al., 2019, 2021).
        fill = ranks - 1
        expected = fill / ranks if name == "one by one" else fill / (chunks * rounds + fill)
        assert drawn.bubble(drawn.timed(orders, rounds)) == pytest.approx(expected), name
