"""Writes a container: at final offsets by many processes, or as a stream by one program.

From units that are all written to a container that is complete: the index comes last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ... import __version__
from ...base.errors import RunFailed, UserError
from ...base.files import fsync_directory, pwrite_all, write_json
from .. import images, indexes, stamp
from ..index import Index, Int64s, UInt64s, data_path
from ..pool import spread
from ..verified import Reader, SourceDamaged, SourceProblem, Span
from . import journal
from .checks import Looker, listed, looked_at, usable
from .journal import Pack, Units, sync
from .layout import Layout, Piece, sample_bytes
from .source import root

_POLL = 0.2  # seconds between two looks for a reason to stop
_PROBLEMS = 100  # units with changed samples after which a copy ends early
_BATCH = 1024  # samples of a stream whose places are looked up in one go
# Measured on 10 000 photos in memory: 2 MiB stay in the caches, 16 MiB take 15 % longer. File
# systems with larger blocks get one of them at a time.
BUFFER = 2 << 20, 16 << 20  # at least, at most
_OPEN = 64


def without_damaged(pack: Pack, source: Index) -> tuple[Index, list[dict[str, Any]]]:
    """Look at all images before the copy, for `--bad fail` and `skip`.

    Returns:
        the source without what is left out, and what is to be said of images.

    Raises:
        UserError: with `fail`, an image is damaged.
    """
    found = looked_at(Reader(source, root(pack.request)), pack.workers, pack.watch)
    kept, left_out = usable(source, pack.request.bad, found, images.DAMAGED)
    return kept, listed(source, found) + left_out


def fill(pack: Pack, source: Index, base: Path, layout: Layout) -> tuple[Layout, UInt64s, int]:
    """Write a container at final offsets, with all processes.

    Args:
        base: what the source's files are relative to.

    Returns:
        its layout, the hashes of its samples (fields, n), and the bytes that were read now.
    """
    layout = journal.begin(pack, layout)
    with closing(Units(pack, layout)) as units:
        began = units.done.copy()
        sizes, samples = _of_units(layout)
        before = int(sizes[began].sum())
        if began.any():
            there = np.count_nonzero(began)
            pack.say(f"going on: {there} of {len(began)} parts are there already")
        with pack.progress("packing", layout.index) as progress:

            def show() -> None:
                progress(int(sizes[units.done].sum()), samples=int(samples[units.done].sum()))

            show()
            copy(pack, Reader(source, base), layout, units, show)
        return layout, units.hashes(), sample_bytes(layout.index) - before


def copy(
    pack: Pack, reader: Reader, layout: Layout, units: Units, show: Callable[[], None]
) -> None:
    """Copy the units that are not done yet.

    Raises:
        SourceProblem: samples are not as they were scanned; what is done is noted.
        WorkerFailed, OSError: see `pool.spread`.
    """
    todo = np.flatnonzero(~units.done).tolist()
    looker = Looker(reader.index, pack.looks)
    copier: list[Copier] = []  # one in each worker, which it makes itself

    def one(unit: int) -> tuple[int, UInt64s | SourceProblem, list[dict[str, Any]]]:
        if not copier:
            copier.append(Copier(layout, pack.data, reader, looker))
        found: UInt64s | SourceProblem
        try:
            found = copier[0].unit(unit, pack.request.fsync)
        except SourceProblem as problem:
            found = problem
        return unit, found, looker.take()

    problems: list[SourceProblem] = []
    for unit, found, notes in spread(one, todo, pack.workers, pack.watch):
        if isinstance(found, SourceProblem):  # the others are copied, so that all are named
            problems.append(found)
            if len(problems) >= _PROBLEMS:
                break
            continue
        pack.note(notes)  # before the unit counts as done
        units.note(unit, found)
        show()
    if problems:
        damaged = all(isinstance(one, SourceDamaged) for one in problems)
        kind = SourceDamaged if damaged else SourceProblem
        raise kind(*sorted({text for problem in problems for text in problem.args}))


class Copier:
    """Writes units of one container. A process has one, and uses it for one unit after another.

    What belongs side by side in the container (a header, a sample, padding, the next header) is put
    side by side in one buffer: samples are read straight into it, hashed where they lie, and
    written in one call.

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
        try:
            pwrite_all(self._descriptor(file), data, offset)
        except OSError as error:  # which the system gives no name
            error.filename = str(data_path(self._root, self._layout.index.files, file))
            raise

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


