"""Reads the samples of a source while they are packed: each once, and only as it was scanned."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..containers import Fallback, module
from ..errors import BadContainer
from ..index import Index, UInt64s

# Sources with more files than this are plain files, each opened for its samples.
_KEPT = 128
DAMAGED = "is damaged: not the bytes it was packed with"
_CHUNK = 4 << 20
# A pipe that has come in the place of a file would wait for its writer.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class SourceProblem(Exception):  # noqa: N818 - it is what was found
    """A source file that changed, vanished or cannot be read; the message names it."""


class Span(NamedTuple):
    """One field of one sample of a source.

    Attributes:
        path: of its file, where that is opened for this sample alone; else empty.
        whole: whether the sample is the file: what stands behind it must be the end then.
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
    """The bytes of a source's samples. Made before workers are forked; each opens for itself.

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
        self._fallback: Fallback | None = None

    def spans(self, start: int, stop: int) -> list[list[Span]]:
        """The spans of the samples [start, stop), of each field a list."""
        return [self._column(number, start, stop) for number in range(len(self.index.fields))]

    def _column(self, number: int, start: int, stop: int) -> list[Span]:
        field, n = self.index.fields[number], stop - start
        offset, length = field.offset[start:stop], field.length[start:stop]
        file = np.zeros(n, np.int64) if field.file is None else field.file[start:stop]
        whole, times, paths = [False] * n, [-1] * n, [b""] * n
        if self._sized:
            whole = ((offset == 0) & (self.index.sizes[file] == length)).tolist()
        if self._times is not None:
            times = self._times[file].tolist()
        if not self._keep:
            paths = [os.path.join(self._base, name) for name in self.index.files.take(file)]
        return list(
            map(
                Span,
                *(itertools.repeat(number), range(start, stop)),
                *(file.tolist(), offset.tolist(), length.tolist()),
                *(paths, whole, times),
            )
        )

    def into(self, span: Span, view: memoryview) -> None:
        """Fill `view[:span.length]`; one byte behind it may be overwritten.

        Args:
            view: one byte longer than the sample: a file that has grown shows by filling it.

        Raises:
            SourceProblem: the source is not as it was scanned.
        """
        if span.offset < 0:
            at = 0
            for chunk in self.chunks(span):
                view[at : at + len(chunk)] = chunk
                at += len(chunk)
            return
        descriptor = self._open(span)
        try:
            wanted = span.length + span.whole
            got = os.preadv(descriptor, [view[:wanted]], span.offset)
            while got < span.length:
                more = os.preadv(descriptor, [view[got:wanted]], span.offset + got)
                if not more:
                    break
                got += more
            if got != span.length:
                raise self._changed(span.file)
            self._after(span, descriptor)
        except OSError as error:
            raise self._unreadable(span, error) from None
        finally:
            if not self._keep:
                os.close(descriptor)

    def chunks(self, span: Span) -> Iterator[memoryview | bytes]:
        """The bytes of a sample piece by piece, of any length.

        Raises:
            SourceProblem: the source is not as it was scanned.
        """
        pieces = self._pieces(span) if span.offset >= 0 else self._through_fallback(span)
        if span.length < 0:
            yield from pieces
            return
        left = span.length
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise SourceProblem(f"{self.index.path(span.row)} has changed since it was scanned")

    def ends(self, span: Span, head: int, tail: int) -> tuple[bytes, bytes]:
        """The first and last bytes of a sample, without what is between where that is possible."""
        if span.offset < 0:
            first, last = b"", b""
            for piece in self.chunks(span):
                if len(first) < head:
                    first += bytes(piece[: head - len(first)])
                last = (last + bytes(piece[-tail:]))[-tail:]
            return first, last
        descriptor = self._open(span)
        try:
            first = os.pread(descriptor, min(head, span.length), span.offset)
            self._after(span, descriptor)
            if span.length <= len(first):
                return first, first[-tail:]
            size = min(tail, span.length)
            return first, os.pread(descriptor, size, span.offset + span.length - size)
        except OSError as error:
            raise self._unreadable(span, error) from None
        finally:
            self._close(descriptor)

    def check(self) -> None:
        """Look again at the files that stay open, after samples were read.

        Raises:
            SourceProblem: one has changed meanwhile.
        """
        for file, (descriptor, about) in self._kept.items():
            now = os.fstat(descriptor)
            if (now.st_size, now.st_mtime_ns) != (about.st_size, about.st_mtime_ns):
                raise self._changed(file)

    def close(self) -> None:
        """Close what is open."""
        kept, self._kept = self._kept, {}
        for descriptor, _ in kept.values():
            os.close(descriptor)

    def _pieces(self, span: Span) -> Iterator[memoryview]:
        descriptor = self._open(span)
        try:
            buffer = memoryview(bytearray(min(_CHUNK, span.length) + 1))
            done = 0
            while done < span.length:
                size = min(_CHUNK, span.length - done)
                size += span.whole and done + size == span.length
                got = os.preadv(descriptor, [buffer[:size]], span.offset + done)
                if not got or done + got > span.length:
                    raise self._changed(span.file)
                yield buffer[:got]
                done += got
            self._after(span, descriptor)
        except OSError as error:
            raise self._unreadable(span, error) from None
        finally:
            self._close(descriptor)

    def _through_fallback(self, span: Span) -> Iterator[memoryview | bytes]:
        if self._fallback is None:
            self._fallback = module(self.index.container).fallback(self.index, self._root)
        name = self.index.fields[span.field].name
        try:
            yield from self._fallback.chunks(name, ~span.offset)
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
            if self._other(span, about):
                os.close(descriptor)
                raise self._changed(span.file)
            self._kept[span.file] = descriptor, about
        return descriptor

    def _after(self, span: Span, descriptor: int) -> None:
        """What is opened for one sample is looked at when that has been read; see `check`."""
        if not self._keep and self._other(span, os.fstat(descriptor)):
            raise self._changed(span.file)

    def _other(self, span: Span, about: os.stat_result) -> bool:
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


def damaged(index: Index, start: int, hashes: UInt64s) -> list[str]:
    """Samples whose source has hashes, and other ones; a line for each.

    Args:
        start: row of the first of them.
        hashes: uint64 (fields, rows), of what was read.
    """
    found = []
    for field, read in zip(index.fields, hashes, strict=True):
        if field.hash is not None:
            wrong = np.flatnonzero(field.hash[start : start + len(read)] != read) + start
            found += [f"{index.path(row)} {DAMAGED}" for row in wrong.tolist()]
    return found
