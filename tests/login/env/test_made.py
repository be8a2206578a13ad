"""An environment that is made: what a second `create` does, and what moving it does."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rankup import __version__
from rankup.login.env import staleness

from . import index
from .conftest import World

pytestmark = pytest.mark.xdist_group("env")
_SHOW = 'python -c "import rankup, shared; print(rankup.__version__, shared.VERSION)"'


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_activation_works_under_strict_options_from_anywhere(
    made_world: World, tmp_path: Path
) -> None:
    """By another way to the folder, with packages of a loaded module, with words of its own."""
    link = tmp_path / "link"
    link.symlink_to(made_world.project)
    assert staleness(link / "env") == ""
    other = made_world.root / "modules" / "PyTorch"
    done = made_world.bash(
        f'set -euo pipefail; cd /; source "$1"; {_SHOW}; echo "$#"',
        link / "env" / "activate.sh",
        "lock",
        PYTHONPATH=str(other),
    )
    assert done.stdout == f"{__version__} 2.0\n2\n"


def test_a_second_create_does_nothing_and_says_so(made_world: World) -> None:
    """Nor does setup.sh, which needs no rankup."""
    before = _times(made_world.project / "env")
    done = made_world.rankup("env", "create")
    assert done.stdout == "setup.sh: venv/ is up to date\n"
    done = made_world.rankup("env", "create", cwd=made_world.project / "env")  # not env/env
    assert done.stdout == "setup.sh: venv/ is up to date\n"
    done = made_world.bash("cd env/venv; bash ../setup.sh")
    assert done.stdout == "setup.sh: venv/ is up to date\n"
    after = _times(made_world.project / "env")
    assert {path for path in before if before[path] != after.get(path)} == set()
    assert {path.name for path in after.keys() - before.keys()} == set()


def test_a_fresh_environment_is_not_stale_and_nothing_is_run_to_tell(
    made_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rankup run` asks at each submission."""
    folder = made_world.project / "env"

    def refuse(*words: object, **options: object) -> None:
        raise AssertionError(words)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert staleness(folder) == ""
    assert staleness(folder / "activate.sh") == ""


def test_a_copy_is_told_from_its_original(made_world: World, tmp_path: Path) -> None:
    copy = tmp_path / "copy of env"
    shutil.copytree(made_world.project / "env", copy, symlinks=True)
    was = made_world.project / "env" / "venv"
    assert f"was made as {was}, and moved or copied here" in staleness(copy)
    done = made_world.bash('set -eu; source "$1"; echo went on', copy / "activate.sh")
    assert done.returncode == 1
    assert f"was made as {was} and does not work here" in done.stdout
    assert f"bash '{copy}/setup.sh'" in done.stdout
    done = made_world.rankup("env", "check", copy)
    assert done.returncode == 1
    assert "RK541" in done.stdout
    # And one of another architecture.
    stamp = copy / "venv" / ".made"
    text = stamp.read_text().replace(str(made_world.project / "env"), str(copy))
    stamp.write_text(text.replace("machine=", "machine=sparc-"))
    assert "it was made for sparc-" in staleness(copy)
    done = made_world.bash('source "$1"', copy / "activate.sh")
    assert "was made for sparc-" in done.stdout


def test_its_line_is_found_from_below(made_world: World) -> None:
    below = made_world.project / "src" / "model"
    below.mkdir(parents=True, exist_ok=True)
    done = made_world.rankup("env", cwd=below)
    line = f"source '{made_world.project / 'env' / 'activate.sh'}'\n"
    assert done.stdout == line


def test_check_says_what_is_missing(made_world: World) -> None:
    """A requirement that was added and not installed yet, in a lock's company that is older."""
    folder = made_world.project / "env"
    file = folder / "requirements.txt"
    text = file.read_text()
    try:
        file.write_text(f"{text}absent>=3\n")
        (folder / "requirements.lock").write_text("# requirements: 0\n")
        assert "older than its requirements.txt and requirements.lock" in staleness(folder)
        done = made_world.rankup("env", "check")
        activated = made_world.bash("set -eu; source env/activate.sh; echo went on")
    finally:
        file.write_text(text)
        (folder / "requirements.lock").unlink()
    assert done.returncode == 1
    assert "requirements.lock was made from another requirements.txt [RK542]" in done.stdout
    assert "requirements.txt and requirements.lock changed since it was made" in done.stdout
    assert "is older than its requirements" in activated.stdout
    assert activated.stdout.endswith("went on\n")


