"""The kind `wheels`: what is made, what a second `create` does, what moving it does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rankup import __version__
from rankup.login.env import staleness

from .conftest import ONLY_PIP, World

_SHOW = 'python -c "import rankup, shared; print(rankup.__version__, shared.VERSION)"'


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_activation_works_under_strict_options_from_anywhere(wheels_world: World) -> None:
    activate = wheels_world.project / "env" / "activate.sh"
    done = wheels_world.bash(f'set -euo pipefail; cd /; source "$1"; {_SHOW}', activate)
    assert done.stdout == f"{__version__} 2.0\n"


def test_a_script_that_sources_it_keeps_its_own_words(wheels_world: World) -> None:
    done = wheels_world.bash('set -eu; source env/activate.sh; echo "$# $1"', "lock")
    assert done.stdout == "1 lock\n"


def test_packages_of_other_work_do_not_shadow_the_environment(wheels_world: World) -> None:
    """A module that the user loaded in the shell has put its packages on PYTHONPATH."""
    other = wheels_world.root / "modules" / "PyTorch"
    done = wheels_world.bash(f"set -eu; source env/activate.sh; {_SHOW}", PYTHONPATH=str(other))
    assert done.stdout == f"{__version__} 2.0\n"


def test_a_second_create_does_nothing_and_says_so(wheels_world: World) -> None:
    before = _times(wheels_world.project / "env")
    done = wheels_world.rankup("env", "create")
    assert done.stdout == "setup.sh: venv/ is up to date\n"
    after = _times(wheels_world.project / "env")
    assert {path for path in before if before[path] != after.get(path)} == set()
    assert {path.name for path in after.keys() - before.keys()} == set()


def test_setup_needs_no_rankup(wheels_world: World) -> None:
    done = wheels_world.bash("bash env/setup.sh; cd env/venv; bash ../setup.sh")
    assert done.stdout == "setup.sh: venv/ is up to date\n" * 2


def test_a_fresh_environment_is_not_stale_and_nothing_is_run_to_tell(
    wheels_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rankup run` asks at each submission."""
    folder = wheels_world.project / "env"

    def refuse(*words: object, **options: object) -> None:
        raise AssertionError(words)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert staleness(folder) == ""
    assert staleness(folder / "activate.sh") == ""


def test_a_copy_is_told_from_its_original(wheels_world: World, tmp_path: Path) -> None:
    copy = tmp_path / "copy of env"
    shutil.copytree(wheels_world.project / "env", copy, symlinks=True)
    was = wheels_world.project / "env" / "venv"
    assert f"was made as {was}, and moved or copied here" in staleness(copy)
    done = wheels_world.bash('set -eu; source "$1"; echo went on', copy / "activate.sh")
    assert done.returncode == 1
    assert f"was made as {was} and does not work here" in done.stdout
    assert f"bash '{copy}/setup.sh'" in done.stdout
    done = wheels_world.rankup("env", "check", copy)
    assert done.returncode == 1
    assert "RK541" in done.stdout


def test_another_way_to_the_same_folder_is_no_move(wheels_world: World, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(wheels_world.project)
    assert staleness(link / "env") == ""
    done = wheels_world.bash(f'set -eu; source "$1"; {_SHOW}', link / "env" / "activate.sh")
    assert done.stdout == f"{__version__} 2.0\n"


def test_one_of_another_architecture_is_told(wheels_world: World, tmp_path: Path) -> None:
    copy = tmp_path / "env"
    shutil.copytree(wheels_world.project / "env", copy, symlinks=True)
    stamp = copy / "venv" / ".made"
    text = stamp.read_text().replace(str(wheels_world.project / "env"), str(copy))
    stamp.write_text(text.replace("machine=", "machine=sparc-"))
    assert "it was made for sparc-" in staleness(copy)
    done = wheels_world.bash('source "$1"', copy / "activate.sh")
    assert "was made for sparc-" in done.stdout


def test_its_line_is_found_from_below(wheels_world: World) -> None:
    below = wheels_world.project / "src" / "model"
    below.mkdir(parents=True, exist_ok=True)
    done = wheels_world.rankup("env", cwd=below)
    line = f"source '{wheels_world.project / 'env' / 'activate.sh'}'\n"
    assert done.stdout == line


def test_check_says_what_is_missing(world: World, wheels_world: World) -> None:
    """A requirement that was added and not installed yet, in a lock's company that is older."""
    folder = wheels_world.project / "env"
    file = folder / "requirements.txt"
    text = file.read_text()
    try:
        file.write_text(f"{text}absent>=3\n")
        (folder / "requirements.lock").write_text("# requirements: 0\n")
        assert "older than its requirements.txt and requirements.lock" in staleness(folder)
        done = wheels_world.rankup("env", "check")
        activated = wheels_world.bash("set -eu; source env/activate.sh; echo went on")
        again = wheels_world.rankup("env", "create")
    finally:
        file.write_text(text)
        (folder / "requirements.lock").unlink()
    assert done.returncode == 1
    for code in ("RK542", "RK543", "RK546"):
        assert f"[{code}]" in done.stdout
    assert "asks for absent>=3: it is not installed" in done.stdout
    assert "is older than its requirements" in activated.stdout
    assert activated.stdout.endswith("went on\n")
    assert again.returncode == 1
    assert "requirements.lock is stale" in again.stdout


@pytest.mark.parametrize("lines", [["shared==2.0", "no-such-package"], ["no-such-package"]])
def test_what_cannot_be_found_leaves_the_environment_as_it_is(
    wheels_world: World, lines: list[str]
) -> None:
    """A line more is installed into the venv, a line less makes it anew: neither is begun."""
    folder = wheels_world.project / "env"
    before = _times(folder / "venv")
    text = (folder / "requirements.txt").read_text()
    try:
        wheels_world.require("env", lines)
        done = wheels_world.rankup("env", "create")
        shown = wheels_world.bash(f"set -eu; source env/activate.sh; {_SHOW}")
    finally:
        (folder / "requirements.txt").write_text(text)
    assert done.returncode == 1
    assert "no-such-package" in done.stdout
    assert "venv/ is as it was, and older than requirements.txt" in done.stdout
    assert shown.stdout.endswith(f"{__version__} 2.0\n")
    assert _times(folder / "venv") == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("lines", [["shared==2.0", "no-such-package"], ["no-such-package"]])
def test_the_same_with_pip_and_with_a_lock(world: World, lines: list[str]) -> None:
    world.require("env", ["shared==2.0"])
    assert world.rankup("env", "create", **ONLY_PIP).returncode == 0
    world.require("env", lines)
    done = world.rankup("env", "create", **ONLY_PIP)
    assert "venv/ is as it was, and older than requirements.txt" in done.stdout
    assert world.bash(f"source env/activate.sh; {_SHOW}").stdout.endswith("2.0\n")
    if len(lines) > 1:
        return  # the lock takes a line out as well
    world.require("env", ["shared==1.0"])
    assert world.rankup("env", "lock").returncode == 0
    (world.index / "shared-1.0-py3-none-any.whl").unlink()
    done = world.rankup("env", "create", UV_CACHE_DIR=str(world.root / "another cache"))
    assert done.returncode == 1, done.stdout
    assert "venv/ is as it was, and older than requirements.lock" in done.stdout
    assert world.bash(f"source env/activate.sh; {_SHOW}").stdout.endswith("2.0\n")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, ONLY_PIP])
