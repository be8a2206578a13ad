"""Keeps what the script would overwrite, cut or remove, so that the parent can put it back.

An old file is renamed aside before it is emptied or removed: that costs nothing, whatever its size.
Each step is in the journal before it is done. A kill in between leaves either a file as it was or a
backup that the journal names.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from .journal import Journal
from .made import Made
from .paths import aside, real_path

COPY_LIMIT = 64 << 20
How = Literal["create", "truncate", "append", "update"]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT
_SYSTEM = ("/dev/", "/proc/", "/sys/")


class Outputs:
    """What the handlers of file events do.

    Args:
        token: part of the names of backups, `.NAME.rankup-TOKEN`.
        folders: what lies in them needs no protection: the state folder, that of temporary files.
    """

    def __init__(self, journal: Journal, made: Made, token: str, folders: Iterable[str]) -> None:
        self._journal = journal
        self._made = made
        self._suffix = f".rankup-{token}"
        self._ignored = (*_SYSTEM, *(os.path.realpath(one) + os.sep for one in folders if one))
        self._noted: set[str] = set()  # told, but only as safe as its size
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._new_lock)

    def opened(self, path: object, mode: object, flags: int) -> None:
        """A file is about to be opened by Python: the audit event `open`."""
        if flags & _WRITES and not isinstance(path, int):
            how: How = "update"
            if flags & os.O_TRUNC:
                how = "truncate"
            elif flags & os.O_APPEND:
                how = "append"
            elif not flags & os.O_ACCMODE:
                return
            self.written(path, how, creates=bool(flags & os.O_CREAT), new=bool(flags & os.O_EXCL))

    def written(
        self,
        path: object,
        how: How,
        *,
        creates: bool = True,
        new: bool = False,
        beside: bool = False,
    ) -> None:
        """A file is about to be written to.

        Args:
            creates: it is made where it is missing.
            new: it must not be there yet, else the script gets an error.
            beside: it belongs to another file, and means nothing without that.

        Raises:
            PermissionError: there is an old file, and it cannot be kept.
        """
        real = real_path(path, follow=True)
        if not real or self._is_ignored(real):
            return
        with self._lock:
            try:
                found = os.lstat(real)
            except OSError:
                if creates and not (beside and real in self._noted):
                    self._noted.update([real] if beside else [])
                    fields = {"existed": False, "size": 0, "how": "create", "backup": None}
                    self._tell("open", path=real, **fields, **({"beside": True} if beside else {}))
                    self._made.add(real)
                return
            if new or not stat.S_ISREG(found.st_mode) or not os.access(real, os.W_OK):
                return
            if self._made.known(real) or (how != "truncate" and real in self._noted):
                return
            self._keep(real, how, found)

    def handed(self, path: str) -> None:
        """The name of a file or folder is given to a program that changes such."""
        real = real_path(path, follow=False)
        if not real or self._is_ignored(real) or self._made.known(real) or real in self._noted:
            return
        with self._lock, suppress(OSError):
            found = os.lstat(real)
            folder = stat.S_ISDIR(found.st_mode)
            backup = aside(self._suffix, real) if stat.S_ISREG(found.st_mode) else None
            fields = {"backup": backup, "changed": found.st_mtime_ns, "folder": folder}
            self._tell("handed", path=real, **fields)
            self._noted.add(real)
            if backup is not None:
                os.link(real, backup)

    def removed(self, path: object, descriptor: int = -1) -> None:
        """`os.remove` of a file or link."""
        real = real_path(path, follow=False, descriptor=descriptor)
        if not real or self._is_ignored(real):
            return
        with self._lock:
            try:
                found = os.lstat(real)
            except OSError:
                return
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
                return
            backup = None if self._made.known(real) else aside(self._suffix, real)
            self._tell("remove", path=real, backup=backup, folder=False)
            if backup is not None:
                self._move(real, backup)
                # The caller's own remove takes this one.
                self._new_file(real, found)
                self._made.add(real)

    def folder_removed(self, path: object, descriptor: int | None = None) -> None:
        """`shutil.rmtree` of a folder: all of it goes aside in one step."""
        real = real_path(path, follow=False, descriptor=-1 if descriptor is None else descriptor)
        if not real or self._is_ignored(real) or os.path.islink(real) or not os.path.isdir(real):
            return
        with self._lock:
            if not self._made.known(real):
                self._folder_aside(real)

    def empty_folder_removed(self, path: object, descriptor: int = -1) -> None:
        """`os.rmdir`: a folder in which nothing but our backups is left counts as empty."""
        real = real_path(path, follow=False, descriptor=descriptor)
        if not real or self._is_ignored(real) or os.path.islink(real):
            return
        with self._lock, suppress(OSError):
            names = os.listdir(real)
            if all(self._suffix in name for name in names) and not self._made.known(real):
                self._folder_aside(real)

    def renamed(self, source: object, target: object, first: int = -1, second: int = -1) -> None:
        """`os.rename` or `os.replace`: what is replaced is kept under a second name."""
        old = real_path(source, follow=False, descriptor=first)
        new = real_path(target, follow=False, descriptor=second)
        if not old or not new or self._is_ignored(new) or not os.path.lexists(old):
            return
        with self._lock:
            made = self._is_ignored(old) or self._made.known(old)
            backup = aside(self._suffix, new) if self._replaces(old, new) else None
            self._tell("rename", **{"from": old, "to": new}, made=made, backup=backup)
            if backup is not None:
                self._keep_name(new, backup)
            self._made.moved(new, made)

    def folder_made(self, path: object, mode: int = 0, descriptor: int = -1) -> None:
        """`os.mkdir`."""
        real = real_path(path, follow=False, descriptor=descriptor)
        if real and not self._is_ignored(real) and not os.path.lexists(real):
            with self._lock:
                self._tell("mkdir", path=real)
                self._made.add(real)

    def linked(self, target: object, path: object, *descriptors: int) -> None:
        """`os.link` or `os.symlink`: a new name for something that is there."""
        real = real_path(path, follow=False, descriptor=descriptors[-1] if descriptors else -1)
        if real and not self._is_ignored(real) and not os.path.lexists(real):
            with self._lock:
                to = os.fsdecode(target) if isinstance(target, str | bytes | os.PathLike) else ""
                self._tell("link", path=real, to=to)
                self._made.add(real)

    def cut(self, path: object, length: int) -> None:
        """`os.truncate` by name; a descriptor was seen when it was opened."""
        if not isinstance(path, int):
            self.written(path, "update", creates=False)

    def mode_changed(self, path: object, mode: int, descriptor: int = -1) -> None:
        """`os.chmod` of a file or folder that was there."""
        real = real_path(path, follow=True, descriptor=descriptor)
        if real and not self._is_ignored(real) and not self._made.known(real):
            with self._lock, suppress(OSError):
                before = stat.S_IMODE(os.stat(real).st_mode)
                if before != stat.S_IMODE(mode):
                    self._tell("chmod", path=real, mode=before)

    def _keep(self, real: str, how: How, found: os.stat_result) -> None:
        backup: str | None = None
        if how == "truncate" and found.st_size:
            backup = aside(self._suffix, real)
        elif how == "update" and 0 < found.st_size <= COPY_LIMIT:
            backup = aside(self._suffix, real)
            self._copy(real, backup)
        fields = {"existed": True, "size": found.st_size, "how": how, "backup": backup}
        self._tell("open", path=real, **fields, changed=found.st_mtime_ns)
        if how == "truncate" and backup is not None:
            self._move(real, backup)
            self._new_file(real, found)
        if backup is not None or how == "truncate":
            self._made.add(real)
        else:
            self._noted.add(real)

    def _folder_aside(self, real: str) -> None:
        backup = aside(self._suffix, real)
        found = os.stat(real)
        self._tell("remove", path=real, backup=backup, folder=True)
        self._move(real, backup)
        os.mkdir(real)
        os.chmod(real, stat.S_IMODE(found.st_mode))
        self._made.add(real)

    def _replaces(self, old: str, new: str) -> bool:
        """Whether a rename takes the name of a file that the run has not made."""
        try:
            before, found = os.lstat(old), os.lstat(new)
        except OSError:
            return False
        return (
            not stat.S_ISDIR(before.st_mode)
            and not stat.S_ISDIR(found.st_mode)
            and not os.path.samestat(before, found)
            and not self._made.known(new)
        )

    def _keep_name(self, real: str, backup: str) -> None:
        """A second name, so that there is no moment without the file; else another name."""
        try:
            os.link(real, backup, follow_symlinks=False)
        except OSError:
            self._move(real, backup)

    def _move(self, real: str, backup: str) -> None:
        try:
            os.rename(real, backup)
        except OSError as error:
            raise _cannot_keep(real, error) from None

    def _copy(self, real: str, backup: str) -> None:
        try:
            shutil.copy2(real, backup)
        except OSError as error:
            with suppress(OSError):
                os.remove(backup)
            raise _cannot_keep(real, error) from None

    def _new_file(self, real: str, like: os.stat_result) -> None:
        descriptor = os.open(real, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with suppress(OSError):  # another's group is not always ours to give
                os.fchown(descriptor, like.st_uid, like.st_gid)
            if stat.S_ISREG(like.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
        finally:
            os.close(descriptor)

    def _tell(self, event: str, **fields: object) -> None:
        self._journal.must(event, **fields, where=self._journal.where())

    def _is_ignored(self, real: str) -> bool:
        # A lock renamed aside could be held twice.
        return (
            real.startswith(self._ignored)
            or real.endswith(".lock")
            or "/__pycache__/" in real
            or self._suffix in real
        )

    def _new_lock(self) -> None:
        # The thread that held it did not come along into the forked child.
        self._lock = threading.RLock()


def _cannot_keep(real: str, error: OSError) -> PermissionError:
    return PermissionError(
        errno.EACCES,
        f"rankup fetch cannot set the old file aside before it is changed ({error.strerror})",
        real,
    )
