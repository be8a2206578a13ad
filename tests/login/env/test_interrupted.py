"""Setup that is killed, and two at once."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import socket
import subprocess
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


def _wait_for(folder: Path, pattern: str) -> None:
    end = time.monotonic() + 300
    while not glob.glob(pattern, root_dir=folder):
        assert time.monotonic() < end, f"{pattern} has not come"
        time.sleep(0.002)


def _written(world: World) -> None:
    world.require("env", ["shared==2.0"])
    world.write_files()


@pytest.mark.slow
def test_two_at_once_make_one_environment(world: World) -> None:
    """A wheel of an older rankup goes once the newer one is installed, and not before."""
    world.require("env", ["shared==2.0"])
    old = world.project / "env" / "wheels" / "rankup-0.0.1+aa-py3-none-any.whl"
    old.parent.mkdir()
    old.write_bytes(b"another process may be installing it")
    os.utime(old, (1e9, 1e9))
    world.write_files()
    assert old.exists()
    both = [_start(world), _start(world)]
    said = sorted((one.communicate(timeout=300)[0] for one in both), key=len)
    assert [one.returncode for one in both] == [0, 0]
    assert "waiting for process" in said[0]
    assert said[0].endswith("setup.sh: venv/ is up to date\n")
    assert "setup.sh: making venv/: it is not there" in said[1]
    assert world.bash(_SHOW).stdout == "2.0\n"
    assert not [path for path in (world.project / "env").iterdir() if path.name.startswith(".")]
    assert not old.exists()
    assert len(list(old.parent.iterdir())) == 1


_SLOW_LINK = """\
#!/bin/bash
if mkdir "$ROOT/once" 2>/dev/null; then
    mv -T "$LOCK" "$LOCK.given-back"
    mkdir "$LOCK"
    "$LN" -sT "$OWNER" "$LOCK/1"
fi
exec "$LN" "$@"
"""


@pytest.mark.slow
def test_a_lock_that_changed_hands_between_look_and_link_is_not_taken_twice(world: World) -> None:
    """The first owner is dead. Before our link is made a second takes the lock, gives it back, and
    a third, who lives, takes it."""
    _written(world)
    lock = world.project / "env" / ".lock"
    lock.mkdir()
    (lock / "1").symlink_to(f"{socket.gethostname()}:{2**22 + 1}:1")
    (world.root / "bin" / "ln").write_text(_SLOW_LINK)
    (world.root / "bin" / "ln").chmod(0o755)
    third = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        fields = Path(f"/proc/{third.pid}/stat").read_text().rpartition(") ")[2].split()
        world.variables.update(
            ROOT=str(world.root),
            LOCK=str(lock),
            LN=str(shutil.which("ln")),
            OWNER=f"{socket.gethostname()}:{third.pid}:{fields[19]}",
        )
        process = _start(world)
        try:
            assert process.stdout is not None
            assert f"waiting for process {third.pid}" in process.stdout.readline()
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=100)
        assert [path.name for path in lock.iterdir()] == ["1"]
    finally:
        third.kill()
        third.wait(100)


@pytest.mark.slow
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
def test_killed_at_any_moment_the_next_one_goes_on(world: World) -> None:
    _written(world)
    process = _start(world)
    _wait_for(world.project / "env", "venv/lib/python*/site-packages/rankup")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=100)
    folder = world.project / "env"
    if not (folder / "venv" / ".installed").exists():
        done = world.bash("source env/activate.sh")
        assert done.returncode == 1
        assert "is not there or not finished" in done.stdout
        if (folder / "venv" / ".made").exists():
            assert "is not finished" in staleness(folder)
    done = world.rankup("env", "create")
    assert done.returncode == 0, done.stdout
    assert "making venv/" not in done.stdout, "what was whole was made again"
    assert world.bash(_SHOW).stdout == "2.0\n"
    assert world.rankup("env", "check").returncode == 0
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_asked_to_end_nothing_is_left_running(world: World) -> None:
    _written(world)
    running = subprocess.Popen(
        [*world.command, "env", "create"],
        cwd=world.project,
        env=world.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _wait_for(world.project, "env/venv")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 128 + signal.SIGINT, output
    assert not (world.project / "env" / ".lock").exists()
