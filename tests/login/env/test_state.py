"""What is read of an environment without running it, and that bash reads the same."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path

import pytest

from rankup.login.env import staleness, state

_FILES = {
    "plain": {"requirements.txt": "torch\n"},
    "none": {},
    "others": {
        "requirements.txt": "-r ../requirements.txt # all of it\n  -c  limits.txt\ntorch\n",
        "../requirements.txt": "-rmore/a.txt\n--requirement=more/b.txt\n--requirement more/a.txt",
        "../more/a.txt": "numpy\n",
        "../more/b.txt": "--constraint\tlimits.txt\n",
        "../more/limits.txt": "numpy<3\n",
        "limits.txt": "torch<3\n",
    },
    "itself": {"requirements.txt": "-r requirements.txt\ntorch\n"},
    "missing": {"requirements.txt": "-r absent.txt\n-r https://example.org/r.txt\n"},
    "space": {"requirements.txt": "--index-url https://example.org\n-e .\n-r a.txt", "a.txt": "x"},
}


@pytest.mark.parametrize("name", sorted(_FILES))
def test_bash_and_python_hash_the_same_requirements(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "my project" / "env"
    folder.mkdir(parents=True)
    for file, text in _FILES[name].items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    part = (resources.files("rankup.login.env") / "parts" / "load.sh").read_text()
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'set -euo pipefail\n{part}\n_env_digest "$1/requirements.txt"',
            "bash",
            folder,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (f"{state.digest(folder)}\n", "")


def test_a_change_in_a_file_that_is_named_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_text("torch\n")
    before = state.digest(tmp_path)
    (tmp_path / "more.txt").write_text("torch>=2.8\n")
    assert state.digest(tmp_path) != before


def test_a_folder_that_is_no_environment_of_ours_is_not_stale(tmp_path: Path) -> None:
    assert staleness(tmp_path) == ""
    assert staleness(tmp_path / "absent") == ""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / ".made").write_bytes(b"\xff\x00")
    assert staleness(tmp_path) == ""
