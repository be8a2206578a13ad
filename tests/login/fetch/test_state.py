"""The state folder: private, known to the next fetch when its owner was killed, gone at the end."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rankup.login.fetch import state


def test_a_state_is_private_and_goes_without_a_trace(tmp_path: Path) -> None:
    area = state.area(tmp_path)
    assert (area, (area / ".gitignore").read_text()) == (tmp_path / ".rankup", "*\n")
    kept = state.make(area, (tmp_path / "cache",))
    kept.write_spec({"script": "/x.py"})
    for folder in (kept.folder, kept.temporary):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(str(kept.temporary)) < 60, "sockets in it need a short path"
    assert list(state.abandoned(area)) == [kept]
    kept.remove()
    assert not kept.temporary.exists()
    assert [path.name for path in area.iterdir()] == [".gitignore"]


def test_one_that_was_killed_before_it_began_is_removed(tmp_path: Path) -> None:
    (tmp_path / "fetch-1-a").mkdir()
    assert list(state.abandoned(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_only_folders_of_ours_are_removed_whatever_the_file_says(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    folder = tmp_path / "fetch-1-a"
    folder.mkdir()
    owner = {"temporary": str(precious), "caches": []}
    (folder / state.OWNER).write_text(json.dumps(owner))
    for left in state.abandoned(tmp_path):
        left.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_project_that_cannot_be_written_to_has_it_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/.rankup").write_text("in the way")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    area = state.area(tmp_path / "project")
    assert area.parent == tmp_path
    assert stat.S_IMODE(area.stat().st_mode) == 0o700
    assert state.area(tmp_path / "project") == area