def test_what_cannot_be_found_leaves_the_environment_as_it_is(made_world: World) -> None:
    """A line more is installed into the venv, a line less makes it anew: neither is begun."""
    folder = made_world.project / "env"
    before = _times(folder / "venv")
    text = (folder / "requirements.txt").read_text()
    try:
        made_world.require("env", ["shared==2.0", "lightning", "no-such-package"])
        done = made_world.bash("bash env/setup.sh")
        shown = made_world.bash(f"set -eu; source env/activate.sh; {_SHOW}")
    finally:
        (folder / "requirements.txt").write_text(text)
    assert done.returncode == 1
    assert "no-such-package" in done.stdout
    assert "venv/ is as it was, and older than requirements.txt" in done.stdout
    assert shown.stdout.endswith(f"{__version__} 2.0\n")
    assert _times(folder / "venv") == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_life_of_one_made_by_pip_in_a_folder_of_an_odd_name(world: World) -> None:
    """bash runs what stands in a prompt as $(...): a name never is."""
    name = "it's [mine] & (yours); #1"
    folder = world.project / name

    def create(**variables: str) -> subprocess.CompletedProcess[str]:
        return world.rankup("env", "create", folder.name, **variables)

    def shown() -> subprocess.CompletedProcess[str]:
        script = f'set -eu; source "$1"; {_SHOW}; echo "${{PS1@P}}"'
        return world.bash(script, f"{folder.name}/activate.sh", PS1="> ")

    world.require(name, ["shared==1.0"])
    create(PATH=str(world.root / "home"))
    with (folder / "config.sh").open("a") as file:
        file.write("ENV_NAME='p$(touch PWN)\"`touch PWN`'\n")
    done = create()
    assert done.returncode == 0, done.stdout
    done = shown()
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(f"{__version__} 1.0\n"), done.stdout
    assert "touch PWN" in done.stdout
    assert not [*world.root.rglob("PWN")]

    # One more package: it alone is installed. One less: a module's would be hidden, so anew.
    made = (folder / "venv" / ".made").stat().st_ino
    world.require(name, ["shared==2.0", "lightning"])
    done = create()
    assert done.returncode == 0, done.stdout
    assert "making venv/" not in done.stdout
    assert (folder / "venv" / ".made").stat().st_ino == made
    assert shown().stdout.startswith(f"{__version__} 2.0\n")
    world.require(name, ["shared==2.0"])
    done = create()
    assert "making venv/: lightning is not asked for any more" in done.stdout
    assert not list((folder / "venv").rglob("site-packages/torch"))

    # Moved, it is made again.
    folder = folder.rename(world.project / "moved")
    done = create()
    assert done.returncode == 0, done.stdout
    assert "making venv/: it was made as" in done.stdout
    assert shown().stdout.startswith(f"{__version__} 2.0\n")

    # It is told where its Python is gone.
    for python in ("python", "python3"):
        (folder / "venv" / "bin" / python).unlink()
    (folder / "venv" / "bin" / "python").symlink_to("/nowhere/python")
    assert "its Python, /nowhere/python, is not there" in staleness(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_clone_is_used_as_it_is_and_noticed_where_it_needs_more(world: World) -> None:
    """With a lock, too, which names all but the clone; in a folder whose name has a space."""
    tree = world.project / "my rankup"
    shutil.copytree(world.source / "rankup", tree / "src" / "rankup")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(index.CHECKOUT / name, tree)
    index.installed(world.index, "setuptools")  # what pip builds it with
    own = replace(world, source=tree / "src")
    folder = world.project / "env"
    show = 'set -eu; source env/activate.sh; python -c "import rankup, {}; print(rankup.__file__)"'
    ours = f"{tree / 'src' / 'rankup' / '__init__.py'}\n"

    done = own.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    assert f"\n-e {tree.as_uri()}[train]\n" in (folder / "requirements.txt").read_text()
    assert world.bash(show.format("simplejpeg")).stdout == ours

    # Its code changes: that is there at once, and nothing is to do.
    (tree / "src" / "rankup" / "news.py").touch()
    assert world.bash(show.format("rankup.news")).stdout == ours
    assert own.rankup("env", "create").stdout == "setup.sh: venv/ is up to date\n"

    # It needs a package more: that is installed.
    project = tree / "pyproject.toml"
    project.write_text(
        project.read_text().replace("dependencies = [", 'dependencies = [ "shared==1.0",', 1)
    )
    assert "older than its requirements.txt" in staleness(folder)
    done = own.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    assert "making venv/" not in done.stdout
    assert world.bash(show.format("shared; assert shared.VERSION == '1.0'")).returncode == 0

    done = own.rankup("env", "lock")
    assert done.returncode == 0, done.stdout
    lock = (folder / "requirements.lock").read_text()
    assert f"\n-e {tree.as_uri()}\n" in lock
    assert "\nshared==1.0 \\\n    --hash=sha256:" in lock
    shutil.rmtree(folder / "venv")
    done = own.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    assert "installing what requirements.lock names" in done.stdout
    assert world.bash(show.format("shared, rankup.news")).stdout == ours
    assert own.rankup("env", "create").stdout == "setup.sh: venv/ is up to date\n"
    assert own.rankup("env", "check").returncode == 0
