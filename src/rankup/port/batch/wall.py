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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_SECONDS = (
    2  # of the CPU for a process; and in which one that sleeps, and asks nothing, is given up
)
_LONGEST = 20.0  # however much else the machine has to do
_PROCESSES = 400  # subshells of all files that were tried need a tenth
_MEMORY = 1 << 29
_MOST = 4 << 20  # bytes that are recorded
_RECORD, _REPLY, _TOKEN, _FREE = 230, 231, 232, 233  # descriptors of the recorder in bash

_NO_NEW_PRIVS, _SET_FILTER = 38, 1
_LISTENER = (1 << 3 | 1 << 5, 1 << 3)  # if it can be: no signal but a deadly one ends a question
_RECEIVE, _SEND, _ADD = 0xC0502100, 0xC0182101, 0x40182103
_EPERM, _EACCES, _EAGAIN, _ENOTTY, _ENOSYS, _CONTINUE = 1, 13, 11, 25, 38, 1
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0x400000  # O_TMPFILE
_EMPTY_PATH = 0x1000

# For a machine: its column in the table of calls, its name and its number of `seccomp`.
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
# Calls by name: for x86_64 and for aarch64; None where a machine has no such call.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
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

# Lines of the filter: code, where to go on if true and if false, operand.
_Lines = tuple[tuple[int, int, int, int], ...]


def _load(offset: int) -> _Lines:
    return ((0x20, 0, 0, offset),)


def _unless(code: int, operand: int) -> _Lines:
    """Pass over the next line where the loaded word is not equal to, or has no bit of, this."""
    return ((code, 0, 1, operand),)


def _end(verdict: int) -> _Lines:
    return ((0x06, 0, 0, verdict),)


def _refuse(error: int) -> _Lines:
    return _end(0x00050000 | error)


_EQUAL, _BITS = 0x15, 0x45
_ALLOW, _ASK, _KILL = _end(0x7FFF0000), _end(0x7FC00000), _end(0x80000000)


def _asked_if_written(flags: int) -> _Lines:
    """A file that is opened for writing, by the argument of that number, is asked about."""
    return (*_load(16 + 8 * flags), *_unless(_BITS, _WRITES), *_ASK, *_ALLOW)


# Calls that are asked about, and others with a verdict of their own.
_JUDGED: dict[str, tuple[tuple[int | None, int | None], _Lines]] = {
    "open": ((2, None), _asked_if_written(1)),
    "openat": ((257, 56), _asked_if_written(2)),
    "execve": ((59, 221), _ASK),
    # By a descriptor alone: how bash itself is started, and never starts anything.
    "execveat": (
        (322, 281),
        (*_load(16 + 8 * 4), *_unless(_EQUAL, _EMPTY_PATH), *_ALLOW, *_refuse(_EACCES)),
    ),
    "clone": ((56, 220), _ASK),
    "fork": ((57, None), _ASK),
    "vfork": ((58, None), _ASK),
    "clone3": ((435, 435), _refuse(_ENOSYS)),
    "ioctl": ((16, 29), _refuse(_ENOTTY)),
}