def stream(pack: Pack, source: Index, base: Path) -> tuple[Index, int]:
    """Write a SquashFS: mksquashfs makes it of a stream, so one process reads all in order.

    Returns:
        its index, and the bytes that were read.

    Raises:
        SourceProblem: a source is not as it was scanned.
        UserError, OSError: see `squashfs.write`; there is no image then.
    """
    from ..containers import squashfs

    reader = Reader(source, base)
    journal.clear(pack.data)
    hashes = np.zeros((len(source.fields), len(source)), np.uint64)
    looker = Looker(source, pack.looks)
    done, looked = 0, 0.0
    batch, columns = range(0), reader.spans(range(0))
    with pack.progress("packing", source) as progress:

        def chunks(field: int, row: int) -> Iterator[memoryview | bytes]:
            nonlocal done, looked, batch, columns
            if row not in batch:
                batch = range(row, min(row + _BATCH, len(source)))
                columns = reader.spans(batch)
            span = columns[field][row - batch.start]
            if time.monotonic() - looked > _POLL:
                looked = time.monotonic()
                pack.watch()
                progress(done, samples=row)
            digest = xxhash.xxh3_64()
            for chunk in looker.passing(span, reader.chunks(span)):
                digest.update(chunk)
                yield chunk
            hashes[field, row] = digest.intdigest()
            done += max(span.length, 0)

        members = squashfs.members(source, chunks)
        squashfs.write(members, pack.data, processors=pack.workers)
    reader.check(0, hashes)
    reader.close()
    pack.note(looker.take())
    index = squashfs.indexed(source, pack.data, hashes)
    return with_hashes(index, hashes), sample_bytes(source)


def _of_units(layout: Layout) -> tuple[Int64s, Int64s]:
    """Return the bytes of samples, and the samples, of each unit."""
    sizes = np.zeros(len(layout.units) - 1, np.int64)
    for field in layout.index.fields:
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(field.length)])
        sizes += np.diff(ends[layout.units])
    return sizes, np.diff(layout.units)


def hashed(layout: Layout, hashes: UInt64s, data: Path) -> Index:
    """Write what a format puts beside its data, and return the index with its hashes.

    Raises:
        OSError: something could not be written or read.
    """
    for path in data.glob(".*.tmp"):  # of one that was killed in the midst of this
        path.unlink()
    layout.finish(data, hashes)
    return with_hashes(replace(layout.index, sizes=layout.sizes), hashes)


def complete(index: Index, data: Path, files_before: int) -> Index:
    """Return the index with what tells later whether a container is the one that was packed.

    Nothing is taken over of what the source's index says of its own files.
    """
    facts = {
        **index.facts,
        "writer": f"rankup {__version__}",
        "ends": stamp.all_ends(index, data),
        "files_before": files_before,
    }
    return replace(index, facts=facts)


def with_hashes(index: Index, hashes: UInt64s) -> Index:
    """Return the index with the hashes of all samples, uint64 (fields, n)."""
    pairs = zip(index.fields, hashes, strict=True)
    return replace(index, fields=tuple(replace(field, hash=column) for field, column in pairs))


def save(pack: Pack, index: Index, report: Mapping[str, Any]) -> None:
    """Write report and index into the work folder; from here on only names change.

    Raises:
        OSError: it could not be written; nothing looks complete then.
    """
    if pack.request.fsync:
        sync(pack.data)
    write_json(pack.report, report)
    indexes.save(index, pack.index)


def publish(pack: Pack) -> None:
    """Let the container appear under its name, and its index as the last.

    Each name is made first, which fails where it is there, and what is empty and ours is replaced.
    (A link in two folders would do it in one step, but not on BeeGFS; RENAME_NOREPLACE not on GPFS
    and NFS.)

    Raises:
        UserError: something of that name has come meanwhile.
        OSError: a name could not be changed; nothing looks complete then.
    """
    again = pack.published.exists()
    if not again:
        free(pack)
        write_json(pack.published, {})
    for path, name in pack.names.items():
        if path.exists():
            _rename(path, name, again)
        elif not os.path.lexists(name):
            raise RunFailed(f"{name} is gone since it was packed; remove {pack.part} and pack anew")


def free(pack: Pack) -> None:
    """Refuse a pack where something has a name that is needed.

    Raises:
        UserError: something has.
    """
    for name in pack.names.values():
        if os.path.lexists(name):
            raise UserError(_taken(name))


def _rename(path: Path, name: Path, again: bool) -> None:
    try:
        if path.is_dir():
            name.mkdir()
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    except FileExistsError:
        # Of a publication that was killed between the two it is ours, and empty.
        if not again or not _is_empty(name):
            raise UserError(_taken(name)) from None
    os.rename(path, name)
    fsync_directory(name.parent)


def _is_empty(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return not any(path.iterdir())
    return path.lstat().st_size == 0


def _taken(path: Path) -> str:
    return (
        f"{path} is there, and a pack of that name would overwrite it: remove it or give it "
        "another name, and run the same command again (with --resume if it had begun)"
    )
