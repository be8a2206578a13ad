"""What is read of an environment without running it."""

from __future__ import annotations

import os
from pathlib import Path

from rankup.login.env import staleness
from rankup.login.env.requirements import digest, names


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "requirements.txt").write_text("-r pipe\ntorch\n")
    before = digest(tmp_path / "requirements.txt")
    (tmp_path / "pipe").unlink()
    assert digest(tmp_path / "requirements.txt") == before


def test_a_change_in_a_file_that_is_named_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r more.txt\n")
    (tmp_path / "more.txt").write_text("torch\n")
    before = digest(tmp_path / "requirements.txt")
    (tmp_path / "more.txt").write_text("torch>=2.8\n")
    assert digest(tmp_path / "requirements.txt") != before


def test_a_folder_that_is_no_environment_of_ours_is_not_stale(tmp_path: Path) -> None:
    assert staleness(tmp_path) == ""
    assert staleness(tmp_path / "absent") == ""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / ".made").write_bytes(b"\xff\x00")
    assert staleness(tmp_path) == ""


def test_files_that_are_named_are_read_once_each_in_any_spelling(tmp_path: Path) -> None:
    """Relative to the file that names them; a file that names itself has an end."""
    folder = tmp_path / "env"
    (folder / "more").mkdir(parents=True)
    main = folder / "requirements.txt"
    main.write_bytes(
        b"-r ../above.txt # f\xfcr alle\n  -c  limits.txt\n-r requirements.txt\ntorch\n"
    )
    (tmp_path / "above.txt").write_text("-renv/more/a.txt\n--requirement=env/more/b.txt\n")
    (folder / "more" / "a.txt").write_text("numpy\n-r https://example.org/r.txt\n-r absent.txt\n")
    (folder / "more" / "b.txt").write_text("--constraint\tlimits.txt\nScikit_Learn >=1 # new\n")
    (folder / "more" / "limits.txt").write_text("scipy<2")
    (folder / "limits.txt").write_text("six<3\r\n")
    assert names(main) == ["numpy", "scikit-learn", "scipy", "six", "torch"]


def test_names_of_what_is_asked_for(tmp_path: Path) -> None:
    main = tmp_path / "requirements.txt"
    main.write_text(
        "--index-url https://example.org\n-e .\n./mine.whl\nmine @ file:///x\na[b]==1 \\\n"
        "    --hash=sha256:00\nc; python_version < '3'\n"
    )
    assert names(main) == ["-e .", "./mine.whl", "a", "c", "mine"]


def test_what_an_editable_folder_needs_is_part_of_it(tmp_path: Path) -> None:
    """In any spelling of pip's: by URL or path, with extras."""
    folder = tmp_path / "my rankup"
    folder.mkdir()
    (tmp_path / "more").symlink_to(folder)
    project = folder / "pyproject.toml"
    main = tmp_path / "requirements.txt"
    for line in (
        f"-e {folder.as_uri()}[train]",
        f"--editable={folder.as_uri()}  # mine",
        "-e ./more[train]",
    ):
        main.write_text(f"{line}\n")
        project.write_text("a")
        before = digest(main)
        project.write_text("b")
        assert digest(main) != before, line


def test_a_lock_names_an_editable_folder_as_its_requirements_do(tmp_path: Path) -> None:
    main = tmp_path / "requirements.txt"
    main.write_text("-e file:///my%20rankup[train,hf]\n")
    assert names(main) == ["-e file:///my%20rankup"]
