"""An environment from the package index that this machine has."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from rankup import __version__

from .conftest import World

# What pip says of an index that is out of reach for a moment, or too busy.
_OUT_OF_REACH = re.compile(
    r"error sending request|timed out|connection (?:reset|refused|aborted)|"
    r"\b50\d (?:Server|Internal|Bad|Service|Gateway)",
    re.IGNORECASE,
)


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_from_the_real_index_rankup_runs_in_it(world: World) -> None:
    """Without torch, which is gigabytes: rankup's own dependencies, locked.

    They are installed once, from the lock: bytecode of all of them takes a minute to make.
    """
    for name in [name for name in world.variables if name.startswith(("PIP_", "UV_"))]:
        del world.variables[name]
    settings = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "UV_"))}
    world.variables.update({"PIP_RETRIES": "10"})
    links = f"{settings.get('PIP_FIND_LINKS', '')} {world.source}"  # rankup, as if released
    world.variables.update(settings, PIP_FIND_LINKS=links, HOME=os.environ.get("HOME", "/"))
    world.require("env", ["colorama"])
    world.write_files()
    done = _rankup(world, "env", "lock")
    assert done.returncode == 0, done.stdout
    done = _rankup(world, "env", "create")
    assert done.returncode == 0, done.stdout
    assert "installing what requirements.lock names" in done.stdout
    assert world.bash("set -eu; source env/activate.sh; rankup --version").stdout == (
        f"rankup {__version__}\n"
    )
    done = world.rankup("env", "check")
    assert done.returncode == 0, done.stdout


def _rankup(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command again where it was the index that failed; it may be run any number of times.

    An error of another kind is not tried again.
    """
    for _ in range(2):
        done = world.rankup(*words, timeout=800)
        if done.returncode == 0 or not _OUT_OF_REACH.search(done.stdout):
            return done
    return world.rankup(*words, timeout=800)
