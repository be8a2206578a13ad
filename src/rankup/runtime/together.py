"""What the ranks do together: names and shapes, failures, and one writer in a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from .collectives import all_gather_object, broadcast
from .state import Shape
from .world import is_root_process

T = TypeVar("T")

_TAKEN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def union(here: Mapping[str, T]) -> dict[str, T]:
    """All ranks' entries, those of rank 0 first. Collective; cheap where the ranks hold the same.

    Where two ranks differ on a name the later one's entry counts.
    """
    merged = dict(broadcast(dict(here)))
    rest = {name: value for name, value in here.items() if merged.get(name) != value}
    for part in all_gather_object(rest):
        merged |= part
    return merged


def differences(
    there: Mapping[str, Shape], here: Mapping[str, Shape], place: str, owner: str
) -> list[str]:
    """One line for each name whose shape is not the same there and here."""
    return [
        f"{name}: {_shape(there.get(name))} in the {place}, {_shape(here.get(name))} in this "
        f"{owner}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]


def shortened(lines: list[str], most: int = 5) -> str:
    """The first lines, indented, and how many more there are."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "".join(f"\n  {line}" for line in [*lines[:most], *more])


def unseen(there: Mapping[str, Shape], here: Mapping[str, Shape]) -> set[str]:
    """Entries of optimizer state that a file rightly lacks: their parameter never had a gradient.

    Only where the file has state for other parameters; an optimizer that keeps other things is
    another one.
    """
    if not there:
        return set()
    known = {name.rpartition(".")[0] for name in there}
    return {name for name in here if name.rpartition(".")[0] not in known}


def agree(error: BaseException | None, group: dist.ProcessGroup | None = None) -> None:
    """Raise on every rank when one failed; collective.

    Raises:
        the first failed rank's error, as far as it can be sent; OSError stays OSError.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        if error is not None:
            raise error
        return
    mine = None if error is None else (dist.get_rank(), _sendable(error))
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine, group=group)
    failed = [item for item in found if item is not None]
    if failed:
        rank, first = failed[0]
        if error is not None:
            raise error
        if isinstance(first, OSError) or rank == dist.get_rank():
            raise first
        raise type(first)(f"rank {rank}: {first}")


def everywhere(action: Callable[[], T]) -> T:
    """Return what `action` gives on this rank; an error of one rank is raised on all. Collective.

    Raises:
        as `agree`.
    """
    result, failure = cast("T", None), None
    try:
        result = action()
    except Exception as error:
        failure = error
    agree(failure)
    return result


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


def _sendable(error: BaseException) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    for kind in (ValueError, TypeError):
        if type(error) is kind:
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


def _shape(shape: Shape | None) -> str:
    return "absent" if shape is None else str(list(shape))


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
