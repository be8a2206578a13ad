"""One writer at a time in a folder that several processes may reach."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from .together import agree
from .world import is_root_process

_TAKEN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def only_writer(root: Path) -> Iterator[None]:
    """Make the folder where it is not there, and hold it for the ranks' common work; collective.

    The lock is the kernel's, so none outlives its process; its empty file `.lock` stays. A file
    system without locks gives a warning.

    Raises:
        OSError: another process holds the folder, or it cannot be made. On every rank.
    """
    descriptor: int | None = None
    failure: Exception | None = None
    if is_root_process():
        try:
            descriptor = _locked(root)
        except Exception as error:
            failure = error
    try:
        agree(failure)
        yield
    finally:
        if descriptor is not None:
            # A process forked meanwhile has the descriptor too; closing ours would leave it locked.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked(root: Path) -> int:
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            if error.errno in _TAKEN:
                why = "another process is saving into this folder"
                raise OSError(errno.EAGAIN, why, str(root)) from None
            raise
        warnings.warn(
            f"{root} is on a file system without locks: see to it that no two processes save there "
            "at once",
            stacklevel=2,
        )
    return descriptor
