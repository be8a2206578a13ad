"""The one reader that compares: samples as they were scanned, with the hashes that they had.

What is packed, verified and extracted goes through it. A file that has changed, was cut short or is
gone is named, and so is a sample that has not its hash.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from .containers import Fallbacks
from .errors import BadContainer
from .index import Index, UInt64s

# Of containers with more files than this (plain files) each is opened for its samples alone.
_KEPT = 128
_CHUNK = 4 << 20
# A pipe that has come in the place of a file would wait for its writer.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class SourceProblem(Exception):  # noqa: N818 - it is what was found
    """Files that changed, vanished or cannot be read: each argument is a text that names one."""


class SourceDamaged(SourceProblem):
    """Samples that have not their hash: each argument is a text that names one."""


class Span(NamedTuple):
    """One field of one sample.

    Attributes:
        path: of its file, where that is opened for this sample alone; else empty.
        whole: the sample is the file: what stands behind it must be the end then.
        time: that the file was modified at, -1 where that is not known.
    """

    field: int
    row: int
    file: int
    offset: int
    length: int
    path: bytes
    whole: bool
    time: int


class Reader:
    """The bytes of samples. Made before workers are forked; each opens for itself.

    Args:
        index: all lengths are known, but for what is only read by `chunks`.
        root: what the names of its files are relative to.
    """

    def __init__(self, index: Index, root: Path) -> None:
        self.index, self._root = index, root
        self._base = os.path.join(os.fsencode(root), b"")  # with a / at its end
        self._keep = len(index.files) <= _KEPT
        self._kept: dict[int, tuple[int, os.stat_result]] = {}
        self._sized = len(index.sizes) == len(index.files)
        times = index.times
        self._times = times if times is not None and len(times) == len(index.files) else None
        self._fallbacks = Fallbacks(index, root)
        self._buffer = memoryview(b"")

    def spans(self, rows: range | npt.NDArray[np.int64]) -> list[list[Span]]:
        """Return the spans of samples, of each field a list."""
        at = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        return [self._column(number, at, len(rows)) for number in range(len(self.index.fields))]

    def into(self, span: Span, view: memoryview) -> None:
        """Fill `view[:span.length]` with the bytes of a sample.

        Raises:
            SourceProblem: the source is not as it was scanned.
        """
        if span.offset >= 0:
            for _ in self._pieces(span, view[: span.length]):
                pass
            return
        at = 0
        for chunk in self.chunks(span):
            view[at : at + len(chunk)] = chunk
            at += len(chunk)

    def chunks(self, span: Span) -> Iterator[memoryview | bytes]:
        """Yield the bytes of a sample piece by piece, of any length.

        Raises:
            SourceProblem: the source is not as it was scanned.
        """
        if span.offset >= 0:
            yield from self._pieces(span, memoryview(bytearray(min(_CHUNK, span.length))))
            return
        if span.length < 0:
            yield from self._through_fallback(span)
            return
        left = span.length
        for piece in self._through_fallback(span):
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise SourceProblem(f"{self.index.path(span.row)} has changed since it was scanned")

    def hashed(self, span: Span) -> tuple[int, int]:
        """Return xxh3 of a sample, and its length.

        Raises:
            SourceProblem: the source is not as it was scanned.
        """
        if 0 <= span.length <= _CHUNK:
            if not self._buffer:
                self._buffer = memoryview(bytearray(_CHUNK))
            self.into(span, self._buffer)
            return xxhash.xxh3_64_intdigest(self._buffer[: span.length]), span.length
        state, size = xxhash.xxh3_64(), 0
        for piece in self.chunks(span):
            state.update(piece)
            size += len(piece)
        return state.intdigest(), size

    def check(self, start: int, hashes: UInt64s) -> None:
        """Look again at the files that stay open, and compare the hashes of what was read.

        Args:
            start: row of the first sample.
            hashes: uint64 (fields, rows).

        Raises:
            SourceProblem: a file has changed meanwhile.
            SourceDamaged: samples have other hashes.
        """
        for file, (descriptor, about) in self._kept.items():
            now = os.fstat(descriptor)
            if (now.st_size, now.st_mtime_ns) != (about.st_size, about.st_mtime_ns):
                raise self._changed(file)
        found = []
        for field, read in zip(self.index.fields, hashes, strict=True):
            if field.hash is not None:
                wrong = np.flatnonzero(field.hash[start : start + len(read)] != read) + start
                found += [
                    f"{self.index.path(row)} is damaged: not the bytes it was packed with"
                    for row in wrong.tolist()
                ]
        if found:
            raise SourceDamaged(*found)

    def close(self) -> None:
        """Close what is open."""
        kept, self._kept = self._kept, {}
        for descriptor, _ in kept.values():
            os.close(descriptor)

    def _column(self, number: int, at: slice | npt.NDArray[np.int64], n: int) -> list[Span]:
        field = self.index.fields[number]
        offset, length = field.offset[at], field.length[at]
        file = np.zeros(n, np.int64) if field.file is None else field.file[at]
        rows = range(at.start, at.stop) if isinstance(at, slice) else at.tolist()
        whole, times, paths = [False] * n, [-1] * n, [b""] * n
        if self._sized:
            whole = ((offset == 0) & (self.index.sizes[file] == length)).tolist()
        if self._times is not None:
            times = self._times[file].tolist()
        if not self._keep:
            paths = [os.path.join(self._base, name) for name in self.index.files.take(file)]
        columns = (file.tolist(), offset.tolist(), length.tolist(), paths, whole, times)
        return list(map(Span, itertools.repeat(number), rows, *columns))

    def _pieces(self, span: Span, buffer: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of a sample, each piece in the buffer; of its length it is one piece."""
        descriptor = self._open(span)
        try:
            done = 0
            while done < span.length:
                piece = buffer[: span.length - done]
                got = 0
                while got < len(piece):
                    count = os.preadv(descriptor, [piece[got:]], span.offset + done + got)
                    if not count:
                        raise self._changed(span.file)
                    got += count
                yield piece
                done += got
            self._after(span, descriptor)
        except OSError as error:
            raise self._unreadable(span, error) from None
        finally:
            self._close(descriptor)

    def _through_fallback(self, span: Span) -> Iterator[memoryview | bytes]:
        name = self.index.fields[span.field].name
        try:
            yield from self._fallbacks.chunks(name, span.offset)
        except (BadContainer, OSError) as error:
            raise SourceProblem(f"{self.index.path(span.row)}: {error}") from None

    def _open(self, span: Span) -> int:
        kept = self._kept.get(span.file)
        if kept is not None:
            return kept[0]
        try:
            descriptor = os.open(span.path or self._path(span.file), _READ)
        except OSError as error:
            raise self._unreadable(span, error) from None
        if self._keep:
            about = os.fstat(descriptor)
            if self._is_other(span, about):
                os.close(descriptor)
                raise self._changed(span.file)
            self._kept[span.file] = descriptor, about
        return descriptor

    def _after(self, span: Span, descriptor: int) -> None:
        """Look at a file that is opened for one sample when that has been read; see `check`."""
        if not self._keep and self._is_other(span, os.fstat(descriptor)):
            raise self._changed(span.file)

    def _is_other(self, span: Span, about: os.stat_result) -> bool:
        # Of a sample that is its file, the length is the size.
        size = span.length if span.whole else self._size(span.file)
        regular = stat.S_ISREG(about.st_mode)
        return not regular or about.st_size != size >= 0 or about.st_mtime_ns != span.time >= 0

    def _size(self, file: int) -> int:
        return int(self.index.sizes[file]) if self._sized else -1

    def _close(self, descriptor: int) -> None:
        if not self._keep:
            os.close(descriptor)

    def _path(self, file: int) -> bytes:
        name = self.index.files[file]
        return os.path.join(self._base, name) if name else self._base[:-1]

    def _changed(self, file: int) -> SourceProblem:
        return SourceProblem(f"{os.fsdecode(self._path(file))} has changed since it was scanned")

    def _unreadable(self, span: Span, error: OSError) -> SourceProblem:
        path = os.fsdecode(self._path(span.file))
        if isinstance(error, FileNotFoundError):
            return SourceProblem(f"{path} is no longer there")
        if error.errno in (errno.EISDIR, errno.ESPIPE, errno.ENXIO):  # no file any more
            return self._changed(span.file)
        return SourceProblem(f"{path} cannot be read: {error.strerror or error}")
