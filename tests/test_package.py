"""What a wheel holds: every file of the package, not only the Python ones."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rankup"


def _patterns() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[str] = settings["tool"]["setuptools"]["package-data"]["rankup"]
    return found


def _others() -> set[Path]:
    """Files of the package that are no Python."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file())
    return {path for path in files if path.suffix not in (".py", ".pyc")}


def test_every_file_is_matched_by_a_pattern_of_the_package_data() -> None:
    taken = {path for pattern in _patterns() for path in PACKAGE.glob(pattern)}
    assert len(_others()) > 10
    assert {str(path.relative_to(PACKAGE)) for path in _others() - taken} == set()


def test_every_pattern_matches_something() -> None:
    assert [pattern for pattern in _patterns() if not list(PACKAGE.glob(pattern))] == []


def test_every_folder_with_python_in_it_is_a_package() -> None:
    """setuptools passes over a folder without `__init__.py`."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
