"""The heart of a pack: one unit of a container, written at its final place.

What belongs side by side in the container (a header, a sample, padding, the next header) is put
side by side in one buffer: samples are read straight into it, hashed where they lie, and written
in one call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import xxhash

from ...base.files import pwrite_all
from ..index import UInt64s, data_path
from ..verified import Reader, SourceProblem, Span
from .checks import Looker
from .layout import Layout, Piece

# Measured on 10 000 photos in memory: 2 MiB stay in the caches, 16 MiB take 15 % longer. File
# systems with larger blocks get one of them at a time.
BUFFER = 2 << 20, 16 << 20  # at least, at most
_OPEN = 64


class Copier:
    """Writes units of one container. A process has one, and uses it for one unit after another.

    Args:
        root: the container's folder or file, as its layout has begun it.
        looker: sees every sample's bytes on their way.
    """

    def __init__(self, layout: Layout, root: Path, reader: Reader, looker: Looker) -> None:
        self._layout, self._root, self._reader, self._looker = layout, root, reader, looker
        self._size = min(max(os.stat(root).st_blksize, BUFFER[0]), BUFFER[1])
        self._buffer = memoryview(bytearray(self._size))
        self._open: dict[int, int] = {}
        self._filled, self._file, self._offset = 0, 0, 0

    def unit(self, number: int, sync: bool) -> UInt64s:
        """Write a unit and give the hashes of its samples, uint64 (fields, rows).

        Args:
            sync: come back only once it is on the disk.

        Raises:
            SourceProblem: samples of it are not as they were scanned; the unit is not whole.
            OSError: it could not be written.
        """
        start, stop = (int(row) for row in self._layout.units[number : number + 2])
        spans = self._reader.spans(range(start, stop))
        hashes = np.zeros((len(spans), stop - start), np.uint64)
        # Of each thing: where it goes to, and what it is. Unique numbers decide between things at
        # one place, which are empty but for one.
        things: list[tuple[int, int, int, bytes | Span]] = [
            (file, offset, index, data)
            for index, (file, offset, data) in enumerate(self._layout.before(start, stop))
        ]
        for field, column in zip(self._layout.index.fields, spans, strict=True):
            files = [0] * len(column) if field.file is None else field.file[start:stop].tolist()
            first = len(things)
            numbers = range(first, first + len(column))
            things += zip(files, field.offset[start:stop].tolist(), numbers, column, strict=True)
        things.sort()
        found: list[str] = []
        for file, offset, _, thing in things:
            if isinstance(thing, bytes):
                self._put(file, offset, thing)
                continue
            try:
                hashes[thing.field, thing.row - start] = self._sample(file, offset, thing)
            except SourceProblem as problem:
                found += problem.args
        self._flush()
        if found:
            raise SourceProblem(*found)
        self._reader.check(start, hashes)
        self._pieces(self._layout.after(start, stop, hashes))
        if sync:
            for descriptor in self._open.values():
                os.fdatasync(descriptor)
        return hashes

    def _pieces(self, pieces: Iterable[Piece]) -> None:
        for file, offset, data in sorted(pieces):
            self._put(file, offset, data)
        self._flush()

    def _put(self, file: int, offset: int, data: bytes) -> None:
        if len(data) > self._size:
            self._flush()
            self._write(file, offset, memoryview(data))
            return
        at = self._place(file, offset, len(data))
        self._buffer[at : at + len(data)] = data
        self._filled = at + len(data)

    def _sample(self, file: int, offset: int, span: Span) -> int:
        if span.length > self._size:
            return self._large(file, offset, span)
        at = self._place(file, offset, span.length)
        self._reader.into(span, self._buffer[at:])
        self._filled = at + span.length
        data = self._buffer[at : self._filled]
        self._looker(span, data, data)
        return xxhash.xxh3_64_intdigest(data)

    def _large(self, file: int, offset: int, span: Span) -> int:
        """A sample that does not fit into the buffer goes by in chunks."""
        self._flush()
        state = xxhash.xxh3_64()
        for chunk in self._looker.passing(span, self._reader.chunks(span)):
            view = memoryview(chunk)
            state.update(view)
            self._write(file, offset, view)
            offset += len(view)
        return state.intdigest()

    def _place(self, file: int, offset: int, length: int) -> int:
        """Where in the buffer goes what stands at an offset of a file; empties it first if need."""
        at = self._filled
        if at and (file != self._file or offset != self._offset + at or at + length > self._size):
            self._flush()
            at = 0
        if not at:
            self._file, self._offset = file, offset
        return at

    def _flush(self) -> None:
        if self._filled:
            size, self._filled = self._filled, 0
            self._write(self._file, self._offset, self._buffer[:size])

    def _write(self, file: int, offset: int, data: memoryview) -> None:
        pwrite_all(self._descriptor(file), data, offset)

    def _descriptor(self, file: int) -> int:
        found = self._open.get(file)
        if found is None:
            if len(self._open) >= _OPEN:
                descriptor = self._open.pop(next(iter(self._open)))
                os.fdatasync(descriptor)  # its unit may not be complete, and syncs what is open
                os.close(descriptor)
            path = data_path(self._root, self._layout.index.files, file)
            found = self._open[file] = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        return found
