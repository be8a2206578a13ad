"""Let bash read a file between walls: it starts, writes, kills and connects nothing.

A seccomp filter stands between bash and the kernel. What only reads, or is about the process
itself, is let through; a file that is opened for writing becomes `/dev/null`; a program that would
be started is told to `Watcher.starts` and refused; processes are counted; the rest is refused.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import platform
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SECONDS = 2.0  # in which a file that asks, starts and records nothing is given up
_LONGEST = 5.0
_PROCESSES = 400  # subshells of all files that were tried need a tenth
_MEMORY = 1 << 29
_MOST = 4 << 20  # bytes that are recorded
RECORD, REPLY, TOKEN, FREE = 230, 231, 232, 233  # descriptors of the recorder in bash

_NO_NEW_PRIVS, _SET_FILTER = 38, 1
_LISTENER = (1 << 3 | 1 << 5, 1 << 3)  # if it can be: no signal but a deadly one ends a question
_ALLOW, _ERRNO, _ASK, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_RECEIVE, _SEND, _ADD = 0xC0502100, 0xC0182101, 0x40182103
_EPERM, _EACCES, _EAGAIN, _ENOTTY, _ENOSYS, _CONTINUE = 1, 13, 11, 25, 38, 1
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0x400000  # O_TMPFILE
_EMPTY_PATH = 0x1000

# Calls by name: for x86_64 and for aarch64; None where a machine has no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67),
    "readv": (19, 65), "writev": (20, 66), "pipe": (22, None), "select": (23, None),
    "mremap": (25, 216), "madvise": (28, 233), "dup": (32, 23), "dup2": (33, None),
    "pause": (34, None), "nanosleep": (35, 101), "getitimer": (36, 102), "alarm": (37, None),
    "setitimer": (38, 103), "getpid": (39, 172), "exit": (60, 93), "wait4": (61, 260),
    "uname": (63, 160), "fcntl": (72, 25), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169),
    "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153),
    "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177),
    "getppid": (110, 173), "getpgrp": (111, None), "getgroups": (115, 158), "getresuid": (118, 148),
    "getresgid": (120, 150), "getpgid": (121, 155), "getsid": (124, 156),
    "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132),
    "statfs": (137, 43), "fstatfs": (138, 44), "arch_prctl": (158, None), "gettid": (186, 178),
    "futex": (202, 98), "getdents64": (217, 61), "set_tid_address": (218, 96),
    "fadvise64": (221, 223), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "newfstatat": (262, 79),
    "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73),
    "set_robust_list": (273, 99), "dup3": (292, 24), "pipe2": (293, 59), "prlimit64": (302, 261),
    "getrandom": (318, 278), "statx": (332, 291), "rseq": (334, 293), "faccessat2": (439, 439),
    "close_range": (436, 436), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "access": (21, None), "sched_getaffinity": (204, 123),
    "restart_syscall": (219, 128), "waitid": (247, 95), "sendmsg": (46, 211),
}  # fmt: skip
_SPECIAL: dict[str, tuple[int | None, int | None]] = {
    "open": (2, None), "openat": (257, 56), "clone": (56, 220), "clone3": (435, 435),
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "ioctl": (16, 29),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E, 317, 157), "aarch64": (1, 0xC00000B7, 277, 167)}


@dataclass(frozen=True)
class Started:
    """A program that a process behind the wall wanted to start by a path.

    Attributes:
        words: as it was called.
        environment: what it would have had.
    """

    words: tuple[str, ...]
    environment: dict[str, str]


@dataclass
class Watcher:
    """What is done about that which comes from behind the wall.

    Attributes:
        record: takes the fields of a record; what it returns is answered, None is not.
        starts: takes a program that would be started.
    """

    record: Callable[[list[str]], str | None]
    starts: Callable[[Started], None]


@cache
def _call(machine: str, name: str) -> int | None:
    return {**_CALLS, **_SPECIAL}[name][_MACHINES[machine][0]]


def _program(machine: str) -> bytes:
    """The filter, as the kernel takes it."""
    at, arch, _, _ = _MACHINES[machine]
    lines: list[tuple[int, int, int, int]] = [
        (0x20, 0, 0, 4),  # the machine of the call
        (0x15, 1, 0, arch),
        (0x06, 0, 0, _KILL),
        (0x20, 0, 0, 0),  # its number
    ]

    def on(name: str, *then: tuple[int, int, int, int]) -> None:
        number = _SPECIAL[name][at]
        if number is not None:
            lines.append((0x15, 0, len(then), number))
            lines.extend(then)

    def argument(number: int) -> int:
        return 16 + 8 * number

    on("execve", (0x06, 0, 0, _ASK))
    on(
        "execveat",  # by a descriptor alone: how bash itself is started, and never starts anything
        (0x20, 0, 0, argument(4)),
        (0x15, 0, 1, _EMPTY_PATH),
        (0x06, 0, 0, _ALLOW),
        (0x06, 0, 0, _ERRNO | _EACCES),
    )
    for name, flags in (("openat", 2), ("open", 1)):
        on(
            name,
            (0x20, 0, 0, argument(flags)),
            (0x45, 0, 1, _WRITES),
            (0x06, 0, 0, _ASK),
            (0x06, 0, 0, _ALLOW),
        )
    for name in ("clone", "fork", "vfork"):
        on(name, (0x06, 0, 0, _ASK))
    on("clone3", (0x06, 0, 0, _ERRNO | _ENOSYS))
    on("ioctl", (0x06, 0, 0, _ERRNO | _ENOTTY))
    for numbers in _CALLS.values():
        if numbers[at] is not None:
            lines.append((0x15, 0, 1, numbers[at] or 0))
            lines.append((0x06, 0, 0, _ALLOW))
    lines.append((0x06, 0, 0, _ERRNO | _EPERM))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _raise_wall(machine: str, program: bytes) -> int:
    """Put this process behind the wall; return the descriptor by which it asks."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    held = ctypes.create_string_buffer(head, len(head))
    number = _MACHINES[machine][2]
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    libc.syscall.restype = ctypes.c_long
    for flags in _LISTENER:
        listener = libc.syscall(
            ctypes.c_long(number), ctypes.c_long(_SET_FILTER), ctypes.c_long(flags), held
        )
        if listener >= 0:
            return int(listener)
    raise OSError(ctypes.get_errno(), "seccomp")