def test_a_name_is_never_run_and_odd_paths_work(world: World, settings: dict[str, str]) -> None:
    """bash runs what stands in a prompt as $(...)."""
    folder = "it's [mine] & (yours); #1"
    world.require(folder, ["shared==2.0"])
    world.rankup("env", "create", folder, PATH=str(world.root / "home"))
    with (world.project / folder / "config.sh").open("a") as file:
        file.write("ENV_NAME='p$(touch PWN)\"`touch PWN`'\n")
    done = world.rankup("env", "create", folder, **settings)
    assert done.returncode == 0, done.stdout
    by_pip = "installing with pip: its settings say where packages come from" in done.stdout
    assert by_pip == bool(settings)
    done = world.bash(
        f'set -eu; source "$1"; {_SHOW}; echo "${{PS1@P}}"', f"{folder}/activate.sh", PS1="> "
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(f"{__version__} 2.0\n"), done.stdout
    assert "touch PWN" in done.stdout
    assert not [*world.root.rglob("PWN")]


@pytest.mark.slow
def test_moved_it_is_made_again_and_works(world: World) -> None:
    world.require("env", ["shared==2.0"])
    assert world.rankup("env", "create").returncode == 0
    (world.project / "env").rename(world.project / "moved")
    done = world.rankup("env", "create", "moved")
    assert "making venv/: it was made as" in done.stdout
    done = world.bash(f"set -eu; source moved/activate.sh; {_SHOW}")
    assert done.stdout == f"{__version__} 2.0\n"


@pytest.mark.slow
def test_after_a_change_only_what_changed_is_done(world: World) -> None:
    """One more package: it alone is installed. One less: a module's would be hidden, so anew."""
    world.require("env", ["shared==1.0"])
    assert world.rankup("env", "create").returncode == 0
    made = (world.project / "env" / "venv" / ".made").stat().st_ino
    world.require("env", ["shared==2.0", "lightning"])
    done = world.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    assert "making venv/" not in done.stdout
    assert (world.project / "env" / "venv" / ".made").stat().st_ino == made
    assert world.bash(f"source env/activate.sh; {_SHOW}").stdout == f"{__version__} 2.0\n"
    world.require("env", ["shared==2.0"])
    done = world.rankup("env", "create")
    assert "making venv/: lightning is not asked for any more" in done.stdout
    assert not list((world.project / "env" / "venv").rglob("site-packages/torch"))


@pytest.mark.slow
def test_a_python_that_is_gone_is_replaced(world: World) -> None:
    world.require("env", ["shared==2.0"])
    assert world.rankup("env", "create").returncode == 0
    folder = world.project / "env"
    for name in ("python", "python3"):
        (folder / "venv" / "bin" / name).unlink()
    (folder / "venv" / "bin" / "python").symlink_to("/nowhere/python")
    assert "its Python, /nowhere/python, is not there" in staleness(folder)
    done = world.rankup("env", "create")
    assert "making venv/: its Python does not start any more" in done.stdout
    assert world.bash(f"source env/activate.sh; {_SHOW}").stdout == f"{__version__} 2.0\n"
