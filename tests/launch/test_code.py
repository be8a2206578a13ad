"""The state of the user's code, kept with the run: commit, diff, and what git does not know."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from rankup.launch import request

_IDENTITY = ["-c", "user.name=me", "-c", "user.email=me@example.org"]


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *_IDENTITY, *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own settings of git do not count, and no repository around the folder."""
    (tmp_path / "gitconfig").write_text("")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.delenv("GIT_DIR", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with `train.py`, `data.bin` and a subfolder in its one commit."""
    found = tmp_path / "project"
    (found / "sub").mkdir(parents=True)
    (found / "train.py").write_text("print(1)\n")
    (found / "data.bin").write_bytes(bytes(range(256)))
    (found / "sub" / "model.py").write_text("a = 1\n")
    _git(found, "init", "-q")
    _git(found, "add", ".")
    _git(found, "commit", "-q", "-m", "first")
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = tmp_path / "run"
    found.mkdir()
    return found


def _files(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def _assert_private(run: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.iterdir()} <= {0o600}


def test_a_clean_commit_needs_nothing_more(folder: Path, run: Path) -> None:
    assert request.code_state(folder) == {
        "commit": _git(folder, "rev-parse", "HEAD"),
        "changed": False,
    }
    request.keep_code(folder, folder / "train.py", run)
    assert _files(run) == []


@pytest.mark.parametrize("where", [".", "sub"])
def test_commit_and_diff_give_the_code_back(
    folder: Path, run: Path, tmp_path: Path, where: str
) -> None:
    (folder / "train.py").write_text("print(2)\n")
    (folder / "data.bin").write_bytes(b"\x00\xff" * 99)
    (folder / "sub" / "model.py").unlink()
    (folder / "sub" / "new.py").write_text("b = 1\n")
    _git(folder, "add", "sub/new.py")
    found = request.code_state(folder / where)
    assert found["changed"]
    request.keep_code(folder / where, folder / "train.py", run)
    assert _files(run) == ["code.diff"]
    _assert_private(run)
    _git(tmp_path, "clone", "-q", str(folder), "again")
    _git(tmp_path / "again", "checkout", "-q", found["commit"])
    _git(tmp_path / "again", "apply", str(run / "code.diff"))
    for name in ("train.py", "data.bin", "sub/new.py"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert not (tmp_path / "again" / "sub" / "model.py").exists()


def test_the_users_settings_of_diffs_do_not_spoil_it(folder: Path, run: Path) -> None:
    settings = {
        "color.ui": "always",
        "diff.noprefix": "true",
        "diff.external": "/bin/true",
        "diff.relative": "true",
    }
    for name, value in settings.items():
        _git(folder, "config", name, value)
    (folder / "train.py").write_text("print(2)\n")
    request.keep_code(folder / "sub", None, run)
    _git(folder, "checkout", "-q", "--", "train.py")
    _git(folder, "apply", str(run / "code.diff"))
    assert (folder / "train.py").read_text() == "print(2)\n"


def test_a_script_that_git_does_not_know_is_copied_and_named(folder: Path, run: Path) -> None:
    script = folder / "other.py"
    script.write_text("print(3)\n")
    assert request.code_state(folder)["untracked"] == ["other.py"]
    request.keep_code(folder, script, run)
    assert _files(run) == ["other.py"]
    assert (run / "other.py").read_text() == "print(3)\n"
    _assert_private(run)


def test_an_ignored_script_is_copied_too(folder: Path, run: Path) -> None:
    (folder / ".gitignore").write_text("*.py\n")
    (folder / "other.py").write_text("print(3)\n")
    assert request.code_state(folder)["untracked"] == [".gitignore"]
    request.keep_code(folder, folder / "other.py", run)
    assert _files(run) == ["other.py"]


def test_hostile_names(folder: Path, run: Path) -> None:
    names = ["*.py", "a b.py", "it's.py", "-n.py", "größe.py", "a\nb.py", ":!x.py", "$(x).py"]
    for name in names:
        (folder / name).write_text("print(4)\n")
    assert sorted(request.code_state(folder)["untracked"]) == sorted(names)
    for name in names:
        request.keep_code(folder, folder / name, run)
    assert _files(run) == sorted(names)
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "second")
    assert "untracked" not in request.code_state(folder)
    for name in names:
        (run / name).unlink()
        request.keep_code(folder, folder / name, run)
    assert _files(run) == []


def test_a_name_that_is_no_text(folder: Path) -> None:
    with open(os.fsencode(folder) + b"/\xff.py", "w"):
        pass
    assert request.code_state(folder)["untracked"] == ["\ufffd.py"]


def test_many_untracked_files_are_not_all_named(folder: Path) -> None:
    for number in range(300):
        (folder / f"{number}.txt").touch()
    assert len(request.code_state(folder)["untracked"]) == 200


def test_outside_a_repository_the_script_itself_is_kept(tmp_path: Path, run: Path) -> None:
    (tmp_path / "train.py").write_text("print(5)\n")
    assert request.code_state(tmp_path) == {}
    request.keep_code(tmp_path, tmp_path / "train.py", run)
    request.keep_code(tmp_path, None, run)
    assert _files(run) == ["train.py"]
    _assert_private(run)


def test_before_the_first_commit_the_script_itself_is_kept(tmp_path: Path, run: Path) -> None:
    project = tmp_path / "fresh"
    project.mkdir()
    (project / "train.py").write_text("print(6)\n")
    _git(project, "init", "-q")
    _git(project, "add", ".")
    assert request.code_state(project) == {}
    request.keep_code(project, project / "train.py", run)
    assert _files(run) == ["train.py"]


def test_without_git_the_script_itself_is_kept(
    folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(run))
    assert request.code_state(folder) == {}
    request.keep_code(folder, folder / "train.py", run)
    assert _files(run) == ["train.py"]


def test_a_diff_that_is_data_is_left_out_and_the_script_kept(
    folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "MOST_BYTES", 1000)
    (folder / "train.py").write_text("print(7)\n" * 1000)
    request.keep_code(folder, folder / "train.py", run)
    assert _files(run) == ["train.py"]
