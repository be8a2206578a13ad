"""Run a program that ends with the parent, and with it all it has started; if asked, offline.

    python -c "... from rankup.sandbox.namespace import main ..." WORD PARENT COMMAND ...

WORD is `network`, `no-network` or `try` (leave the network, do nothing else). A network namespace
of its own has a loopback and no other way out. Needs Linux: root, or user namespaces for all.

This process waits for the command, and ends all that it has started once the parent has ended: the
kernel would end a child, and not what that has started.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from ..base.processes import die_with, python
from .inside.spec import STATE
from .processes import Tree, orphans_come_here

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 0x1
_INTERFACE = "16sh14x"  # struct ifreq: a name, then flags
_LOOK = 0.2  # seconds between two looks at the parent


def command(words: Sequence[str], *, network: bool) -> list[str]:
    """The command that starts `words` as a program which ends with this process."""
    word = "network" if network else "no-network"
    return python(__name__, word, str(os.getpid()), *words)


def refusal(timeout: float = 30.0) -> str:
    """Return why no program can be started without a network here; nothing where it can."""
    try:
        done = subprocess.run(
            python(__name__, "try", str(os.getpid())),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it could not be tried: {error}"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def main() -> int:
    """The program; its exit code is the command's."""
    word, parent, *words = sys.argv[1:]
    if word != "network":
        try:
            leave_network()
        except (OSError, AttributeError) as error:
            print(f"no network namespace: {error}", file=sys.stderr)
            return 1
    if word == "try":
        return 0
    with orphans_come_here() as others:
        # In a session of its own: the command may stop or end its whole group.
        process = subprocess.Popen(
            words, start_new_session=True, preexec_fn=partial(die_with, os.getpid())
        )
        while os.getppid() == int(parent):
            with suppress(subprocess.TimeoutExpired):
                return _end_like(process.wait(_LOOK))
        Tree(os.environ.get(STATE, ""), others).kill()
    return 128 + signal.SIGKILL


def _end_like(code: int) -> int:
    """Return an exit code; a signal that ended the command ends this process as well."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # of SIGKILL there is no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def leave_network() -> None:
    """Move this process, of one thread, into a network namespace with nothing but a loopback.

    Files keep their owner: without root the user namespace maps the user to himself.

    Raises:
        OSError: the kernel or its administrator does not allow it.
    """
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack(_INTERFACE, b"lo", 0)
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked)
        name, flags = struct.unpack(_INTERFACE, answer)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_INTERFACE, name, flags | _IFF_UP))


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.unshare came with Python 3.12
    if libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
