"""The holder of a lock: a process that others on this host can look for."""

from __future__ import annotations

import getpass
import json
import math
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        token: random, of this one lock.
        host: node, boot and process namespace, within which `pid` means something.
        start: of the process, in clock ticks since boot: numbers of processes are used again.
        since: when the lock was made, in seconds of the node's clock; 0: not known.
    """

    token: str
    node: str
    host: str
    pid: int
    start: int
    user: str
    since: float = 0.0


def myself() -> Holder:
    """This process, for one lock."""
    return process(os.getpid())


def process(pid: int) -> Holder:
    """A process of this host, which others can see end."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        user = str(os.getuid())
    node = os.uname().nodename
    start = _start(pid) or 0
    return Holder(secrets.token_hex(8), node, host(), pid, start, user, round(time.time(), 3))


def host() -> str:
    """Within this, a process number means one process: a boot of a node, and its namespace."""
    try:
        return f"{_boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"unknown/{os.uname().nodename}/{secrets.token_hex(8)}"


def boot() -> str:
    """Return what changes when the machine starts anew; empty where it is not known."""
    try:
        return _boot_id()
    except OSError:
        return ""


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def ended(holder: Holder) -> bool:
    """Return True if the process is gone; to be asked on its host alone."""
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # another user's, so it is there
        pass
    start = _start(holder.pid)
    return start is not None and start != holder.start


def _start(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot; -1 for a zombie, None where hidden."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        words = text.rpartition(")")[2].split()
        return -1 if words[0] in ("Z", "X") else int(words[19])
    except (OSError, IndexError, ValueError):
        return None


def who(holder: Holder | None) -> str:
    """In words."""
    if holder is None:
        return "another process"
    return f"process {holder.pid} of {holder.user} on {holder.node}"


def since(holder: Holder) -> str:
    """Return the time of its lock, in words."""
    try:
        return time.strftime("%H:%M:%S on %Y-%m-%d", time.localtime(holder.since))
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def parse(text: str) -> Holder | None:
    """Return who has written this into a lock; None where it makes no sense."""
    try:
        holder = Holder(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    words = (holder.token, holder.node, holder.host, holder.user)
    sound = all(isinstance(word, str) for word in words) and all(
        type(number) is int for number in (holder.pid, holder.start)
    )
    if not isinstance(holder.since, int | float) or not math.isfinite(holder.since):
        return None
    return holder if sound and holder.pid > 0 else None
