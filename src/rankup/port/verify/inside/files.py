"""Keeps a rank's writing inside of its copy of the project, and records what it writes and prints.

The copy has links to what is large. A link is replaced by what it stands for before something is
written there. Writing anywhere else, other programs and connections to other machines are refused.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import sys
from typing import Any

from ....login.fetch.inside.audit import Handler
from ....login.fetch.inside.journal import Journal
from ....login.fetch.inside.paths import real_path
from .draws import Progress

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT
_SYSTEM = ("/dev/", "/proc/self/", "/sys/")
_COPY_LIMIT = 256 << 20
_MOST = 2000  # printed lines
_LONGEST = 400  # characters of a line


class Files:
    """The handlers of one rank.

    Args:
        folder: the copy, without links.
        free: folders in which anything goes and nothing is recorded.
    """

    def __init__(self, folder: str, free: tuple[str, ...], journal: Journal) -> None:
        self._folder = folder + os.sep
        self._free = tuple(os.path.realpath(one) + os.sep for one in free)
        self._lock = os.path.join(free[0], "links.lock")
        self._journal = journal

    def handlers(self) -> dict[str, Handler]:
        """Audit events and their handlers."""
        return {
            "open": self._opened,
            "os.rename": self._renamed,
            "os.remove": lambda path, fd=-1: self._changed(path, "remove", fd),
            "os.rmdir": lambda path, fd=-1: self._changed(path, "rmdir", fd),
            "shutil.rmtree": lambda path, fd=-1: self._changed(path, "rmtree", fd or -1),
            "os.mkdir": lambda path, mode=0, fd=-1: self._changed(path, "mkdir", fd),
            "os.link": lambda old, path, *fds: self._changed(path, "link"),
            "os.symlink": lambda old, path, *fds: self._changed(path, "link"),
            "os.truncate": lambda path, length: self.written(path, "update"),
            "os.chmod": lambda path, mode=0, fd=-1: self._changed(path, "chmod", fd),
            "os.chown": lambda path, *rest: self._changed(path, "chmod"),
            "os.utime": lambda path, *rest: self._changed(path, "chmod"),
            "subprocess.Popen": lambda program, *rest: self._no_program(program),
            "os.system": self._no_program,
            "os.exec": lambda program, *rest: self._no_program(program),
            "os.posix_spawn": lambda program, *rest: self._no_program(program),
            "socket.connect": self._connected,
            "socket.sendto": self._connected,
        }

    def written(self, path: object, how: str, *, new: bool = False, **_: Any) -> None:
        """A file is about to be written to.

        Raises:
            PermissionError: it lies outside of the copy.
        """
        if isinstance(path, int):
            return
        real = real_path(path, follow=True)
        if not real or real.startswith((*_SYSTEM, *self._free)):
            return
        inside = self._own(os.path.abspath(os.fsdecode(path)), whole=how != "truncate")  # type: ignore[type-var, arg-type]
        if not inside:
            self._refuse(real)
        self._journal.tell("write", path=inside, how=how, where=self._journal.where())

    def _opened(self, path: object, mode: object, flags: int) -> None:
        if flags & _WRITES and not isinstance(path, int):
            if flags & os.O_TRUNC:
                how = "truncate"
            elif flags & os.O_APPEND:
                how = "append"
            elif flags & os.O_ACCMODE:
                how = "update"
            else:
                return
            self.written(path, how)

    def _renamed(self, old: object, new: object, first: int = -1, second: int = -1) -> None:
        self._changed(old, "rename from", first)
        self._changed(new, "rename", second)

    def _changed(self, path: object, how: str, descriptor: int = -1) -> None:
        if isinstance(path, int):
            return
        real = real_path(path, follow=False, descriptor=descriptor)
        if not real or real.startswith((*_SYSTEM, *self._free)):
            return
        if how == "mkdir" and os.path.isdir(real):
            return  # is there already, and the call says so
        # A link of ours that is removed or replaced is only a name: its folder must be the copy's.
        folder, name = os.path.split(real)
        inside = self._own(folder, whole=True)
        if not inside and folder + os.sep != self._folder:
            self._refuse(real)
        name = os.path.join("" if inside in ("", ".") else inside, name)
        self._journal.tell("write", path=name, how=how, where=self._journal.where())

    def _own(self, path: str, *, whole: bool) -> str:
        """The path inside of the copy, once no link of it leads out; empty where it is elsewhere.

        Args:
            whole: what a link stands for is needed; else it is about to be emptied.
        """
        real = os.path.realpath(path)
        if (real + os.sep).startswith(self._folder):
            return os.path.relpath(real, self._folder)
        named = os.path.normpath(path)
        if not (named + os.sep).startswith(self._folder):
            return ""
        with open(self._lock, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            place = self._folder
            for part in os.path.relpath(named, self._folder).split(os.sep):
                place = os.path.join(place, part)
                if os.path.islink(place):
                    self._replace(place, whole=whole)
        real = os.path.realpath(path)
        if (real + os.sep).startswith(self._folder):
            return os.path.relpath(real, self._folder)
        return ""

    def _replace(self, link: str, *, whole: bool) -> None:
        target = os.path.realpath(link)
        if os.path.isdir(target):
            os.unlink(link)
            os.mkdir(link)
            for name in os.listdir(target):
                os.symlink(os.path.join(target, name), os.path.join(link, name))
        elif os.path.isfile(target):
            if whole and os.path.getsize(target) > _COPY_LIMIT:
                self._refuse(target)
            os.unlink(link)
            if whole:
                shutil.copyfile(target, link)

    def _refuse(self, path: str) -> None:
        where = self._journal.where()
        self._journal.tell("refused", what=f"writing {path}", where=where)
        raise PermissionError(
            errno.EACCES, "rankup verify lets a script write only below its own folder", path
        )

    def _no_program(self, program: object, *rest: object) -> None:
        name = os.path.basename(os.fsdecode(program)) if isinstance(program, str | bytes) else ""
        self._journal.tell("refused", what=f"starting {name}", where=self._journal.where())
        raise FileNotFoundError(errno.ENOENT, "rankup verify starts no other program", name)

    def _connected(self, socket: object, address: object, *rest: object) -> None:
        host = address[0] if isinstance(address, tuple) and address else ""
        here = not isinstance(host, str) or host in ("", "::1", "localhost")
        if not here and not host.startswith("127."):
            self._journal.tell("refused", what=f"network: {host}", where=self._journal.where())
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, "rankup verify uses no network; `rankup fetch` the data"
            )


class Lines(io.RawIOBase):
    """Records what is printed; the rest of an endless output is dropped."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._journal = progress, progress.journal
        self._rest = b""
        self._count = 0

    def install(self) -> None:
        """Be `sys.stdout`."""
        stream = io.TextIOWrapper(
            io.BufferedWriter(self), encoding="utf-8", errors="replace", write_through=True
        )
        stream.reconfigure(line_buffering=True)
        sys.stdout = sys.__stdout__ = stream  # type: ignore[misc]

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """That of stdout: for those that ask how wide it is."""
        return 1

    def write(self, data: Any) -> int:
        """Record the lines that are whole."""
        given = bytes(data)
        *lines, rest = (self._rest + given).split(b"\n")
        self._rest = rest[-_LONGEST:]
        for line in lines:
            self._record(line)
        return len(given)

    def finish(self) -> None:
        """Record what has no line end."""
        if self._rest:
            self._record(self._rest)
            self._rest = b""

    def _record(self, line: bytes) -> None:
        self._count += 1
        if self._count == _MOST:
            self._progress.note(f"printed lines: only {_MOST} are compared")
        if self._count < _MOST:
            # Of a bar drawn over and over the last state counts.
            text = line.rpartition(b"\r")[2] if not line.endswith(b"\r") else line
            shown = text.decode("utf-8", "replace")[:_LONGEST]
            fields = {"phase": self._progress.phase, "bar": text is not line}
            self._journal.tell("line", text=shown, **fields)
