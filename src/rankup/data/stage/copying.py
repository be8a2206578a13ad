"""The bytes of a copy: which they are, how they are read, and their comparison with the hashes."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base import files
from ...base.errors import UserError
from ...base.progress import Progress
from ...site.gpus import usable_cores
from .. import finding, indexes, stamp
from ..containers import Choice, detect
from ..errors import BadContainer
from ..index import Index, Int64s, data_path
from ..inspect import verify
from ..stamp import Look
from ..tokenize import folder as token_folder
from ..tokenize.folder import TokenFolder
from . import place

# A buffer of 2 MiB stays in the caches between reading and writing it: with 16 MiB the same took
# 13 % more of a core. File systems with larger blocks get one of them at a time.
_LEAST, _MOST = 2 << 20, 16 << 20
_PIECE = 64 << 20  # for which files are opened: that costs milliseconds on a parallel file system
_PAGE = 4096
_OF_TOKENS = (token_folder.ABOUT, token_folder.TOKENIZER)  # what lies beside their shards
_MORE = 1 << 20  # bytes for the marker and folders


@dataclass(frozen=True)
class Plan:
    """The files and the index to be copied.

    Attributes:
        source: real path of a file or folder.
        index: of all its samples, with `sizes`; of a single file that is no pack, of none.
        packed: rankup has packed it.
        seen: of the source, before anything was copied.
        tokens: the folder of `rankup tokenize` that the source is.
    """

    source: Path
    index: Index
    packed: bool
    seen: tuple[Look, ...]
    tokens: TokenFolder | None = None

    @property
    def size(self) -> int:
        """Return the bytes of data."""
        return int(self.index.sizes.sum())

    @property
    def needed(self) -> int:
        """Return the bytes that all of the copy takes."""
        pages = -(-self.index.sizes // _PAGE) * _PAGE
        keys = self.index.keys
        columns: list[npt.NDArray[Any] | None] = [keys.data, keys.ends, self.index.files.data]
        for one in self.index.fields:
            columns += [one.offset, one.length, one.file, one.hash]
        columns.append(self.index.labels)
        return int(pages.sum()) + sum(one.nbytes for one in columns if one is not None) + _MORE

    @property
    def checked(self) -> bool:
        """Return True where every sample, or shard of tokens, has a hash to be compared with."""
        if self.tokens is not None:
            return True
        return bool(self.index.fields) and all(one.hash is not None for one in self.index.fields)

    def files(self, root: Path) -> list[Path]:
        """Return the files of the source, or of a copy at `root`."""
        return [data_path(root, self.index.files, row) for row in range(len(self.index.files))]


class _Piece(NamedTuple):
    """Bytes [start, stop) of a file of `size` bytes, and where they go."""

    source: Path
    copy: Path
    size: int
    start: int
    stop: int


def planned(source: Path) -> Plan:
    """Look at a source.

    Raises:
        UserError: there is none, or staging it would not help.
        BadContainer: it is damaged.
        OSError: it cannot be read.
    """
    beside = indexes.place(source)
    # Before the index is read, so that one that is replaced meanwhile is noticed.
    first = stamp.looks([beside]) if beside.is_file() else ()
    own = finding.fitting(source)
    if own is not None:
        index = own
    elif source.is_file() and not source.name.endswith("index.npz"):
        # One file is copied whatever is in it: of tokens each would be a sample of an index.
        index = place.bare({b"": source.stat().st_size})
    elif token_folder.is_one(source):
        return _of_tokens(source)
    elif detect.detect(source) == "files":
        if inside := [one for one in sorted(source.iterdir()) if token_folder.is_one(one)]:
            raise UserError(
                f"{source} is a folder of {len(inside)} folders of tokens; stage each that is "
                f"trained on: {' '.join(map(str, inside))}"
            )
        raise UserError(
            f"{source} is a folder of single files, and what is staged are few large ones: "
            f"`rankup pack {source} NAME.h5` makes one of them, and `rankup stage NAME.h5` "
            f"then copies that"
        )
    else:
        index = finding.found(source, Choice()).index
    plan = Plan(source, replace(index, sizes=_sizes(index, source)), own is not None, first)
    paths = plan.files(source)
    if own is not None:
        return replace(plan, seen=(*first, *stamp.looks(paths)))
    if source.is_dir():  # it consists of what is in it
        paths = [source, *dict.fromkeys(path.parent for path in paths), *paths]
    return replace(plan, seen=stamp.looks(paths))


def _of_tokens(source: Path) -> Plan:
    """The shards of a folder of `rankup tokenize`, and what lies beside them.

    What says which tokens it has is written last, and has the hashes of the shards: thousands of
    ranks that look whether the source has changed ask the file system for it alone.
    """
    seen = stamp.looks([source / name for name in _OF_TOKENS])
    folder = token_folder.read(source)
    index = place.bare({shard.file.encode(): folder.size_of(shard) for shard in folder.shards})
    return Plan(source, index, packed=False, seen=seen, tokens=folder)


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


def fill(plan: Plan, root: Path, watch: Progress) -> None:
    """Copy all files of a source, several pieces at a time.

    Raises:
        BadContainer: the source is not as it was.
        OSError: it cannot be read, or the copy not written.
    """
    buffer = min(max(os.stat(plan.source).st_blksize, _LEAST), _MOST)
    spare = threading.local()

    def copied(piece: _Piece) -> int:
        if not hasattr(spare, "buffer"):
            spare.buffer = memoryview(bytearray(buffer))
        return _copied(piece, spare.buffer)

    rows = zip(plan.files(plan.source), plan.files(root), plan.index.sizes.tolist(), strict=True)
    pieces = [
        _Piece(source, copy, size, start, min(start + _PIECE, size))
        for source, copy, size in rows
        for start in range(0, size, _PIECE)
    ]
    # More threads than cores: on a file system of many disks a read waits, and one stream is a
    # fraction of what it gives. In memory two cores are busy with two (2.1 GB/s here, with 16
    # threads 2.0).
    done = 0
    with ThreadPoolExecutor(min(16, max(4, 2 * usable_cores())), "rankup-stage") as pool:
        for count in pool.map(copied, pieces):  # which begins no other piece once one has failed
            done += count
            watch(done)


def received(plan: Plan, folder: Path, number: int) -> list[Path]:
    """Return the files of a source as `sbcast` has brought them; none where they are not all whole.

    What has come is removed then: it would lack in the room for a copy.

    Args:
        number: that the names of these files begin with.
    """
    found = [folder / f"{number}-{path.name}" for path in plan.files(plan.source)]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in found]
    if sizes == plan.index.sizes.tolist() and len(set(found)) == len(found):
        return found
    for path in folder.glob(f"{number}-*"):
        path.unlink()
    return []


def move(received: Sequence[Path], plan: Plan, root: Path, watch: Progress) -> None:
    """Give a copy the files that have come; as `fill`."""
    for path, copy in zip(received, plan.files(root), strict=True):
        path.replace(copy)
    watch(plan.size)


def compare(plan: Plan, root: Path, watch: Progress) -> None:
    """Add the index to a copy, and compare every sample of it that there is a hash of.

    The hashes are taken of what was written, on all cores.

    Args:
        root: the file or folder that becomes the copy.

    Raises:
        BadContainer: something is not what was packed, and is named.
        OSError: it could not be read or written.
    """
    if plan.packed:
        shutil.copyfile(indexes.place(plan.source), indexes.place(root))  # a pack by itself
    if plan.tokens is not None:
        for name in _OF_TOKENS:
            shutil.copyfile(plan.source / name, root / name)
        token_folder.compare(plan.tokens, root, watch)
        return
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


def _sizes(index: Index, source: Path) -> Int64s:
    """Return the bytes of each file, as the index says or as they are, int64 (files,)."""
    if len(index.sizes):
        return np.asarray(index.sizes, np.int64)
    paths = [data_path(source, index.files, row) for row in range(len(index.files))]
    return np.array([path.stat().st_size for path in paths], np.int64)


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
