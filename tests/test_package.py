"""A wheel holds every file of the package, not only the Python ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rankup

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


def test_the_version_is_one_and_the_same_everywhere() -> None:
    about = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {rankup.__version__}\n" in about
    assert changes.startswith(f"# What changed\n\n## {rankup.__version__}\n")


def test_every_pattern_matches_something() -> None:
    assert [pattern for pattern in _patterns() if not list(PACKAGE.glob(pattern))] == []


def test_every_folder_with_python_in_it_is_a_package() -> None:
    """setuptools passes over a folder without `__init__.py`."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.slow
def test_the_wheel_answers_in_an_empty_environment_without_torch(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    built = tmp_path / "built"

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in words], cwd=tmp_path, capture_output=True, text=True
        )

    def must(*words: object) -> None:
        done = run(*words)
        assert done.returncode == 0, done.stdout + done.stderr

    must(sys.executable, "-m", "build", "--outdir", built, ROOT)  # the wheel out of the sdist
    assert len([*built.glob("rankup-*.tar.gz")]) == 1
    must(sys.executable, "-m", "venv", tmp_path / "env")
    (wheel,) = built.glob("rankup-*.whl")
    must(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    assert run(python, "-c", "import torch").returncode != 0
    for words, code in (
        (["--version"], 0),
        (["--help"], 0),
        (["doctor"], 0),
        (["recipes"], 0),
        (["demo", "--files", "samples"], 0),
        (["check", "samples/train.py"], 1),
    ):
        done = run(tmp_path / "env" / "bin" / "rankup", *words)
        assert done.returncode == code, done.stdout + done.stderr
