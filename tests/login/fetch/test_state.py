"""The state folder: private, known to the next fetch when its owner was killed, gone at the end."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rankup.base.errors import UserError
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


def _planted(area: Path, temporary: Path, **changes: object) -> Path:
    """A state folder that somebody else has written."""
    folder = area / "fetch-1-a"
    folder.mkdir()
    own = {"folder": str(folder), "inode": folder.stat().st_ino}
    owner = {"temporary": str(temporary), "caches": [], **own, **changes}
    (folder / state.OWNER).write_text(json.dumps(owner))
    return folder


def test_only_folders_of_ours_are_removed_whatever_the_file_says(tmp_path: Path) -> None:
    precious = tmp_path / "rankup-precious"
    precious.mkdir()
    _planted(tmp_path, precious)
    for left in state.abandoned(tmp_path):
        left.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["rankup-precious"]


@pytest.mark.parametrize("changes", [{"folder": "/elsewhere/fetch-1-a"}, {"inode": 7}])
def test_one_of_another_place_is_neither_undone_nor_removed(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """A project was copied after a kill: the paths in the journal are those of the original."""
    folder = _planted(tmp_path, tmp_path, **changes)
    assert list(state.abandoned(tmp_path)) == []
    assert state.is_foreign(folder)
    assert folder.is_dir()


def test_what_is_no_folder_of_ours_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    ours = tmp_path / ".rankup"
    ours.write_text("in the way")
    with pytest.raises(UserError, match="no folder; remove it"):
        state.area(tmp_path)
    ours.unlink()
    ours.symlink_to(tmp_path)
    with pytest.raises(UserError, match="a link; remove it"):
        state.area(tmp_path)


def test_a_project_that_cannot_be_written_to_has_it_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(state.os, "access", lambda path, mode: False)  # root may do all
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    area = state.area(tmp_path / "project")
    assert area.parent == tmp_path
    assert stat.S_IMODE(area.stat().st_mode) == 0o700
    assert state.area(tmp_path / "project") == area
