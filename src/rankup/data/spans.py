"""The one reader of bytes: any `(file, offset, length)`, without a lock, safe under fork and spawn.

Data in memory and on local disks is mapped: a sample is then a view, and no byte is copied. Network
file systems are read by position (`pread`): a page fault there fetches 4 KiB at a time, and a node
that loses its server would end the process with SIGBUS instead of an error.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Literal

from ..base.errors import UserError
from ..site import mounts
from .errors import BadContainer
from .index import Int64s
from .strings import Strings

How = Literal["mmap", "pread"]
VARIABLE = "RANKUP_READ"
# Files that stay open; containers have few. Plain files are opened for each sample instead.
_KEPT = 256
# What only looks like a local disk to a process.
_NETWORK = {
    *("nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "smbfs"),
    *("ceph", "glusterfs", "orangefs", "pvfs2", "panfs", "wekafs", "afs", "9p", "virtiofs", "dvs"),
    *("daos", "quobyte", "vastnfs"),
}


def way(path: Path, asked: str | None = None) -> How:
    """How files at a path are read: as asked, as `$RANKUP_READ` says, by its file system's type.

    Raises:
        UserError: what was asked for is neither `mmap`, `pread` nor `auto`.
    """
    asked = asked or os.environ.get(VARIABLE) or "auto"
    if asked == "mmap":
        return "mmap"
    if asked == "pread":
        return "pread"
    if asked != "auto":
        raise UserError(f"{asked!r} is no way to read (also ${VARIABLE}): auto, mmap or pread")
    kind = mounts.kind_of(path)
    return "pread" if kind in _NETWORK or kind.startswith("fuse") else "mmap"


class Spans:
    """Bytes of the files of an index.

    Opens a file when it is first read. A forked child goes on with what is open, since reading by
    position moves nothing; pickled, only the paths travel.

    Args:
        root: what the files' names are relative to.
        files: their names.
        sizes: bytes that each had when it was indexed; empty where that is not known.
        how: `mmap` or `pread`, see `way`.
    """

    def __init__(self, root: Path, files: Strings, sizes: Int64s, how: How) -> None:
        self._root, self._files, self._sizes, self._how = root, files, sizes, how
        self._kept: dict[int, tuple[int, memoryview | None, int]] = {}
        self._keep = len(files) <= _KEPT

    @property
    def how(self) -> How:
        """`mmap` or `pread`."""
        return self._how

    def path(self, file: int) -> Path:
        """Where a file lies."""
        name = self._files.text(file)
        return self._root / name if name else self._root

    def read(self, file: int, offset: int, length: int) -> memoryview | bytes:
        """Bytes [offset, offset + length) of a file: a view where it is mapped.

        Raises:
            BadContainer: the file ends before, or is not the one that was indexed.
            OSError: it cannot be read.
        """
        if not self._keep:
            descriptor, view, size = self._open(file)
            try:
                return self._read(file, offset, length, descriptor, view, size)
            finally:
                os.close(descriptor)
        kept = self._kept.get(file)
        if kept is None:
            kept = self._kept.setdefault(file, fresh := self._open(file))
            if kept is not fresh:  # another thread was quicker
                os.close(fresh[0])
        return self._read(file, offset, length, *kept)

    def _read(
        self, file: int, offset: int, length: int, fd: int, view: memoryview | None, size: int
    ) -> memoryview | bytes:
        if offset < 0 or length < 0 or offset + length > size:
            raise BadContainer(
                f"{self.path(file)} has {size} bytes, and a sample should be {length} bytes at "
                f"{offset}: it was cut short, or its index is damaged"
            )
        if view is not None:
            return view[offset : offset + length]
        data = os.pread(fd, length, offset)
        if len(data) == length:  # else it is more than 2 GiB, or was cut short just now
            return data
        parts = [data]
        done = len(data)
        while done < length:
            part = os.pread(fd, length - done, offset + done)
            if not part:
                raise BadContainer(f"{self.path(file)} was cut short while it was read")
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def _open(self, file: int) -> tuple[int, memoryview | None, int]:
        path = self.path(file)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if len(self._sizes) and size != self._sizes[file]:
                raise BadContainer(
                    f"{path} has {size} bytes, and had {self._sizes[file]} when it was indexed: it "
                    f"was changed or cut short since"
                )
            view = None
            if self._how == "mmap" and self._keep and size:
                mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
                view = memoryview(mapped)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, view, size

    def close(self) -> None:
        """Close the descriptors; views that were handed out stay valid."""
        kept, self._kept = self._kept, {}
        for descriptor, _, _ in kept.values():
            os.close(descriptor)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    def __del__(self) -> None:
        self.close()
