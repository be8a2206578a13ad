"""A program without a network: it has a loopback of its own and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rankup.login.fetch import alone

from ..web import Web

REFUSED = alone.refusal() if sys.platform == "linux" else "network namespaces are Linux's"
needs_namespace = pytest.mark.skipif(
    bool(REFUSED) and os.environ.get("CI") != "true", reason=f"not allowed here: {REFUSED}"
)


def _run(program: str, *, network: bool = False) -> subprocess.CompletedProcess[str]:
    words = alone.command([sys.executable, "-c", program], network=network)
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@needs_namespace
def test_the_web_on_this_machines_loopback_is_not_there(web: Web) -> None:
    url = web.put("/x", b"x")
    program = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=20).read())"
    assert _run(program, network=True).stdout == "b'x'\n"
    failed = _run(program)
    assert failed.returncode == 1
    assert "Connection refused" in failed.stderr
    assert len(web.requests("/x")) == 1


@needs_namespace
def test_a_program_reaches_itself_over_the_loopback() -> None:
    program = (
        "import socket\n"
        "listening = socket.create_server(('127.0.0.1', 0))\n"
        "with socket.create_connection(listening.getsockname(), timeout=20) as one:\n"
        "    one.sendall(b'here'); print(listening.accept()[0].recv(9))\n"
        "print(socket.if_nameindex()[0][1])\n"
    )
    assert _run(program).stdout.splitlines() == ["b'here'", "lo"]


@needs_namespace
def test_an_address_beyond_is_out_of_reach_at_once() -> None:
    program = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=30)"
    started = time.monotonic()
    failed = _run(program)
    assert "Network is unreachable" in failed.stderr
    assert time.monotonic() - started < 20


@needs_namespace
def test_files_are_the_users(tmp_path: Path) -> None:
    done = _run(f"import os; open({str(tmp_path / 'x')!r}, 'w'); print(os.getuid(), os.getgid())")
    assert done.stdout.split() == [str(os.getuid()), str(os.getgid())], done.stderr
    found = (tmp_path / "x").stat()
    assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_user_without_rights_gets_one_and_keeps_his_files(tmp_path: Path) -> None:
    """Root becomes somebody else once Python runs, which others perhaps cannot read."""
    folder = tmp_path / "his"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    program = (
        "import ctypes, os, socket, sys\n"
        "from rankup.login.fetch import alone\n"
        f"os.chdir({str(folder)!r}); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # /proc/self is his again, as after an exec\n"
        "try: alone.leave_network()\n"
        "except OSError as error: sys.exit(f'refused: {error}')\n"
        "open('x', 'w').close()\n"
        "print(os.getuid(), os.getgid(), [name for _, name in socket.if_nameindex()])\n"
        "one = socket.create_server(('127.0.0.1', 0))\n"
        "socket.socket().connect(one.getsockname())"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.stderr.startswith("refused:") and os.environ.get("CI") != "true":
        pytest.skip(f"user namespaces are not for all here: {done.stderr}")
    assert done.stdout == "65534 65534 ['lo']\n", done.stderr
    assert ((folder / "x").stat().st_uid, done.returncode) == (65534, 0)


def test_a_refusal_is_said_in_a_line() -> None:
    """As on a kernel that lets nobody have a namespace."""
    refuse = (
        "import ctypes, errno\n"
        "from rankup.login.fetch import alone\n"
        "def unshare(flags):\n"
        "    raise PermissionError(errno.EPERM, 'unshare: Operation not permitted')\n"
        "alone._unshare = unshare\n"
        "import sys; sys.argv = ['-c', 'try', '0']; sys.exit(alone.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", refuse], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("no network namespace: [Errno 1] unshare: Operation not permitted\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent death signal is Linux's")
@pytest.mark.parametrize("network", [True, pytest.param(False, marks=needs_namespace)])
def test_it_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path, network: bool) -> None:
    child = tmp_path / "child"
    program = f"import os, time; open({str(child)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent_program = (
        "import subprocess, sys\n"
        "from rankup.login.fetch import alone\n"
        f"words = alone.command([sys.executable, '-c', {program!r}], network={network})\n"
        "subprocess.Popen(words).wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_program])
    try:
        until = time.monotonic() + 30
        while not (child.is_file() and child.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        process = psutil.Process(int(child.read_text()))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(20)
    psutil.wait_procs([process], timeout=20)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
