"""A copy that is being made: pieces in any order, each compared with the hashes of its samples."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash

from ...base import files
from ..blocks import Blocks
from ..errors import BadContainer
from ..index import Index, Int64s, data_path
from ..inspect import verify
from ..opened import Samples
from .pieces import Piece, best_piece, outside, pieces, sums_of

_OPEN = 128  # files that stay open; of more, each is opened for each piece


class Part:
    """A copy being made. Its methods may be called by many threads.

    Attributes:
        index: of the source.
        source: what is copied, a file or a folder.
        root: the file or folder that becomes it.
        cuts: int64, bytes of each file that are copied, from its beginning.
        most: bytes of a piece, the last of a file apart.
        pieces: what it consists of.
    """

    def __init__(self, index: Index, source: Path, root: Path, sizes: Int64s, cuts: Int64s) -> None:
        self.index, self.source, self.root, self.cuts = index, source, root, cuts
        self.most = best_piece(source)
        self.pieces = pieces(cuts, self.most)
        self._sizes = sizes
        self._require_inside()
        self._keep = len(index.files) <= _OPEN
        self._open: dict[tuple[int, bool], int] = {}
        self._lock = threading.Lock()
        fields = (sums_of(index, number) for number in range(len(index.fields)))
        self._sums = [one for one in fields if one is not None]
        # Where the samples of each file begin and end in them.
        rows = np.arange(len(index.files) + 1)
        self._edges = [np.searchsorted(one.file, rows) for one in self._sums]

    def _require_inside(self) -> None:
        """Refuse samples that lie in no file, which no piece would be compared with.

        Raises:
            BadContainer: there is one.
        """
        for number in range(len(self.index.fields)):
            row = outside(self.index, number, self._sizes)
            if row is not None:
                raise BadContainer(
                    f"{self.source}: {verify.name(self.index, row, number)} is said to lie where "
                    f"no file has bytes: its index is damaged; restore it"
                )

    @property
    def checked(self) -> bool:
        """Whether every sample has a hash to be compared with."""
        return bool(self.index.fields) and all(one.hash is not None for one in self.index.fields)

    def begin(self) -> None:
        """Make the files, of their length but without their bytes: so others see what will come.

        Raises:
            OSError: they cannot be made.
        """
        (self.root if self.source.is_dir() else self.root.parent).mkdir(parents=True)
        for file in np.flatnonzero((self.cuts > 0) | (self._sizes == 0)).tolist():
            path = data_path(self.root, self.index.files, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, int(self.cuts[file]))
            finally:
                os.close(descriptor)

    def read(self, piece: Piece, into: memoryview) -> memoryview:
        """The bytes of a piece, from the source.

        Args:
            into: at least as long.

        Raises:
            BadContainer: the source is not as long as it was.
            OSError: it cannot be read.
        """
        view = into[: piece.length]
        with self._file(piece.file, False) as descriptor:
            done = 0
            while done < piece.length:
                count = os.preadv(descriptor, [view[done:]], piece.offset + done)
                if not count:
                    raise self._changed(piece.file, "it was cut short while it was copied")
                done += count
        return view

    def write(self, piece: Piece, data: memoryview | bytes) -> int:
        """Put a piece into the copy, once the samples that lie wholly in it are what was packed.

        Returns:
            How many these are.

        Raises:
            BadContainer: one is not, and is named.
            OSError: it cannot be written.
        """
        view = memoryview(data)
        if len(view) != piece.length:
            raise ValueError(f"{len(view)} bytes for {piece}")
        count = self._compare(piece, view)
        with self._file(piece.file, True) as descriptor:
            files.pwrite_all(descriptor, view, piece.offset)
        return count

    def finish(self, threads: int) -> None:
        """Compare what no piece could: samples across two of them, and the bytes between samples.

        Read from the copy, that is from memory.

        Raises:
            BadContainer: something is not what was packed.
            OSError: the copy cannot be read.
        """
        self.close()
        with (
            Samples(self.index, self.source, "pread", any_size=True, data=self.root) as samples,
            ThreadPoolExecutor(threads, "rankup-stage") as pool,
        ):
            for _ in pool.map(lambda one: self._again(samples, *one), self._across()):
                pass
            for row, field in self._fallback() if self.cuts.sum() == self._sizes.sum() else ():
                self._again(samples, row, field)
            if self.index.blocks is not None:
                self._blocks(pool)

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def _compare(self, piece: Piece, view: memoryview) -> int:
        count = 0
        stop = piece.offset + piece.length
        for sums, edges in zip(self._sums, self._edges, strict=True):
            low, high = int(edges[piece.file]), int(edges[piece.file + 1])
            begin = sums.offset[low:high]
            first = low + int(np.searchsorted(begin, piece.offset, "left"))
            last = low + int(np.searchsorted(begin, stop, "left"))
            offsets = (sums.offset[first:last] - piece.offset).tolist()
            lengths = sums.length[first:last].tolist()
            hashes = sums.hash[first:last].tolist()
            for number, (at, length, digest) in enumerate(
                zip(offsets, lengths, hashes, strict=True)
            ):
                if at + length > piece.length:
                    continue
                if xxhash.xxh3_64_intdigest(view[at : at + length]) != digest:
                    raise self._wrong(int(sums.row[first + number]), sums.field)
                count += 1
        return count

    def _across(self) -> Iterator[tuple[int, int]]:
        """Row and field of the samples that lie in two pieces or more."""
        for sums in self._sums:
            last = sums.offset + np.maximum(sums.length, 1) - 1
            across = sums.offset // self.most != last // self.most
            across &= last < self.cuts[sums.file]
            for row in sums.row[across].tolist():
                yield row, sums.field

    def _fallback(self) -> Iterator[tuple[int, int]]:
        """Row and field of the samples that the format's own reader reads."""
        for number, field in enumerate(self.index.fields):
            if field.hash is not None:
                for row in np.flatnonzero(field.offset < 0).tolist():
                    yield row, number

    def _again(self, samples: Samples, row: int, field: int) -> None:
        expected = self.index.fields[field].hash
        assert expected is not None
        try:
            digest = xxhash.xxh3_64()
            for chunk in samples.chunks(row, self.index.fields[field].name):
                digest.update(chunk)
        except BadContainer as error:  # the copy is about to be removed: name what people have
            text = str(error).replace(str(self.root), str(self.source))
            raise BadContainer(text) from None
        if digest.intdigest() != expected[row]:
            raise self._wrong(row, field)

    def _blocks(self, pool: ThreadPoolExecutor) -> None:
        blocks, expected = Blocks(self.index, self.root), self.index.blocks
        assert expected is not None
        if len(blocks) != len(expected):
            raise BadContainer(
                f"{self.source}: its index has hashes of {len(expected)} blocks, and its files "
                f"have {len(blocks)}: it is damaged"
            )
        file, stop = blocks.stops()

        def compare(block: int) -> None:
            if blocks.hashes(block, block + 1)[0] != expected[block]:
                what = Blocks(self.index, self.source).name(block)
                raise BadContainer(
                    f"{self.source}: {what} are not those that were packed: nothing was staged; "
                    f"restore it"
                )

        for _ in pool.map(compare, np.flatnonzero(stop <= self.cuts[file]).tolist()):
            pass

    def _wrong(self, row: int, field: int) -> BadContainer:
        return BadContainer(
            f"{self.source}: the bytes of {verify.name(self.index, row, field)} are not those that "
            f"were packed: nothing was staged. `rankup inspect --verify` finds all that is "
            f"damaged; restore it"
        )

    def _changed(self, file: int, how: str) -> BadContainer:
        path = data_path(self.source, self.index.files, file)
        return BadContainer(f"{path}: {how}; nothing was staged: run it again once it is at rest")

    @contextmanager
    def _file(self, file: int, ours: bool) -> Iterator[int]:
        """A descriptor of a file, of ours to be written or of the source to be read."""
        descriptor = self._open.get((file, ours))
        if descriptor is None:
            descriptor = self._opened(file, ours)
            if self._keep:
                with self._lock:
                    kept = self._open.setdefault((file, ours), descriptor)
                if kept != descriptor:
                    os.close(descriptor)
                    descriptor = kept
        try:
            yield descriptor
        finally:
            if not self._keep:
                os.close(descriptor)

    def _opened(self, file: int, ours: bool) -> int:
        if ours:
            path = data_path(self.root, self.index.files, file)
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        path = data_path(self.source, self.index.files, file)
        # A pipe in the place of a file would otherwise wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size != self._sizes[file]:
            os.close(descriptor)
            raise self._changed(file, f"it should have {self._sizes[file]} bytes, and has not")
        return descriptor
