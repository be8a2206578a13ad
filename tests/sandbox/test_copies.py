"""Copies of a project: what they hold, what of them goes back, and that nothing of them is left."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.sandbox import copies
from rankup.sandbox.copies import sandbox


def _write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a script below it and a folder beside it."""
    top = tmp_path / "work" / "project"
    _write(top / "src/train.py")
    _write(top / "data/large.bin", "x" * (2 << 20))
    _write(tmp_path / "work/shared/set.bin")
    _write(top / ".git/config")
    _write(top / ".venv/pyvenv.cfg")
    _write(top / ".venv/bin/python")
    return top


def test_what_is_small_is_copied_and_what_is_large_or_beside_is_a_link(project: Path) -> None:
    area = copies.area(project)
    with sandbox(area, [project]) as box:
        copy = box.inside(project)
        assert (copy / "src/train.py").read_text() == "x"
        assert not (copy / "src/train.py").is_symlink()
        assert (copy / "data/large.bin").resolve() == project / "data/large.bin"
        assert (copy / "../shared/set.bin").resolve() == project.parent / "shared/set.bin"
        assert (copy / ".venv/bin/python").exists(), "a script may start it"
        assert sorted(path.name for path in copy.iterdir()) == [".venv", "data", "src"]
        assert box.new_files() == []
        for folder in (box.folder, box.temporary):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(str(box.temporary)) < 60, "sockets in it need a short path"
        (box.inside(project) / "closed").mkdir(mode=0o000)
    assert not box.temporary.exists()
    assert [path.name for path in area.iterdir()] == [".gitignore"]
    assert (project / "data/large.bin").exists()


def test_a_folder_of_very_many_files_is_one_link(project: Path) -> None:
    many = project / "many"
    many.mkdir()
    for number in range(4500):
        (many / str(number)).touch()
    with sandbox(copies.area(project), [project]) as box:
        assert box.inside(many).is_symlink()
        assert (box.inside(project) / "src/train.py").is_file()


def test_a_copy_that_lies_in_the_project_does_not_hold_itself(project: Path) -> None:
    """As where TMPDIR is a folder of it."""
    area = project / "tmp"
    area.mkdir()
    with sandbox(area, [project]) as box:
        assert list(box.inside(area).iterdir()) == []


def test_new_files_move_in_and_take_no_name_that_is_taken(project: Path) -> None:
    with sandbox(copies.area(project), [project]) as box:
        copy = box.inside(project)
        for name in ("data/new/a.bin", "data/taken.bin", "data/large.bin"):
            (copy / name).unlink(missing_ok=True)
            _write(copy / name, "new")
        os.symlink("a.bin", copy / "data/new/latest")
        os.symlink(copy / "data/new/a.bin", copy / "data/new/whole")
        _write(project / "data/taken.bin", "of another process")
        names = ("new/a.bin", "new/latest", "new/whole", "taken.bin")
        paths = [str(project / "data" / name) for name in names]
        assert sorted(box.new_files()) == paths[:3]
        [problem] = box.move_in(paths)
    assert problem == f"{paths[3]} is there by now, and stays as it is"
    assert (project / "data/new/a.bin").read_text() == "new"
    assert os.readlink(project / "data/new/latest") == "a.bin"
    assert os.readlink(project / "data/new/whole") == paths[0], "it was one of the copy"
    assert (project / "data/taken.bin").read_text() == "of another process"
    assert (project / "data/large.bin").stat().st_size == 2 << 20


def test_where_a_file_has_one_name_only_or_lies_on_another_disk_it_moves_as_well(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: object, target: object) -> None:
        raise OSError(os.strerror(1)) if os.path.lexists(str(target)) else PermissionError(1, "no")

    monkeypatch.setattr(copies.os, "link", link)
    with sandbox(copies.area(project), [project]) as box:
        _write(box.inside(project / "new.bin"), "new")
        assert box.move_in([str(project / "new.bin")]) == []
    assert (project / "new.bin").read_text() == "new"