def run(text: str, words: Sequence[str], environment: Mapping[str, str], watcher: Watcher) -> bool:
    """Let bash execute a text behind the wall; True where it came to its end.

    Raises:
        OSError: there is no wall to be had here, or no bash; nothing was executed.
    """
    machine, bash = platform.machine(), shutil.which("bash")
    if machine not in _MACHINES or bash is None:
        raise OSError(_ENOSYS, "no wall for this machine, or no bash")
    program = _program(machine)
    ours, theirs = socket.socketpair()
    ends = [os.pipe() for _ in range(3)]
    (records, to_us), (to_them, replies), (token, free) = ends
    opened = os.open(bash, os.O_RDONLY)
    null = os.open(os.devnull, os.O_RDWR)

    def enter() -> None:
        for at, fd in ((RECORD, to_us), (REPLY, to_them), (TOKEN, token), (FREE, free)):
            os.dup2(fd, at, inheritable=True)
        limits = (
            (resource.RLIMIT_CPU, int(SECONDS)),
            (resource.RLIMIT_AS, _MEMORY),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        )
        for which, most in limits:
            resource.setrlimit(which, (most, most))
        listener = _raise_wall(machine, program)
        socket.send_fds(theirs, [b"."], [listener])
        called = ["bash", "--norc", "--noprofile", "-c", text, *words]
        os.execve(opened, called, dict(environment))  # noqa: S606

    try:
        os.write(free, b".")
        child = subprocess.Popen(
            [bash],
            stdin=null,
            stdout=null,
            stderr=null,
            start_new_session=True,
            preexec_fn=enter,
        )
    except subprocess.SubprocessError as error:
        raise OSError(_ENOSYS, "no wall is to be had here") from error
    else:
        os.close(to_us)
        to_us = -1
        _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
        try:
            watch = _Watch(machine, listeners[0], records, replies, null, watcher)
            return watch.until(child)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            os.close(listeners[0])
    finally:
        ours.close()
        theirs.close()
        for fd in (records, to_us, to_them, replies, token, free, opened, null):
            if fd >= 0:
                os.close(fd)


