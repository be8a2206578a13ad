"""requirements.lock: versions and hashes, and what is installed from it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from . import index
from .conftest import World


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_lock(world: World) -> str:
    """The lock names each package once, `shared` 2.0 and rankup with their hashes."""
    folder = world.project / "env"
    text = (folder / "requirements.lock").read_text()
    names = re.findall(r"^([a-z][\w.-]*)==", text, re.MULTILINE)
    assert sorted(names) == sorted({*names})
    assert {"shared", "rankup"} <= {*names}
    [wheel] = world.index.glob("rankup-*.whl")
    shared = world.index / "shared-2.0-py3-none-any.whl"
    for name, version, file in (
        ("shared", "2.0", shared),
        ("rankup", wheel.name.split("-")[1], wheel),
    ):
        assert re.search(
            rf"^{name}=={re.escape(version)} \\\n +--hash=sha256:{_hash_of(file)}",
            text,
            re.MULTILINE,
        )
    return text


@pytest.mark.slow
def test_a_lock_needs_no_venv_and_goes_stale_with_its_requirements(world: World) -> None:
    world.require("env", ["shared"])
    world.write_files()
    done = world.rankup("env", "lock")
    assert done.returncode == 0, done.stdout
    text = _check_lock(world)
    assert re.search(r"^# for: Python 3\.\d+, \w+, kind wheels, modules.sh -$", text, re.MULTILINE)
    world.require("env", ["shared", "lightning"])
    done = world.rankup("env", "create")
    assert done.returncode == 1
    assert "requirements.lock is stale: requirements.txt has changed since" in done.stdout
    assert not (world.project / "env" / "venv").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_file_that_changed_in_the_index_is_refused(
    world: World,
) -> None:
    """After the lock was written the index has another file of the same version."""
    world.require("env", ["shared"])
    world.write_files()
    assert world.rankup("env", "lock").returncode == 0
    index.wheel(world.index, "shared", "2.0", files={"shared/evil.py": "print('boo')\n"})
    done = world.rankup("env", "create")
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stdout
    assert not (world.project / "env" / "venv" / ".installed").exists()

    index.wheel(world.index, "shared", "2.0")
    index.wheel(world.index, "shared", "3.0")
    done = world.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    assert "installing what requirements.lock names" in done.stdout
    show = 'source env/activate.sh; python -c "import rankup, shared; print(shared.VERSION)"'
    assert world.bash(show).stdout == "2.0\n"
    assert world.rankup("env", "create").stdout == "setup.sh: venv/ is up to date\n"
    assert world.rankup("env", "check").returncode == 0


@pytest.mark.slow
def test_in_the_kind_modules_what_modules_have_is_not_in_the_lock(world: World) -> None:
    world.variables["BASH_ENV"] = str(world.root / "module.sh")
    (world.project / "rankup.toml").write_text('profile = "juwels-booster"\n')
    world.require("env", ["shared==2.0", "lightning"])
    assert world.rankup("env", "create").returncode == 0
    done = world.rankup("env", "lock")
    assert done.returncode == 0, done.stdout
    text = _check_lock(world)
    assert "lightning==1.0" in text
    assert "torch==" not in text
    with (world.project / "env" / "modules.sh").open("a") as file:
        file.write("# another\n")
    done = world.rankup("env", "create")
    assert done.returncode == 1
    assert "requirements.lock is stale: it is for Python" in done.stdout
    assert "Nothing was changed" in done.stdout


@pytest.mark.slow
def test_what_has_no_hash_is_refused(world: World) -> None:
    package = world.project / "mine"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "mine"\nversion = "1"\n'
    )
    index.installed(world.index, "setuptools")
    world.require("env", ["shared==2.0", f"mine @ {package.as_uri()}"])
    world.write_files()
    done = world.rankup("env", "lock")
    assert done.returncode == 1
    assert f"'mine @ {package.as_uri()}' has no hash" in done.stdout
    assert not (world.project / "env" / "requirements.lock").exists()
    assert not [*(world.project / "env").glob(".lock*")]
