"""Setup that is killed, and two at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankup.login.env import staleness

from .conftest import World

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


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not os.path.lexists(path):
        assert time.monotonic() < end, f"{path} has not come"
        time.sleep(0.005)


def _written(world: World) -> None:
    world.require("env", ["shared==2.0"])
    world.write_files()


def test_two_at_once_make_one_environment(world: World) -> None:
    _written(world)
    both = [_start(world), _start(world)]
    said = sorted((one.communicate(timeout=100)[0] for one in both), key=len)
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
    (lock / "1").symlink_to("jwlogin21:4711:99")
    done = world.rankup("env", "create")
    assert done.returncode == 1
    assert "process 4711 on jwlogin21 is at work here" in done.stdout
    assert f"rm -r '{lock}'" in done.stdout
    assert os.readlink(lock / "1") == "jwlogin21:4711:99"


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.2, 0.8, 1.6, 2.4, 3.2, 4.0, "venv/.made", "venv/.names"])
def test_killed_at_any_moment_the_next_one_goes_on(world: World, moment: float | str) -> None:
    _written(world)
    process = _start(world)
    if isinstance(moment, str):
        _wait_for(world.project / "env" / moment)
    else:
        time.sleep(moment)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    folder = world.project / "env"
    if not (folder / "venv" / ".installed").exists():
        done = world.bash("source env/activate.sh")
        assert done.returncode == 1
        assert "is not there or not finished" in done.stdout
        if (folder / "venv" / ".made").exists():
            assert "is not finished" in staleness(folder)
    done = world.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    if isinstance(moment, str):
        assert "making venv/" not in done.stdout, "what was whole was made again"
    assert world.bash(_SHOW).stdout == "2.0\n"
    assert world.rankup("env", "check").returncode == 0
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_only_the_shell_killed_the_next_one_waits_for_what_it_left(world: World) -> None:
    _written(world)
    process = _start(world)
    _wait_for(world.project / "env" / "venv" / "bin" / "python")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(20)
    done = world.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    process.communicate(timeout=20)
    assert world.bash(_SHOW).stdout == "2.0\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_asked_to_end_nothing_is_left_running(world: World, number: int) -> None:
    _written(world)
    source = world.root / "checkout" / "src"
    start = f"import sys; sys.path.insert(0, {str(source)!r}); import rankup.cli as c; c.main()"
    running = subprocess.Popen(
        [sys.executable, "-c", start, "env", "create"],
        cwd=world.project,
        env=world.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _wait_for(world.project / "env" / "venv")
    running.send_signal(number)
    output, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + number, output
    assert not (world.project / "env" / ".lock").exists()
    assert world.rankup("env", "create").returncode == 0
