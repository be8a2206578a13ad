"""What is read of an environment without running it, and that bash reads the same."""

from __future__ import annotations

import os
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from rankup.login.env import staleness, state

_FILES: dict[str, dict[str, str | bytes]] = {
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
    "latin 1": {
        "requirements.txt": b"-r a.txt # f\xfcr alle\ntorch # gr\xf6\xdfer\n",
        "a.txt": "x",
    },
    "utf 8": {"requirements.txt": "-r ü.txt # für alle\ntorch\n", "ü.txt": "x"},
    "null byte": {"requirements.txt": b"-r a\0b.txt\ntorch\0\n", "ab.txt": "x", "a": "y"},
    "windows": {"requirements.txt": "-r a.txt\r\ntorch\r\n", "a.txt": "x\r\n"},
    "odd space": {
        "requirements.txt": "\f-r a.txt\n\v-c a.txt\n\r-r a.txt\n-r\fa.txt",
        "a.txt": "x",
    },
    "folder": {"requirements.txt": "-r .\n-r a\ntorch", "a/b.txt": "x"},
    "dash": {"requirements.txt": "-r -n\ntorch", "-n": "x\n"},
    "backslash": {"requirements.txt": "-r a\\\\b.txt\ntorch", "a\\\\b.txt": "x\n"},
    "empty": {"requirements.txt": b""},
}


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bash_and_python_hash_the_same_requirements(locale: str, tmp_path: Path) -> None:
    folders = [tmp_path / name / "my project" / "env" for name in _FILES]
    for folder, files in zip(folders, _FILES.values(), strict=True):
        folder.mkdir(parents=True)
        for file, text in files.items():
            path = folder / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    part = (resources.files("rankup.login.env") / "parts" / "load.sh").read_text()
    loop = 'for folder in "$@"; do (_env_digest "$folder/requirements.txt"); done'
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{part}\n{loop}", "bash", *folders],
        env={**os.environ, "LC_ALL": locale},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    expected = [state.digest(folder) for folder in folders]
    assert dict(zip(_FILES, done.stdout.splitlines(), strict=True)) == dict(
        zip(_FILES, expected, strict=True)
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "requirements.txt").write_text("-r pipe\ntorch\n")
    before = state.digest(tmp_path)
    (tmp_path / "pipe").unlink()
    assert state.digest(tmp_path) == before


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
