"""Setup that is killed, and two at once."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rankup.login.env import staleness

from .conftest import World
from .index import CHECKOUT

_SHOW = 'set -eu; source env/activate.sh; python -c "import rankup, shared; print(shared.VERSION)"'


def _start(world: World) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "env/setup.sh"],
        cwd=world.project,
        env=world.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _wait_for(folder: Path, pattern: str) -> None:
    end = time.monotonic() + 300
    while not glob.glob(pattern, root_dir=folder):
        assert time.monotonic() < end, f"{pattern} has not come"
        time.sleep(0.002)


def _written(world: World) -> None:
    world.require("env", ["shared==2.0"])
    world.write_files()


def _wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 300
    with suppress(psutil.NoSuchProcess):  # it may go at any moment
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, f"process {pid} is still there"
            time.sleep(0.002)


# A pip that hangs, as on a slow line.
_HANGS = """\
#!/bin/bash
echo $$ >"$0.new" && mv "$0.new" "$0.pid"
exec sleep 600
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_or_asked_to_end_nothing_of_it_runs_on(world: World, number: int) -> None:
    _written(world)
    config = world.project / "env" / "config.sh"
    hangs = world.root / "hangs"
    hangs.write_text(_HANGS)
    hangs.chmod(0o755)
    with config.open("a") as file:
        file.write(f"ENV_PYTHON={hangs}\n")
    running = subprocess.Popen(
        [*world.command, "env", "create"],
        cwd=world.project,
        env=world.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _wait_for(world.root, "hangs.pid")
    pip = int((world.root / "hangs.pid").read_text())
    group = os.getpgid(pip)
    running.send_signal(number)
    running.wait(300)
    assert running.stdout is not None
    running.stdout.close()
    _wait_until_gone(pip)
    _wait_until_gone(group)
    assert running.returncode == (130 if number == signal.SIGINT else -number)
    # The next one begins at once.
    with config.open("a") as file:
        file.write("ENV_KIND=none\n")
    done = world.bash("bash env/setup.sh")
    assert "ENV_KIND is 'none'" in done.stdout


def test_a_check_that_is_asked_to_end_leaves_nothing_running(world: World) -> None:
    _written(world)
    folder = world.project / "env"
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "venv" / ".made").write_text(
        f"path={folder / 'venv'}\nkind=wheels\nmachine={platform.machine()}\n"
    )
    (folder / "venv" / ".installed").write_text("name=env\n")
    hangs = world.root / "hangs"
    hangs.write_text(_HANGS)
    with (folder / "config.sh").open("a") as file:
        file.write(f"bash '{hangs}'\n")
    running = subprocess.Popen(
        [*world.command, "env", "check"],
        cwd=world.project,
        env=world.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_for(world.root, "hangs.pid")
    running.terminate()
    assert running.wait(300) == 128 + signal.SIGTERM
    _wait_until_gone(int((world.root / "hangs.pid").read_text()))


@pytest.mark.parametrize("comes_from", ["release", "tree"])
def test_killed_while_pip_waits_for_the_index_pip_ends_too(world: World, comes_from: str) -> None:
    """Of a source tree it is a child of pip's that asks the index, for what builds it."""
    if comes_from == "tree":
        tree = world.root / "tree"
        shutil.copytree(world.source / "rankup", tree / "src" / "rankup")
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(CHECKOUT / name, tree)
        world = replace(world, source=tree / "src")
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(300)
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        running = subprocess.Popen(
            [*world.command, "env", "create"],
            cwd=world.project,
            env={
                **world.variables,
                "PIP_NO_INDEX": "",
                "PIP_FIND_LINKS": "",
                "PIP_INDEX_URL": url,
                "PIP_DEFAULT_TIMEOUT": "3000",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        connection, _ = index.accept()
        with connection:
            connection.settimeout(300)
            assert connection.recv(1)
            running.kill()
            running.wait(300)
            with suppress(ConnectionError):
                while connection.recv(65536):  # until the other side has closed it
                    pass


@pytest.mark.slow
def test_two_at_once_make_one_environment(world: World) -> None:
    _written(world)
    both = [_start(world), _start(world)]
    said = sorted((one.communicate(timeout=300)[0] for one in both), key=len)
    assert [one.returncode for one in both] == [0, 0]
    assert "waiting for process" in said[0]
    assert said[0].endswith("setup.sh: venv/ is up to date\n")
    assert "setup.sh: making venv/: it is not there" in said[1]
    assert world.bash(_SHOW).stdout == "2.0\n"
    assert not [path for path in (world.project / "env").iterdir() if path.name.startswith(".")]


def test_a_lock_of_another_host_is_named(world: World) -> None:
    _written(world)
    lock = world.project / "env" / ".lock"
    lock.mkdir()
    (lock / "owner").write_text("jwlogin21:4711\n")
    done = world.rankup("env", "create")
    assert done.returncode == 1
    assert "process 4711 on jwlogin21 is at work here" in done.stdout
    assert f"rm -r '{lock}'" in done.stdout
    assert (lock / "owner").read_text() == "jwlogin21:4711\n"


@pytest.mark.slow
def test_killed_at_any_moment_the_next_one_makes_it_whole(world: World) -> None:
    _written(world)
    process = _start(world)
    _wait_for(world.project / "env", "venv/lib/python*/site-packages/rankup")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=100)
    folder = world.project / "env"
    whole = (folder / "venv" / ".installed").exists()
    if not whole:
        done = world.bash("source env/activate.sh")
        assert done.returncode == 1
        assert "is not there or not finished" in done.stdout
        if (folder / "venv" / ".made").exists():
            assert "is not finished" in staleness(folder)
    done = world.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    assert ("making venv/: it was not finished" in done.stdout) != whole
    assert world.bash(_SHOW).stdout == "2.0\n"
    assert world.rankup("env", "check").returncode == 0
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
