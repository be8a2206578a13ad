"""What a user may get wrong: the message says what was found, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from rankup import __version__
from rankup.base.errors import RunFailed, UserError
from rankup.login.env import create, state

from .conftest import World


def test_without_bash_it_is_said(world: World) -> None:
    done = world.rankup("env", "create", PATH=str(world.root / "home"))
    assert (done.returncode, "Traceback" in done.stdout) == (1, False), done.stdout
    assert "rankup: bash cannot be started" in done.stdout, done.stdout


def test_without_an_environment_and_with_a_wrong_kind(world: World) -> None:
    for words, said in (
        ((), "make one with: rankup env create"),
        (("check",), "make one with: rankup env create"),
        (("lock",), "make one with: rankup env create"),
        (("check", "nowhere"), "is no environment: it has no activate.sh"),
        (("create", "--kind", "conda"), "it is modules or wheels"),
        (("create", "--kind", "modules"), "no modules are known"),
    ):
        done = world.rankup("env", *words)
        assert done.returncode == 2, done.stdout
        assert said in done.stdout
        assert "Traceback" not in done.stdout
    assert not (world.project / "env").exists()
    world.write_files()
    done = world.rankup("env", "create", "--kind", "modules")
    assert done.returncode == 2
    assert "says ENV_KIND=wheels, and --kind modules; change it there" in done.stdout


def test_a_site_with_modules_and_no_module_command_is_said(world: World) -> None:
    """`sudo`, an IDE or cron start shells that have none: it would be wheels without a word."""
    (world.project / "rankup.toml").write_text('profile = "juwels-booster"\n')
    nowhere = str(world.root / "home")  # without bash, so that nothing is made
    for words, said in (([], 1), (["other", "--kind", "wheels"], 0)):
        done = world.rankup("env", "create", *words, PATH=nowhere)
        assert done.stdout.count("note: JUWELS Booster") == said, done.stdout
        assert ("there is no `module` command here" in done.stdout) == bool(said)
    assert "ENV_KIND=wheels" in (world.project / "env" / "config.sh").read_text()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        ("touch env", "is a file"),
        ("mkdir env; touch env/pyvenv.cfg", "is a venv itself"),
        ("mkdir env; touch env/model.py", "is not empty and no environment"),
    ],
)
def test_a_folder_that_is_something_else(world: World, make: str, expected: str) -> None:
    world.bash(make)
    before = sorted(world.project.rglob("*"))
    done = world.rankup("env", "create")
    assert (done.returncode, expected in done.stdout) == (2, True), done.stdout
    assert sorted(world.project.rglob("*")) == before


def test_a_path_that_activate_would_run_or_path_cannot_hold(world: World) -> None:
    """Also where setup.sh was copied to without rankup."""
    world.write_files()
    for name in ("a:b", "v$(touch PWN)", "v`touch PWN`", 'v"x', "v\\x", "a\nb"):
        done = world.rankup("env", "create", name)
        assert (done.returncode, "name another folder" in done.stdout) == (2, True), name
        assert not (world.project / name).exists()
        shutil.copytree(world.project / "env", world.project / name)
        done = world.bash('bash "$1/setup.sh"', name)
        assert done.returncode == 1
        assert "choose another folder" in done.stdout
        assert not [*world.root.rglob("PWN")]
        assert not (world.project / name / "venv").exists()


def test_a_full_disk_is_no_mistake_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFailed, match="No space left on device"):
        create(None, kind="wheels")


def test_files_of_the_user_stay_and_changed_ones_are_named(world: World) -> None:
    folder = world.project / "env"
    world.write_files()
    mine = {"requirements.txt": "shared\n", "modules.sh": "# mine\n", "config.sh": "ENV_KIND=no\n"}
    for name, text in mine.items():
        (folder / name).write_text(text)
    (folder / "setup.sh").write_text("#!/bin/bash\necho my own; exit 1\n")
    (folder / "activate.sh").unlink()
    done = world.rankup("env", "create")
    assert done.returncode == 1
    assert f"note: {folder / 'setup.sh'} has been changed and stays" in done.stdout
    assert f"note: {folder / 'requirements.txt'} does not ask for rankup" in done.stdout
    assert f"Its line: rankup[train]=={__version__}\n" in done.stdout
    assert "my own\n" in done.stdout
    assert {name: (folder / name).read_text() for name in mine} == mine
    assert (folder / "activate.sh").exists()


def test_another_version_of_rankup_is_named_and_a_path_may_be_rankups(world: World) -> None:
    world.write_files()
    requirements = world.project / "env" / "requirements.txt"
    for line, said in (
        ("rankup[train, hf]==0.1", "asks for rankup 0.1, and this is"),
        ("./wheels/mine.whl", ""),
        ("rankup>=0.1", ""),
        (f"rankup == {__version__} ; python_version > '3'", ""),
    ):
        requirements.write_text(f"{line}\n")
        done = world.rankup("env", "create", PATH=str(world.root / "home"))  # no bash
        assert ("note:" in done.stdout, said in done.stdout) == (bool(said), True), done.stdout


def test_in_a_job_without_network_it_names_the_login_node(world: World) -> None:
    world.require("env", ["absent"])
    world.write_files()
    done = world.rankup("env", "lock", SLURM_JOB_ID="4711")
    assert done.returncode == 1
    assert "absent" in done.stdout
    assert "This is job 4711, and compute nodes often have no network" in done.stdout
    assert "run it on the login node: bash" in done.stdout


def test_a_strangers_environment_in_a_folder_for_all_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "env"
    folder.mkdir()
    for name in ("activate.sh", "config.sh"):
        (folder / name).touch()
    monkeypatch.chdir(tmp_path)
    assert state.existing(None) == folder
    tmp_path.chmod(0o777)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    if (folder / "activate.sh").stat().st_uid == 0:  # root's files are everybody's to use
        assert state.existing(None) == folder
        os.chown(folder / "activate.sh", 999, 999)
    with pytest.raises(UserError, match="no environment"):
        state.existing(None)