def test_what_can_be_neither_linked_nor_renamed_is_copied(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of one file system that have quotas of their own answer so."""

    def apart(name: str) -> None:
        original = getattr(os, name)

        def call(source: object, target: object, **rest: object) -> None:
            if ".rankup" in str(source) and ".rankup" not in str(target):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            original(source, target, **rest)

        monkeypatch.setattr(copies.os, name, call)

    for name in ("link", "rename", "replace"):
        apart(name)
    with sandbox(copies.area(project), [project]) as box:
        _write(box.inside(project / "new.bin"), "new")
        assert box.move_in([str(project / "new.bin")]) == []
    assert (project / "new.bin").read_text() == "new"
    assert sorted(path.name for path in project.iterdir() if path.is_file()) == ["new.bin"]


def test_what_a_killed_one_has_left_is_swept_with_its_processes(project: Path) -> None:
    """But not the temporary files of a project from which this one was copied."""
    area = copies.area(project)
    program = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from rankup.sandbox import copies\n"
        "project = Path(sys.argv[1])\n"
        "with copies.sandbox(copies.area(project), [project]) as box:\n"
        "    variables = {**os.environ, 'RANKUP_SANDBOX': str(box.folder)}\n"
        "    words = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "    child = subprocess.Popen(words, env=variables, stdout=-3, stderr=-3)\n"
        "    print(box.folder, box.temporary, child.pid, flush=True)\n"
        "    os._exit(1)\n"
    )
    words = [sys.executable, "-c", program, str(project)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    folder, temporary, pid = done.stdout.split()
    copied = project.parent / "copied" / ".rankup"
    copied.mkdir(parents=True)
    (copied / Path(folder).name).mkdir()
    copies.sweep(copied)
    assert list(copied.iterdir()) == []
    assert (Path(folder).is_dir(), Path(temporary).is_dir()) == (True, True)
    copies.sweep(area)
    assert (Path(folder).exists(), Path(temporary).exists()) == (False, False)
    assert "State:\tZ" in _status(int(pid)) or not _status(int(pid))
    assert (project / "data/large.bin").exists()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@pytest.mark.parametrize("worktree", [False, True])
def test_git_writes_into_a_repository_of_the_copy(tmp_path: Path, *, worktree: bool) -> None:
    """It would find the user's from there, which lies above the copy."""

    def git(folder: Path, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(folder), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    top = tmp_path / "top"
    _write(top / "project/train.py")
    git(tmp_path, "init", "-q", str(top))
    git(top, "add", ".")
    git(top, "commit", "-qm", "first")
    if worktree:
        git(top, "worktree", "add", "-q", str(tmp_path / "other"))
    project = (tmp_path / "other" if worktree else top) / "project"
    before = {path: path.read_bytes() for path in (top / ".git").rglob("*") if path.is_file()}
    with sandbox(copies.area(project), [project]) as box:
        copy = box.inside(project)
        assert git(copy, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
        os.utime(copy / "train.py", (1, 1))
        git(copy, "status")
        _write(copy / "train.py", "other")
        assert "+other" in git(copy, "diff")
        git(copy, "commit", "-qam", "second")
        git(copy, "tag", "of-the-copy")
        assert box.new_files() == []
    after = {path: path.read_bytes() for path in (top / ".git").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_history_of_a_shallow_clone_can_be_read_in_a_copy(tmp_path: Path) -> None:
    def git(folder: Path, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(folder), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    top, project = tmp_path / "top", tmp_path / "clone"
    git(tmp_path, "init", "-q", str(top))
    for message in ("first", "second"):
        git(top, "commit", "-q", "--allow-empty", "-m", message)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{top}", str(project))
    with sandbox(copies.area(project), [project]) as box:
        assert git(box.inside(project), "log", "--format=%s") == "second\n"


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return ""


def test_what_is_no_folder_of_ours_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    ours = tmp_path / ".rankup"
    ours.write_text("in the way")
    with pytest.raises(UserError, match="no folder; remove it"):
        copies.area(tmp_path)
    ours.unlink()
    ours.symlink_to(tmp_path)
    with pytest.raises(UserError, match="a link; remove it"):
        copies.area(tmp_path)


def test_a_project_that_cannot_be_written_to_has_it_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(copies.os, "access", lambda path, mode: False)  # root may do all
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    area = copies.area(tmp_path / "project")
    assert area.parent == tmp_path
    assert stat.S_IMODE(area.stat().st_mode) == 0o700
    assert copies.area(tmp_path / "project") == area
