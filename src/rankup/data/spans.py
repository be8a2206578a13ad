"""The one reader of bytes: any `(file, offset, length)`, without a lock, safe under fork and spawn.

Data in memory and on local disks is mapped: a sample is then a view, and no byte is copied. Network
file systems are read by position (`pread`): a page fault there fetches 4 KiB at a time, and a node
that loses its server would end the process with SIGBUS instead of an error.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from ..base.errors import UserError
from ..site import mounts
from .errors import BadContainer
from .index import Int64s, Strings, data_path

How = Literal["mmap", "pread"]
VARIABLE = "RANKUP_READ"
# Files that stay open at most; one that is mapped has a descriptor too, Python keeps it.
_OPEN = 4096
# What only looks like a local disk to a process.
_NETWORK = re.compile(
    "nfs4?|lustre|gpfs|mmfs|beegfs(_nodev)?|cifs|smb3|smbfs|ceph|glusterfs|orangefs|pvfs2|panfs|"
    "wekafs|afs|9p|virtiofs|dvs|daos|quobyte|vastnfs|fuse.*"
)


def way(path: Path, asked: str | None = None) -> How:
    """Return how files at a path are read: as asked, by `$RANKUP_READ`, by the file system's type.

    Raises:
        UserError: what was asked for is neither `mmap`, `pread` nor `auto`.
    """
    asked = asked or os.environ.get(VARIABLE) or "auto"
    if asked == "auto":
        return "pread" if network(path) else "mmap"
    if asked not in ("mmap", "pread"):
        raise UserError(f"{asked!r} is no way to read (also ${VARIABLE}): auto, mmap or pread")
    return cast("How", asked)


def network(path: Path) -> str:
    """The type of the file system behind a path where it is one of a network, or may be; else "".

    What is mounted through FUSE counts as such.
    """
    kind = mounts.kind_of(path)
    return kind if _NETWORK.fullmatch(kind) else ""


class Spans:
    """Bytes of the files of an index.

    Opens a file when it is first read. A forked child goes on with what is open, since reading by
    position moves nothing; pickled, only the paths travel. Where files are many (single photos),
    each is opened for each read, since a process may not have them all open.

    A mapped file must not be cut short while it is in use: the kernel ends a process that reads
    behind the new end with SIGBUS. So does a disk that fails. `pread` gives errors instead.

    Args:
        root: what the files' names are relative to.
        files: their names.
        sizes: bytes that each had when it was indexed; empty where that is not known.
        how: `mmap` or `pread`, see `way`.
        keep: whether files stay open, or mapped; by default where they are few.
        entry: where the index is kept that says all this; it is removed if a file has not the size
            that it says, so that the next who opens them looks anew.
    """

    def __init__(
        self,
        root: Path,
        files: Strings,
        sizes: Int64s,
        how: How,
        *,
        keep: bool = True,
        entry: Path | None = None,
    ) -> None:
        self._root, self._files, self._sizes, self.how = root, files, sizes, how
        self._entry = entry
        # File -> (its descriptor, or its bytes where they are mapped; its size)
        self._kept: dict[int, tuple[int | memoryview, int]] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _OPEN if soft == resource.RLIM_INFINITY else min(_OPEN, soft // 2)
        self._keep = keep and len(files) <= most

    def path(self, file: int) -> Path:
        """Return the path of a file.

        Raises:
            BadContainer: there is no such file.
        """
        if not 0 <= file < len(self._files):
            raise BadContainer(
                f"{self._root} has {len(self._files)} files, and a sample should lie in the one "
                f"numbered {file}: its index is damaged"
            )
        return data_path(self._root, self._files, file)

    def read(self, file: int, offset: int, length: int) -> memoryview | bytes:
        """Bytes [offset, offset + length) of a file: a view where it is mapped.

        Raises:
            BadContainer: the file ends before, or is not the one that was indexed.
            OSError: it cannot be read.
        """
        data, size = self._kept.get(file) or self._opened(file)
        try:
            stop = offset + length
            if offset < 0 or length < 0 or stop > size:
                raise BadContainer(
                    f"{self.path(file)} has {size} bytes, and a sample should be {length} bytes at "
                    f"{offset}: it was cut short, or its index is damaged"
                )
            if isinstance(data, memoryview):
                return data[offset:stop]
            return self._by_position(file, offset, length, data)
        finally:
            if not self._keep:
                os.close(data)  # type: ignore[arg-type]

    def _by_position(self, file: int, offset: int, length: int, descriptor: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        while len(data) < length:  # it is more than 2 GiB, or was cut short just now
            part = os.pread(descriptor, length - len(data), offset + len(data))
            if not part:
                raise BadContainer(f"{self.path(file)} was cut short while it was read")
            data += part
        return data

    def _opened(self, file: int) -> tuple[int | memoryview, int]:
        path = self.path(file)
        # A pipe in the place of a file would otherwise wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fresh = self._checked(file, path, descriptor)
            kept = self._kept.setdefault(file, fresh) if self._keep else fresh
        except BaseException:
            os.close(descriptor)
            raise
        if kept[0] is not descriptor:  # it is mapped, or another thread was quicker
            os.close(descriptor)
        return kept

    def _checked(self, file: int, path: Path, descriptor: int) -> tuple[int | memoryview, int]:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise BadContainer(f"{path} is no file")
        size = about.st_size
        if len(self._sizes) and size != self._sizes[file]:
            again = ""
            if self._entry is not None:
                with suppress(OSError):
                    self._entry.unlink()
                    again = "; open all of it again to go on with it as it is"
            raise BadContainer(
                f"{path} has {size} bytes, and had {self._sizes[file]} when it was indexed: it was "
                f"changed or cut short since{again}"
            )
        if self.how == "mmap" and self._keep and size:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), size
        return descriptor, size

    def close(self) -> None:
        """Close the descriptors; views that were handed out stay valid."""
        kept, self._kept = self._kept, {}
        for data, _ in kept.values():
            if isinstance(data, int):
                os.close(data)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    def __del__(self) -> None:
        if os is not None:  # else the interpreter ends, and takes apart what is left
            self.close()
