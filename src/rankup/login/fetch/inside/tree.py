"""Processes of the script's tree as /proc shows them: which they are, what they hold open."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

# They clean up shared memory after the others, and end by themselves.
CARETAKERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
_LISTENING = "0A"


def members(root: int) -> list[int]:
    """The process `root` (id) with its descendants, and its session's where `root` leads one."""
    parents, sessions = {}, {}
    for name in _names("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            parents[int(name)], sessions[int(name)] = stat
    leads = sessions.get(root) == root
    found = {root} | {pid for pid, session in sessions.items() if leads and session == root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found & set(parents))


def kill(pids: list[int]) -> None:
    """End these processes at once, but this one and those that clean up after them."""
    for pid in pids:
        if pid != os.getpid() and not _is_caretaker(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def written_by(pids: list[int]) -> set[str]:
    """Regular files that these processes hold open for writing."""
    found = set()
    for pid in pids:
        for number in _names(f"/proc/{pid}/fd"):
            path = _link(f"/proc/{pid}/fd/{number}")
            if path.startswith("/") and os.path.isfile(path) and _writes(pid, number):
                found.add(path)
    return found


def listening_ports(pids: list[int]) -> set[int]:
    """TCP ports that these processes listen on."""
    sockets = {
        _link(f"/proc/{pid}/fd/{number}") for pid in pids for number in _names(f"/proc/{pid}/fd")
    }
    return {port for inode, port in _listeners() if f"socket:[{inode}]" in sockets}


def _listeners() -> Iterator[tuple[str, int]]:
    for name in ("tcp", "tcp6"):
        for line in _read(f"/proc/self/net/{name}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3].decode() == _LISTENING:
                yield words[9].decode(), int(words[1].rpartition(b":")[2], 16)


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and session."""
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(words[1]), int(words[3])) if len(words) > 3 else None


def _is_caretaker(pid: int) -> bool:
    command = _read(f"/proc/{pid}/cmdline")
    return any(name.encode() in command for name in CARETAKERS)


def _writes(pid: int, number: str) -> bool:
    for line in _read(f"/proc/{pid}/fdinfo/{number}").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
