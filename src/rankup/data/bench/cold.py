"""Samples that are surely not in this node's memory, so that reading them is reading storage.

The pages of the samples are dropped (`posix_fadvise`), and no others: the rest of the file may be
in use by a job on the same node. Whether they are gone is asked for with reads that may not wait
(`RWF_NOWAIT`): a parallel file system keeps a cache of its own, which no program can drop.
"""

from __future__ import annotations

import copy
import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

from ..opened import Samples
from ..spans import Spans

_PAGE = mmap.PAGESIZE


def reopened(samples: Samples) -> Samples | None:
    """The same samples with files of their own; None where they lie in two places."""
    if not isinstance(samples._spans, Spans):
        return None
    fresh = samples.apart()
    fresh._spans = copy.copy(samples._spans)
    fresh._read = fresh._spans.read
    return fresh


def dropped(
    samples: Samples, rows: Sequence[int], name: str | None = None
) -> tuple[list[int], str]:
    """Drop some samples from memory.

    Args:
        samples: `reopened`: what a process has mapped and touched cannot be dropped.
        name: of the field; the first one without.

    Returns:
        The samples that are gone, and what is not known about that; without samples: why not.
    """
    field = samples.index.field(name)
    gone, unsure = [], ""
    for row in rows:
        at = samples._row(row)
        offset, length = int(field.offset[at]), int(field.length[at])
        if offset < 0:
            return [], "its samples do not lie in one piece"
        path = samples.file(int(field.file[at]) if field.file is not None else 0)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = _drop(descriptor, offset, length)
            if there:  # perhaps for being written just now, and not yet on the disk
                os.fdatasync(descriptor)
                there = _drop(descriptor, offset, length)
        except OSError as error:
            return [], f"the file system cannot drop what it has in memory ({error.strerror})"
        finally:
            os.close(descriptor)
        if there is None:
            unsure = "this file system does not say what it has in memory"
        if not there:
            gone.append(row)
    if len(gone) < (len(rows) + 1) // 2:
        return [], "it stays in memory: another program uses it"
    return gone, unsure


def _drop(descriptor: int, offset: int, length: int) -> bool | None:
    """Let go of a sample's pages, and say whether it is there all the same; None: nobody knows."""
    start = offset // _PAGE * _PAGE
    stop = -(-(offset + length) // _PAGE) * _PAGE
    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
    return _in_memory(descriptor, offset, length)


def _in_memory(descriptor: int, offset: int, length: int) -> bool | None:
    """Whether a sample could be read without waiting for storage; None: nobody knows."""
    with suppress(OSError):  # no reading ahead, which would bring back what this asks about
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    place = offset + length // 2
    try:
        return bool(os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return None
        raise
