"""The bytes of a copy: read in large pieces, several at a time; then compared with their hashes."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...base import files
from ...site.gpus import usable_cores
from .. import indexes, keys
from ..errors import BadContainer
from ..inspect import verify
from .plan import Plan, beside

# A buffer of 2 MiB stays in the caches between reading and writing it: with 16 MiB the same took
# 13 % more of a core. File systems with larger blocks get one of them at a time.
_LEAST, _MOST = 2 << 20, 16 << 20
_PIECE = 64 << 20  # for which files are opened: that costs milliseconds on a parallel file system

# Gets bytes and samples that are done in all.
Watch = Callable[[int, int], None]


class _Piece(NamedTuple):
    """Bytes [start, stop) of a file of `size` bytes, and where they go."""

    source: Path
    copy: Path
    size: int
    start: int
    stop: int


def begin(plan: Plan, root: Path) -> None:
    """Make the files of a copy, empty, in place of what is there.

    Raises:
        OSError: they cannot be made.
    """
    (root if plan.source.is_dir() else root.parent).mkdir(parents=True, exist_ok=True)
    for path in plan.files(root):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def fill(plan: Plan, root: Path, watch: Watch) -> None:
    """Copy all files of a source.

    Raises:
        BadContainer: the source is not as it was.
        OSError: it cannot be read, or the copy not written.
    """
    buffer = min(max(os.stat(plan.source).st_blksize, _LEAST), _MOST)
    spare = threading.local()
    stop = threading.Event()

    def copied(piece: _Piece) -> int:
        if stop.is_set():
            return 0
        try:
            if not hasattr(spare, "buffer"):
                spare.buffer = memoryview(bytearray(buffer))
            return _copied(piece, spare.buffer)
        except BaseException:
            stop.set()  # the others need not go on
            raise

    done = 0
    with ThreadPoolExecutor(_threads(), "rankup-stage") as pool:
        try:
            for count in pool.map(copied, _pieces(plan, root)):
                done += count
                watch(done, 0)
        finally:
            stop.set()


def compare(plan: Plan, root: Path, watch: Watch) -> None:
    """Add the index to a copy, and compare every byte of it that there is a hash of.

    The hashes are taken of what was written, on all cores.

    Args:
        root: the file or folder that becomes the copy.

    Raises:
        BadContainer: something is not what was packed, and is named.
        OSError: it could not be read or written.
    """
    if plan.packed:
        shutil.copyfile(indexes.place(plan.source), indexes.place(root))  # a pack by itself
        for name in beside(plan.index):
            if keys.safe(os.fsencode(name)):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(plan.source / name, root / name)
    if not any(one.hash is not None for one in plan.index.fields):
        return
    index = replace(plan.index, times=None)  # those of the source's files
    found = verify.verify(index, root, 0, len(index), watch).damaged
    if found:
        what = found[0].what.replace(str(root), str(plan.source))
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise BadContainer(
            f"{plan.source}: {what}: {found[0].why}{more}: nothing was staged. `rankup inspect "
            f"--verify` names all that is damaged; restore it"
        )


def _pieces(plan: Plan, root: Path) -> list[_Piece]:
    rows = zip(plan.files(plan.source), plan.files(root), plan.index.sizes.tolist(), strict=True)
    return [
        _Piece(source, copy, size, start, min(start + _PIECE, size))
        for source, copy, size in rows
        for start in range(0, size, _PIECE)
    ]


def _copied(piece: _Piece, buffer: memoryview) -> int:
    # A pipe in the place of a file would otherwise wait for its writer.
    source = os.open(piece.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        copy = os.open(piece.copy, os.O_WRONLY | os.O_CLOEXEC)
        try:
            about = os.fstat(source)
            at = piece.start
            while stat.S_ISREG(about.st_mode) and about.st_size == piece.size and at < piece.stop:
                count = os.preadv(source, [buffer[: piece.stop - at]], at)
                if not count:
                    break
                files.pwrite_all(copy, buffer[:count], at)
                at += count
        finally:
            os.close(copy)
    finally:
        os.close(source)
    if at < piece.stop:
        raise BadContainer(
            f"{piece.source}: it has no longer {piece.size} bytes; nothing was staged: run it "
            f"again once it is at rest"
        )
    return piece.stop - piece.start


def _threads() -> int:
    """Return how many pieces are read at a time.

    More than cores: on a file system of many disks a read waits, and one stream is a fraction of
    what it gives. In memory two cores are busy with two (2.1 GB/s here, with 16 threads 2.0).
    """
    return min(16, max(4, 2 * usable_cores()))
