"""Every code of doctor has a page, and every page a code."""

from __future__ import annotations

import ast
from pathlib import Path

import rankup.login.doctor
from rankup.login.doctor import codes

PAGES = Path(__file__).resolve().parents[3] / "docs" / "findings"
SOURCE = Path(rankup.login.doctor.__file__).parent


def test_pages_and_codes_are_the_same() -> None:
    # RK54x are those of `rankup env check` (tests/login/env/test_codes.py).
    pages = {path.stem for path in PAGES.glob("RK5[0-3]*.md")}
    assert pages == set(codes.TITLES)


def test_a_page_has_all_its_parts() -> None:
    for code, title in codes.TITLES.items():
        lines = (PAGES / f"{code}.md").read_text(encoding="utf-8").splitlines()
        assert lines[0] == f"# {code}: {title}"
        for part in ("What it looks at", "Why it matters", "Example", "What to do"):
            assert f"## {part}" in lines
        assert any(code in line or line.startswith("ok ") for line in lines[1:])


def test_every_code_is_used() -> None:
    names = {
        name for name, value in vars(codes).items() if isinstance(value, str) and "RK5" in value
    }
    used = {
        node.attr
        for path in SOURCE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "codes"
    }
    assert names == used - {"TITLES"}
