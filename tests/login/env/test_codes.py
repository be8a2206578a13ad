"""Every code of `rankup env check` has a page, and every page a code."""

from __future__ import annotations

import ast
from pathlib import Path

from rankup.login.env import codes, report

PAGES = Path(__file__).resolve().parents[3] / "docs" / "findings"


def test_pages_and_codes_are_the_same() -> None:
    assert {path.stem for path in PAGES.glob("RK54*.md")} == set(codes.TITLES)


def test_a_page_has_all_its_parts() -> None:
    for code, title in codes.TITLES.items():
        lines = (PAGES / f"{code}.md").read_text(encoding="utf-8").splitlines()
        assert lines[0] == f"# {code}: {title}"
        for part in ("What it looks at", "Why it matters", "Example", "What to do"):
            assert f"## {part}" in lines
        assert any(code in line for line in lines[1:])


def test_every_code_is_used() -> None:
    names = {name for name, value in vars(codes).items() if str(value).startswith("RK5")}
    used = {
        node.attr
        for node in ast.walk(ast.parse(Path(report.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "codes"
    }
    assert names == used
