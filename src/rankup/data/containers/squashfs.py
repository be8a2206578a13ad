"""SquashFS images of ours, written by mksquashfs; those of others are mounted (`stage.mount`).

`mksquashfs` reads a tar from a pipe: nothing is unpacked. Photos do not compress, so nothing is.

In an image of ours nothing is compressed and nothing lies in fragments, so that the files follow
each other behind the superblock in the order in which they were written: places are sums of
lengths.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import itertools
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import xxhash

from ...base.errors import UserError
from ...base.processes import die_with, end_group
from .. import npz
from ..errors import BadContainer
from ..index import Index, Strings, UInt64s, folders
from ..keys import shown
from . import Choice, tar
from .grouping import LONE

# In the image: labels of samples whose folders do not tell them. Hidden, so that it is no sample.
LABELS = b".labels.csv"
_SUPERBLOCK = 96  # bytes before the data
_INODES = struct.Struct("<Q")  # where the table of inodes begins, which follows the data
_INODES_AT = 64
_COMPARED = 1000  # samples of an image of ours that are read back
# The same bytes for the same samples: no times, no owners. Duplicates are not looked for, since
# mksquashfs compares each file with all others of its size (18 of 19 s for 100 000 small ones);
# nor are zeros, which would leave holes in what should lie in one piece.
_OPTIONS = (
    *("-tar", "-noappend", "-no-recovery", "-exit-on-error", "-quiet", "-no-progress"),
    *("-comp", "gzip", "-noI", "-noD", "-noF", "-no-fragments", "-no-duplicates", "-no-sparse"),
    *("-no-xattrs", "-all-root", "-root-mode", "0755", "-all-time", "0", "-mkfs-time", "0"),
)
_OLDEST = (4, 5)  # the first that reads a tar
_MEMORY = "512M"  # its default is a quarter of the machine's, which may be a login node's
_LONGEST_NAME = 256  # of a component; longer ones would be cut
_PIPE = 1 << 20
_TOGETHER = 1000  # headers that are made at once
_SAID = 2000
# F_SETPIPE_SZ of linux/fcntl.h, which the module fcntl has on Linux only.
_SET_PIPE_SIZE = 1031

Buffer = bytes | bytearray | memoryview


class Member(NamedTuple):
    """A file of the image to be.

    Attributes:
        path: relative to the root.
        size: of all chunks together.
    """

    path: bytes
    size: int
    chunks: Iterable[Buffer]


def scan(path: Path, choice: Choice) -> Index:
    """Refuse: images of ours have an index, and those of others are mounted before.

    Raises:
        UserError: always.
    """
    raise UserError(f"{path} is a SquashFS image, which is read through a mount")


class _File(NamedTuple):
    """A file of an image: what stands in front of its samples, and these."""

    path: bytes
    head: bytes
    field: int
    rows: range
    row_bytes: int


def members(source: Index, chunks: Callable[[int, int], Iterable[Buffer]]) -> Iterator[Member]:
    """The files that the samples of an index become, in its order.

    A lone field `data` is `<folder>/<key>`, several are `<folder>/<key>.<field>`; an array field
    is `<folder>/<field>.npy` for each split, as `numpy.save` writes it.

    Args:
        source: all lengths are known.
        chunks: gives the bytes of a field of a sample, by the field's place and the row.
    """
    for one in _files(source):
        size = len(one.head) + one.row_bytes * len(one.rows)
        yield Member(one.path, size, _bytes(one, chunks))


def _files(source: Index) -> Iterator[_File]:
    text = _labels(source)
    if text:
        yield _File(LABELS, text, 0, range(0), 0)
    lengths = {n: one.length.tolist() for n, one in enumerate(source.fields) if not one.dtype}
    lone = len(source.fields) == 1 and source.fields[0].name == LONE
    ends = [b"" if lone else b"." + os.fsencode(one.name) for one in source.fields]
    for split, folder in zip(source.splits, folders(source.splits), strict=True):
        for row in range(split.start, split.stop):
            stem = folder + source.keys[row]
            for number, of in lengths.items():
                yield _File(stem + ends[number], b"", number, range(row, row + 1), of[row])
        for number, one in enumerate(source.fields):
            if one.dtype:
                path = folder + os.fsencode(one.name) + b".npy"
                rows = range(split.start, split.stop)
                head = npz.array_header(one.dtype, (len(rows), *one.shape))
                yield _File(path, head, number, rows, one.width)


def _bytes(one: _File, chunks: Callable[[int, int], Iterable[Buffer]]) -> Iterator[Buffer]:
    if one.head:
        yield one.head
    for row in one.rows:
        yield from chunks(one.field, row)


def indexed(source: Index, out: Path, hashes: UInt64s | None = None) -> Index:
    """Return the index of an image that `write` made of the `members` of an index.

    Args:
        hashes: (fields, n) of the bytes that were written, of which some are compared.

    Raises:
        BadContainer: the files do not lie in the image as they should.
        OSError: it cannot be read.
    """
    at = _SUPERBLOCK
    offsets = [[0] * len(source) for _ in source.fields]
    for file in _files(source):
        at += len(file.head)
        for row in file.rows:
            offsets[file.field][row] = at
            at += file.row_bytes
    fields = tuple(
        replace(
            one,
            offset=np.array(offset, np.int64),
            length=np.full(len(source), one.width) if one.dtype else one.length,
            file=None,
        )
        for one, offset in zip(source.fields, offsets, strict=True)
    )
    index = replace(
        source,
        container="squashfs",
        files=Strings.of([b""]),
        fields=fields,
        sizes=np.array([out.stat().st_size], np.int64),
        times=None,
        facts={},
    )
    _check(index, out, at, hashes)
    return index


def _check(index: Index, out: Path, end: int, hashes: UInt64s | None) -> None:
    with out.open("rb") as file:
        file.seek(_INODES_AT)
        (found,) = _INODES.unpack(file.read(_INODES.size))
        if found != end:
            raise BadContainer(
                f"{out} is not what was to be written: its data ends at byte {found}, not {end}; "
                f"two samples may become one file: rename one, or take another container"
            )
        rows = np.unique(np.linspace(0, len(index) - 1, min(len(index), _COMPARED)).astype(int))
        for one, digests in zip(index.fields, () if hashes is None else hashes, strict=False):
            for row in rows.tolist():
                file.seek(int(one.offset[row]))
                digest = xxhash.xxh3_64()
                left = int(one.length[row])
                while left > 0 and (data := file.read(min(left, 1 << 24))):
                    digest.update(data)
                    left -= len(data)
                if digest.intdigest() != digests[row]:
                    raise BadContainer(
                        f"{out} is not what was to be written: {index.path(row)} lies elsewhere "
                        f"in it; this mksquashfs orders files otherwise: take another container"
                    )


def _labels(source: Index) -> bytes:
    """Path and label of each sample as CSV; empty where there are none, or folders tell them."""
    if source.labels is None:
        return b""
    labels = source.labels.tolist()
    names = [os.fsencode(name) for name in source.classes]
    if all(
        label < 0 or (label < len(names) and key.startswith(names[label] + b"/"))
        for key, label in zip(source.keys, labels, strict=True)
    ):
        return b""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("path", "label"))
    for split, folder in zip(source.splits, folders(source.splits), strict=True):
        for row in range(split.start, split.stop):
            if labels[row] >= 0:
                known = labels[row] < len(names)
                label = source.classes[labels[row]] if known else labels[row]
                lines.writerow((os.fsdecode(folder + source.keys[row]), label))
    return text.getvalue().encode("utf-8", "surrogateescape")


def write(
    files: Iterable[Member],
    out: Path,
    *,
    block: int = 1 << 20,
    processors: int = 1,
) -> None:
    """Write an image of these files. The same files give the same bytes.

    Args:
        files: no path twice; nothing is asked for before the one before has been handed on.
        out: what is there is replaced; there is nothing after an error.
        block: bytes of a block, a power of 2 from 4 KiB to 1 MiB.
        processors: threads of mksquashfs.

    Raises:
        UserError: mksquashfs is missing, too old, or failed; a path that SquashFS cannot have.
        OSError: no space (ENOSPC, EDQUOT); or what the chunks raise.
    """
    command = [_program(), "-", str(out.absolute()), *_OPTIONS]
    command += ["-b", str(block), "-processors", str(processors), "-mem", _MEMORY]
    # Not written over: a mksquashfs that outlived a pack which was killed may still have it open.
    out.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command,
                bufsize=_PIPE,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )
            try:
                _feed(process, files)
            except BaseException:
                end_group(process)
                raise
            finally:
                _drop(process.stdin)
            if process.returncode or not out.exists():
                raise _failure(process.returncode, said, out)
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def _program() -> str:
    program = shutil.which("mksquashfs")
    help_with = (
        "Debian and Ubuntu have it as squashfs-tools, clusters often as a module (`module spider "
        "squashfs`), and so does conda-forge (squashfs-tools); the other containers need no program"
    )
    if program is None:
        raise UserError(f"no mksquashfs on PATH, which writes SquashFS images: {help_with}")
    asked = subprocess.run(
        [program, "-version"], capture_output=True, text=True, timeout=30, check=False
    )
    match = re.search(r"version (\d+)\.(\d+)", asked.stdout + asked.stderr)
    if match and (int(match[1]), int(match[2])) < _OLDEST:
        raise UserError(
            f"{program} is version {match[1]}.{match[2]}, and only 4.5 and later read from a pipe: "
            f"{help_with}"
        )
    return program


def _feed(process: subprocess.Popen[bytes], files: Iterable[Member]) -> None:
    """Hand all files to mksquashfs as a tar, and wait for it."""
    pipe = process.stdin
    assert pipe is not None
    with suppress(OSError):  # not more than the system allows
        fcntl.fcntl(pipe.fileno(), _SET_PIPE_SIZE, _PIPE)
    last: bytes | None = None
    left_over = iter(files)
    try:
        while some := list(itertools.islice(left_over, _TOGETHER)):
            sizes = np.array([one.size for one in some], np.int64)
            headers = tar.headers([_checked(one.path) for one in some], sizes, {})
            for one, header in zip(some, headers, strict=True):
                if one.path == last:
                    raise UserError(
                        f"two samples would become the file {shown(one.path)}; rename one"
                    )
                last = one.path
                pipe.write(header)
                _hand_on(one, pipe)
        pipe.write(bytes(1024))
        pipe.close()
    except BrokenPipeError:
        pass  # it ended, and has said why
    process.wait()


def _checked(path: bytes) -> bytes:
    if len(path) > _LONGEST_NAME and max(map(len, path.split(b"/"))) > _LONGEST_NAME:
        raise UserError(
            f"{shown(path)} has a name of more than {_LONGEST_NAME} bytes, which SquashFS cannot "
            "have; rename it, or use another container"
        )
    return path


def _hand_on(one: Member, pipe: IO[bytes]) -> None:
    """The bytes of a file, and what fills its last block."""
    left = one.size
    for chunk in one.chunks:
        left -= len(chunk)
        if left < 0:
            break
        pipe.write(chunk)
    if left:
        raise UserError(
            f"{shown(one.path)} has {'more' if left < 0 else 'less'} than the {one.size} bytes it "
            f"had at first: it changed meanwhile; pack again"
        )
    pipe.write(bytes(-one.size % tar.BLOCK))


def _drop(pipe: IO[bytes] | None) -> None:
    """Close a pipe whose reader may be gone, with what is still to be written to it."""
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.close()


def _failure(code: int, said: IO[bytes], out: Path) -> Exception:
    said.seek(0)
    text = said.read().decode("utf-8", "replace").strip()[-_SAID:]
    for number in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(number) in text:
            return OSError(number, os.strerror(number), str(out))
    ended = f"was ended by signal {-code}" if code < 0 else f"failed (exit {code})"
    return UserError(f"mksquashfs {ended} while it wrote {out}: {text or 'it said nothing'}")