def _filter(column: int, arch: int) -> bytes:
    """The filter, as the kernel takes it."""
    lines = [*_load(4), (_EQUAL, 1, 0, arch), *_KILL, *_load(0)]
    calls = [*_JUDGED.values(), *((numbers, _ALLOW) for numbers in _ALLOWED.values())]
    for numbers, then in calls:
        if (number := numbers[column]) is not None:
            lines += [(_EQUAL, 0, len(then), number), *then]
    lines += _refuse(_EPERM)
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _raise_wall(number: int, program: bytes) -> int:
    """Put this process behind the wall; return the descriptor by which it asks."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    held = ctypes.create_string_buffer(head, len(head))
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


class Watcher(Protocol):
    """What is done about that which comes from behind the wall."""

    def record(self, fields: list[str]) -> str:
        """Take the fields of a record; return what bash is answered."""

    def starts(self, words: list[str], environment: dict[str, str]) -> None:
        """Take a program that would be started by a path, and what its environment would be."""


def run(
    text: str, words: Sequence[str], environment: Mapping[str, str], watcher: Watcher
) -> int | None:
    """Let bash execute a text behind the wall; its exit status, None where it did not end.

    Raises:
        OSError: there is no wall to be had here, or no bash; nothing was executed.
    """
    machine, bash = platform.machine(), shutil.which("bash")
    if machine not in _MACHINES or bash is None:
        raise OSError(_ENOSYS, "no wall for this machine, or no bash")
    column, arch, seccomp = _MACHINES[machine]
    program = _filter(column, arch)
    ours, theirs = socket.socketpair()
    (records, to_us), (to_them, replies), (token, free) = (os.pipe() for _ in range(3))
    opened = os.open(bash, os.O_RDONLY)
    null = os.open(os.devnull, os.O_RDWR)

    def enter() -> None:
        for at, fd in ((_RECORD, to_us), (_REPLY, to_them), (_TOKEN, token), (_FREE, free)):
            os.dup2(fd, at, inheritable=True)
        for which, most in (
            (resource.RLIMIT_CPU, _SECONDS),
            (resource.RLIMIT_AS, _MEMORY),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(which, (most, most))
        listener = _raise_wall(seccomp, program)
        socket.send_fds(theirs, [b"."], [listener])
        called = ["bash", "--norc", "--noprofile", "-c", text, *words]
        os.execve(opened, called, dict(environment))  # noqa: S606

    try:
        os.write(free, b".")
        os.set_blocking(replies, False)
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
        _, [listener], _, _ = socket.recv_fds(ours, 1, 1)
        try:
            return _Watch(column, listener, records, replies, null, watcher).until(child)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            os.close(listener)
    finally:
        ours.close()
        theirs.close()
        for fd in (records, to_us, to_them, replies, token, free, opened, null):
            if fd >= 0:
                os.close(fd)


class _Watch:
    """What comes from behind the wall, until it ends or its time is over."""

    def __init__(
        self, column: int, listener: int, records: int, replies: int, null: int, watcher: Watcher
    ) -> None:
        self._calls = {numbers[column]: name for name, (numbers, _) in _JUDGED.items()}
        self._listener, self._null = listener, null
        self._records, self._replies, self._watcher = records, replies, watcher
        self._forks = self._size = 0
        self._rest = b""

    def until(self, child: subprocess.Popen[bytes]) -> int | None:
        end = time.monotonic() + _LONGEST
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._records, select.POLLIN)
        while time.monotonic() < end and self._size < _MOST and self._forks <= _PROCESSES:
            events = dict(poll.poll(_SECONDS * 1000))
            if not events:
                if _runs(child.pid):  # until its time of the CPU is over
                    continue
                return None  # it waits for what does not come
            if events.get(self._listener, 0) & select.POLLIN:
                self._asked()
            elif events.get(self._records, 0) & select.POLLIN:
                self._recorded()
            else:  # the last process behind the wall has ended
                status = child.wait()
                return status if status >= 0 else None
        return None

    def _recorded(self) -> None:
        data = os.read(self._records, 1 << 16)
        self._size += len(data)
        *fields, self._rest = (self._rest + data).split(b"\0")
        at = 0
        while at < len(fields):
            if not fields[at].isdigit() or at + 1 + int(fields[at]) > len(fields):
                break
            first, at = at + 1, at + 1 + int(fields[at])
            words = [text.decode(errors="replace") for text in fields[first:at]]
            reply = self._watcher.record(words).replace("\0", "").encode()[:4000]
            with suppress(BlockingIOError):  # a file that writes here by itself, and reads nothing
                os.write(self._replies, reply + b"\0")
        self._rest = b"\0".join([*fields[at:], self._rest])

    def _asked(self) -> None:
        asked = array.array("B", bytes(80))
        try:
            fcntl.ioctl(self._listener, _RECEIVE, asked)
        except OSError:  # it has ended meanwhile
            return
        number, pid, _, call, _, _, *arguments = struct.unpack("=QIIiIQ6Q", asked.tobytes())
        value, error, flags = 0, 0, 0
        name = self._calls.get(call, "")
        if name in ("open", "openat"):
            value, error = self._nothing(number)
        elif name == "execve":
            with suppress(OSError, ValueError):
                self._watcher.starts(*_started(pid, arguments[1], arguments[2]))
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


def _runs(session: int) -> bool:
    """True where a process of a session computes, or would if it had a CPU."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, of, *_ = path.read_text().rpartition(")")[2].split()
            if int(of) == session and state in "RD":
                return True
    return False


def _started(pid: int, words: int, environment: int) -> tuple[list[str], dict[str, str]]:
    """What a process asks the kernel to start, from its memory."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:

        def texts(at: int) -> list[str]:
            listed: list[str] = []
            while len(listed) < 4096:
                memory.seek(at + 8 * len(listed))
                (place,) = struct.unpack("=Q", memory.read(8))
                if not place:
                    break
                text = b""
                while b"\0" not in text and len(text) < 1 << 17:
                    memory.seek(place + len(text))
                    # Not over the end of a page: the next one may not be there.
                    text += memory.read(4096 - (place + len(text)) % 4096)
                listed.append(text.partition(b"\0")[0].decode(errors="replace"))
            return listed

        pairs = (text.partition("=") for text in texts(environment))
        return texts(words), {name: value for name, _, value in pairs}
