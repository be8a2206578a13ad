"""What is gone answers with one sentence and exit code 2."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.base.gone import GONE
from rankup.recipes import RECIPES
from tests.conftest import RunRankup


def _command(typed: str) -> list[str]:
    """The shortest command line with these words at their place."""
    words = typed.split()
    if words[0] == "rankup.toml":
        return ["run", "--local", next(iter(RECIPES))]
    if typed.startswith("RK"):
        return ["check", "--ignore", typed, "."]
    if not words[0].startswith("-"):
        return words
    return ["run", "--local", next(iter(RECIPES)), *words, "x"]


@pytest.mark.parametrize("typed", GONE)
def test_a_word_that_is_gone_says_what_takes_its_place(typed: str, tmp_path: Path) -> None:
    file, _, key = typed.partition(" ")
    if file == "rankup.toml":
        (tmp_path / file).write_text(f"{key} = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "rankup", *_command(typed)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"rankup: {typed} is gone in 0.3: {GONE[typed]}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [file] * (file == "rankup.toml")


def test_a_file_that_a_sentence_names_is_one_that_demo_writes(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    assert rankup_here(["demo", "--files", "."]).returncode == 0
    named = {file for said in GONE.values() for file in re.findall(r"[\w/-]+\.py\b", said)}
    assert "by-hand/async_sgd.py" in named
    assert [file for file in named if not (tmp_path / file).is_file()] == []