class _Watch:
    """What comes from behind the wall, until it ends or its time is over."""

    def __init__(
        self, machine: str, listener: int, records: int, replies: int, null: int, watcher: Watcher
    ) -> None:
        self._machine, self._listener, self._null = machine, listener, null
        self._records, self._replies, self._watcher = records, replies, watcher
        self._forks = self._size = 0
        self._rest = b""

    def until(self, child: subprocess.Popen[bytes]) -> bool:
        end = time.monotonic() + _LONGEST
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._records, select.POLLIN)
        while time.monotonic() < end and self._size < _MOST and self._forks <= _PROCESSES:
            events = dict(poll.poll(SECONDS * 1000))
            if not events:  # it goes round, or waits for what does not come
                return False
            if events.get(self._listener, 0) & select.POLLIN:
                self._asked()
            elif events.get(self._records, 0) & select.POLLIN:
                self._recorded()
            else:  # the last process behind the wall has ended
                child.wait()
                return True
        return False

    def _recorded(self) -> None:
        data = os.read(self._records, 1 << 16)
        self._size += len(data)
        *fields, self._rest = (self._rest + data).split(b"\0")
        at = 0
        while at < len(fields):
            if not fields[at].isdigit() or at + 1 + int(fields[at]) > len(fields):
                break
            first, at = at + 1, at + 1 + int(fields[at])
            reply = self._watcher.record([one.decode(errors="replace") for one in fields[first:at]])
            if reply is not None:
                os.write(self._replies, reply.replace("\0", "").encode()[:4000] + b"\0")
        self._rest = b"\0".join([*fields[at:], self._rest])

    def _asked(self) -> None:
        asked = array.array("B", bytes(80))
        try:
            fcntl.ioctl(self._listener, _RECEIVE, asked)
        except OSError:  # it has ended meanwhile
            return
        number, pid, _, call, _, _, *arguments = struct.unpack("=QIIiIQ6Q", asked.tobytes())
        value, error, flags = 0, 0, 0
        if call in (_call(self._machine, "open"), _call(self._machine, "openat")):
            value, error = self._nothing(number)
        elif call == _call(self._machine, "execve"):
            with suppress(OSError, ValueError):
                self._watcher.starts(_started(pid, arguments[1], arguments[2]))
            error = -_EACCES
        else:
            self._forks += 1
            flags, error = (_CONTINUE, 0) if self._forks <= _PROCESSES else (0, -_EAGAIN)
        with suppress(OSError):
            fcntl.ioctl(self._listener, _SEND, struct.pack("=QqiI", number, value, error, flags))

    def _nothing(self, number: int) -> tuple[int, int]:
        """Give the process that asks a descriptor of /dev/null in place of the file."""
        try:
            entry = array.array("B", struct.pack("=QIIII", number, 0, self._null, 0, 0))
            return fcntl.ioctl(self._listener, _ADD, entry, True), 0
        except OSError:
            return 0, -_EACCES


def _started(pid: int, words: int, environment: int) -> Started:
    """What a process asks the kernel to start, from its memory."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:

        def texts(at: int) -> list[str]:
            found: list[str] = []
            while len(found) < 4096:
                memory.seek(at + 8 * len(found))
                (place,) = struct.unpack("=Q", memory.read(8))
                if not place:
                    break
                text = b""
                while b"\0" not in text and len(text) < 1 << 17:
                    memory.seek(place + len(text))
                    # Not over the end of a page: the next one may not be there.
                    text += memory.read(4096 - (place + len(text)) % 4096)
                found.append(text.partition(b"\0")[0].decode(errors="replace"))
            return found

        pairs = (one.partition("=") for one in texts(environment))
        return Started(tuple(texts(words)), {name: value for name, _, value in pairs})
