"""An environment from the package index that this machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankup import __version__

from .conftest import make_world


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_the_real_index_rankup_runs_in_it(tmp_path: Path) -> None:
    """Without torch, which is gigabytes: rankup's own dependencies, locked, and a kernel.

    They are installed once, from the lock: bytecode of all of them takes a minute to make.
    """
    world = make_world(tmp_path)
    for name in [name for name in world.variables if name.startswith(("PIP_", "UV_"))]:
        del world.variables[name]
    settings = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "UV_"))}
    world.variables.update(settings, HOME=os.environ.get("HOME", "/"))
    world.variables["JUPYTER_DATA_DIR"] = str(tmp_path / "jupyter")
    world.require("env", ["colorama"])
    world.write_files("--kernel")
    done = world.rankup("env", "lock", timeout=250)
    assert done.returncode == 0, done.stdout
    done = world.rankup("env", "create", "--kernel", timeout=250)
    assert done.returncode == 0, done.stdout
    assert "installing what requirements.lock names" in done.stdout
    assert world.bash("set -eu; source env/activate.sh; rankup --version").stdout == (
        f"rankup {__version__}\n"
    )
    done = world.bash("source env/activate.sh; python -m ipykernel_launcher --version")
    assert done.returncode == 0, done.stdout
    done = world.rankup("env", "check")
    assert done.returncode == 0, done.stdout
