"""Writes a container: at final offsets by many processes, or as a stream by one program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from .. import images, indexes
from ..index import Index, Int64s, UInt64s
from ..pool import spread
from ..verified import Reader, SourceDamaged, SourceProblem
from . import journal
from .checks import Looker, damaged, listed, looked_at, refuse, without
from .context import Pack, shape
from .copy import Copier
from .journal import Units
from .layout import Layout, plan
from .report import missing_space, sample_bytes
from .source import root

_POLL = 0.2  # seconds between two looks at what other tasks have done
_PROBLEMS = 100  # units with changed samples after which a copy ends early
_BATCH = 1024  # samples of a stream whose places are looked up in one go


def without_damaged(pack: Pack, source: Index) -> tuple[Index, list[dict[str, Any]]]:
    """Look at all images before the copy, for `--bad fail` and `skip`.

    Returns:
        the source without what is left out, and what is to be said of images.

    Raises:
        UserError: with `fail`, an image is damaged.
    """
    found = looked_at(Reader(source, root(pack.request)), pack.workers, pack.watch)
    rows = damaged(found)
    if pack.request.bad == "fail":
        refuse(source, rows, found)
    notes = listed(source, found) + [{"left_out": source.path(row)} for row in rows]
    return (without(source, rows) if rows else source), notes


def fill(pack: Pack, source: Index, base: Path, layout: Layout) -> tuple[Layout, UInt64s, int]:
    """Write a container at final offsets, with all processes and all tasks.

    Args:
        base: what the source's files are relative to.

    Returns:
        its layout, the hashes of its samples (fields, n), and the bytes that were read now.
    """
    work = pack.work
    told = {
        "step": pack.step.name,
        "source": "spooled.npz" if base == work.part else work.source.name,
        "root": str(base),
    }
    with missing_space(work, lambda: int(layout.sizes.sum())):
        layout = journal.begin(work, layout, fsync=pack.request.fsync, told=told)
        began = journal.done(work)
        sizes, samples = _of_units(layout)
        before = int(sizes[began].sum())
        if began.any():
            there = np.count_nonzero(began)
            pack.say(f"going on: {there} of {len(began)} parts are there already")
        with pack.progress("packing", layout.index, before) as progress:

            def show() -> None:
                new = journal.done(work) & ~began
                progress(int(sizes[new].sum()), int(samples[new].sum()))

            copy(pack, Reader(source, base), layout, show)
            while not journal.done(work).all():  # other tasks are not yet through
                pack.watch()
                show()
                time.sleep(_POLL)
    return layout, journal.hashes(work, layout), sample_bytes(layout.index) - before


def help_to_fill(pack: Pack) -> None:
    """Copy the units of a task other than the first, once there is something to copy to."""
    work = pack.work
    try:
        while (told := journal.read_begun(work)).get("step") != pack.step.name:
            if pack.goal.index.exists():  # there is nothing to do, or nothing any more
                return
            pack.watch()
            time.sleep(_POLL)
        source = indexes.load(work.part / told["source"])
        layout = plan(pack.goal.container, source, shape(pack.request)).attach(work.data)
        copy(pack, Reader(source, Path(told["root"])), layout, lambda: None)
    except FileNotFoundError:
        # Too late: the others have done it all, and the work folder is being cleared away.
        if not pack.goal.index.exists():
            raise


def copy(pack: Pack, reader: Reader, layout: Layout, show: Callable[[], None]) -> None:
    """Copy the units of this task that are not done yet.

    Raises:
        SourceProblem: samples are not as they were scanned; what is done is noted.
        WorkerFailed, OSError: see `pool.spread`.
    """
    work, fsync = pack.work, pack.request.fsync
    done = journal.done(work)
    todo = [unit for unit in range(len(done))[pack.step.task :: pack.step.tasks] if not done[unit]]
    looker = Looker(reader.index) if pack.looks else None
    copier: list[Copier] = []  # one in each worker, which it makes itself

    def one(unit: int) -> tuple[int, UInt64s | SourceProblem, list[dict[str, Any]]]:
        if not copier:
            copier.append(Copier(layout, work.data, reader, looker))
        found: UInt64s | SourceProblem
        try:
            found = copier[0].unit(unit, fsync)
        except SourceProblem as problem:
            found = problem
        return unit, found, looker.take() if looker is not None else []

    problems: list[SourceProblem] = []
    units = Units(work, layout, fsync=fsync)
    try:
        for unit, found, notes in spread(one, todo, pack.workers, pack.watch):
            if isinstance(found, SourceProblem):  # the others are copied, so that all are named
                problems.append(found)
                if len(problems) >= _PROBLEMS:
                    break
                continue
            work.note(notes, pack.step.task)  # before the unit counts as done
            units.note(unit, found)
            show()
    finally:
        units.close()
    if problems:
        damaged = all(isinstance(one, SourceDamaged) for one in problems)
        kind = SourceDamaged if damaged else SourceProblem
        raise kind(*sorted({text for problem in problems for text in problem.args}))


def stream(pack: Pack, source: Index, base: Path) -> tuple[Index, int]:
    """Write a SquashFS: mksquashfs makes it of a stream, so one process reads all in order.

    Returns:
        its index, and the bytes that were read.

    Raises:
        SourceProblem: a source is not as it was scanned.
        UserError, OSError: see `squashfs_write.write`; there is no image then.
    """
    from ..containers import squashfs, squashfs_write

    work, reader = pack.work, Reader(source, base)
    journal.clear(work.data)
    hashes = np.zeros((len(source.fields), len(source)), np.uint64)
    looker = Looker(source) if pack.looks else None
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
                progress(done, row)
            digest, head, tail = xxhash.xxh3_64(), b"", b""
            looks = looker is not None and looker.name(span)
            for chunk in reader.chunks(span):
                digest.update(chunk)
                if looks:
                    head = head or bytes(chunk[: images.HEAD])
                    tail = (tail + bytes(chunk[-images.TAIL :]))[-images.TAIL :]
                yield chunk
            hashes[field, row] = digest.intdigest()
            if looker is not None and looks:
                looker(span, head, tail)
            done += max(span.length, 0)

        squashfs_write.write(
            squashfs.members(source, chunks),
            work.data,
            block=shape(pack.request).block,
            processors=pack.workers,
        )
    reader.check(0, hashes)
    reader.close()
    if looker is not None:
        work.note(looker.take())
    index = squashfs.indexed(source, work.data, hashes)
    fields = tuple(
        replace(field, hash=column) for field, column in zip(index.fields, hashes, strict=True)
    )
    return replace(index, fields=fields), sample_bytes(source)


def _of_units(layout: Layout) -> tuple[Int64s, Int64s]:
    """Return the bytes of samples, and the samples, of each unit."""
    sizes = np.zeros(len(layout.units) - 1, np.int64)
    for field in layout.index.fields:
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(field.length)])
        sizes += np.diff(ends[layout.units])
    return sizes, np.diff(layout.units)
