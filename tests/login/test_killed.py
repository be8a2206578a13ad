"""A fetch that was killed is told of until the next one has put its script's files back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankup.login.fetch import events, state
from rankup.login.killed import killed


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a fetch of `train.py --lr 1` that had two files of the user's aside."""
    monkeypatch.chdir(tmp_path)
    kept = state.make(state.area(tmp_path), ())
    kept.write_spec({"script": str(tmp_path / "train.py"), "args": ["--lr", "1"]})
    lines = []
    for name in ("results.csv", "gone.txt", "model.pt"):
        path, backup = tmp_path / name, tmp_path / f".{name}.rankup-x"
        path.write_text("of the fetch")
        if name != "gone.txt":  # its backup has been put back already
            backup.write_text("of the user")
        values = {"path": str(path), "existed": True, "size": 11, "how": "truncate"}
        lines.append({"event": "open", "time": 1.0, "pid": 7, "backup": str(backup), **values})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (kept.folder / events.FILE).write_text(text)
    return kept.folder


def _lock(project: Path, pid: int, node: str = "", age: float = 0) -> None:
    path = project / ".rankup" / ".project.lock"
    path.write_text(json.dumps({"node": node or os.uname().nodename, "pid": pid}))
    os.utime(path, (time.time() - age,) * 2)


def test_it_is_named_with_its_files_and_the_command(tmp_path: Path, left: Path) -> None:
    [one] = killed(tmp_path)
    assert one.what == (
        "an earlier fetch of train.py was killed, and 2 files are as it left them: "
        "model.pt, results.csv"
    )
    assert one.todo == "rankup fetch train.py --lr 1 puts back what was there before"
    before = sorted(tmp_path.rglob("*"))
    list(killed(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before, "looking changes nothing"


def test_without_one_nothing_is_said(tmp_path: Path) -> None:
    assert list(killed(tmp_path)) == []


def test_of_a_copied_project_nothing_is_promised(tmp_path: Path, left: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / ".rankup", copy / ".rankup")
    [one] = killed(copy)
    assert one.what.endswith("is of a fetch in another folder, from which this one was copied")
    assert one.todo == f"rm -r {copy}/.rankup/{left.name}"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"script": 3, "args": 7}'])
def test_one_that_had_hardly_begun_is_told_of_all_the_same(left: Path, text: str) -> None:
    (left / state.OWNER).unlink()
    (left / "spec.json").write_text(text)
    [one] = killed(left.parent.parent)
    assert one.what == "an earlier fetch was killed"
    assert one.todo == "rankup fetch SCRIPT clears up after it"


def test_one_that_goes_on_is_none(tmp_path: Path, left: Path) -> None:
    _lock(tmp_path, os.getpid())
    assert list(killed(tmp_path)) == []
    _lock(tmp_path, os.getpid(), age=100)
    assert len(list(killed(tmp_path))) == 1, "its lock would have been renewed"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(20)
    _lock(tmp_path, ended.pid)
    assert len(list(killed(tmp_path))) == 1
    _lock(tmp_path, ended.pid, node="elsewhere")
    assert list(killed(tmp_path)) == [], "of another node only the lock's age is known"
