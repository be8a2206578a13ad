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

from rankup.sandbox import namespace

from ..login.web import Web

REFUSED = namespace.refusal() if sys.platform == "linux" else "network namespaces are Linux's"
needs_namespace = pytest.mark.skipif(
    bool(REFUSED) and os.environ.get("CI") != "true", reason=f"not allowed here: {REFUSED}"
)


def _run(program: str, *, network: bool = False) -> subprocess.CompletedProcess[str]:
    words = namespace.command([sys.executable, "-c", program], network=network)
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@needs_namespace
def test_it_has_the_users_files_a_loopback_of_its_own_and_no_network(
    web: Web, tmp_path: Path
) -> None:
    url = web.put("/x", b"x")
    asks = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=60).read())"
    assert _run(asks, network=True).stdout == "b'x'\n"
    program = (
        "import os, socket, urllib.request\n"
        "listening = socket.create_server(('127.0.0.1', 0))\n"
        "with socket.create_connection(listening.getsockname(), timeout=60) as one:\n"
        "    one.sendall(b'here'); print(listening.accept()[0].recv(9))\n"
        "print(socket.if_nameindex()[0][1])\n"
        f"open({str(tmp_path / 'x')!r}, 'w'); print(os.getuid(), os.getgid())\n"
        "for address in (('192.0.2.1', 80), ('127.0.0.1', " + str(web.port) + ")):\n"
        "    try: socket.create_connection(address, timeout=600)\n"
        "    except OSError as error: print(error.strerror)\n"
    )
    done = _run(program)
    assert done.stdout.splitlines() == [
        "b'here'",
        "lo",
        f"{os.getuid()} {os.getgid()}",
        "Network is unreachable",
        "Connection refused",
    ], done.stderr
    found = (tmp_path / "x").stat()
    assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    assert len(web.requests("/x")) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_user_without_rights_gets_one_and_keeps_his_files(tmp_path: Path) -> None:
    """Root becomes somebody else once Python runs, which others perhaps cannot read."""
    folder = tmp_path / "his"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    program = (
        "import ctypes, os, socket, sys\n"
        "from rankup.sandbox import namespace\n"
        f"os.chdir({str(folder)!r}); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # /proc/self is his again, as after an exec\n"
        "try: namespace.leave_network()\n"
        "except OSError as error: sys.exit(f'refused: {error}')\n"
        "open('x', 'w').close()\n"
        "print(os.getuid(), os.getgid(), [name for _, name in socket.if_nameindex()])\n"
        "one = socket.create_server(('127.0.0.1', 0))\n"
        "socket.socket().connect(one.getsockname())"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.stderr.startswith("refused:") and os.environ.get("CI") != "true":
        pytest.skip(f"user namespaces are not for all here: {done.stderr}")
    assert done.stdout == "65534 65534 ['lo']\n", done.stderr
    assert ((folder / "x").stat().st_uid, done.returncode) == (65534, 0)


FAMILY = """
import os, subprocess, sys, time

def tell(pid):
    with open(sys.argv[1], "a") as file:
        print(pid, file=file)

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        tell(os.getpid())
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
tell(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
tell(os.getpid())
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent death signal is Linux's")
@needs_namespace
def test_it_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path) -> None:
    """So does what it has started, also a daemon that has emptied its environment."""
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(FAMILY, encoding="utf-8")
    parent_program = (
        "import subprocess, sys\n"
        "from rankup.sandbox import namespace\n"
        f"words = [sys.executable, {str(script)!r}, {str(pids)!r}]\n"
        "subprocess.Popen(namespace.command(words, network=False)).wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_program])
    try:
        until = time.monotonic() + 120
        while not pids.is_file() or pids.read_text().count("\n") < 3:
            assert time.monotonic() < until, "the program did not start"
            time.sleep(0.05)
        processes = [psutil.Process(int(word)) for word in pids.read_text().split()]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(60)
    _, left = psutil.wait_procs(processes, timeout=60)
    try:
        assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        for one in left:
            one.kill()


@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 6)", -6)]
)
def test_its_end_is_that_of_the_command(program: str, code: int) -> None:
    assert _run(program, network=True).returncode == code
