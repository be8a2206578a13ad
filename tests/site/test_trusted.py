"""A rankup.toml that anybody may have put there is not taken: what it says is run in jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankup.site import config


def _file(folder: Path, owner: int) -> Path:
    path = folder / "rankup.toml"
    path.write_text('[job]\nenvironment = "evil.sh"\n')
    os.chown(path, owner, -1)
    return path


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_somebody_elses_in_a_folder_for_all_is_ignored_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o1777)
    path = _file(tmp_path, 65534)
    here = tmp_path / "mine"
    here.mkdir()
    assert config.load(here).file is None
    assert f"{path} is somebody else's" in capsys.readouterr().err
    # Nor where a view takes no more than `runs` of a file with a mistake: it is the next one's.
    (here / "rankup.toml").write_text('run = "x"\n')
    (here / "sub").mkdir(mode=0o1777)
    (here / "sub").chmod(0o1777)
    _file(here / "sub", 65534)
    found, why = config.for_views(here / "sub")
    assert (found.file, found.runs) == (here / "rankup.toml", here / "runs")
    assert "unknown key 'run'" in why


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_a_colleagues_in_the_projects_own_folder_counts(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    path = _file(tmp_path, 65534)
    assert config.load(tmp_path).file == path


def test_the_own_one_counts_in_any_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    path = _file(tmp_path, os.getuid())
    assert config.load(tmp_path).file == path
