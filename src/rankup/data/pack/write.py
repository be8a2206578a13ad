"""Writes a container: at final offsets by many processes, or as a stream by one program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ...base.amounts import size
from ...base.text import clean
from .. import images, indexes
from ..index import Index, Int64s, UInt64s
from ..pool import cores, spread
from ..verified import Reader, SourceDamaged, SourceProblem
from . import journal
from .checks import Looker, damaged, listed, looked_at, refuse, without
from .copy import Copier
from .journal import Units, Work
from .layout import LAYOUTS, Layout, Shape, plan
from .progress import Progress
from .report import index_bytes, missing_space, sample_bytes
from .request import Request, Target, bytes_of
from .source import root

_POLL = 0.2  # seconds between two looks at what other tasks have done
_PROBLEMS = 100  # units with changed samples after which a copy ends early
_BATCH = 1024  # samples of a stream whose places are looked up in one go


@dataclass(frozen=True)
class Step:
    """The tasks that `srun -n N rankup pack` has started together, which share the units.

    They meet by `begun.json`: the first one scans and writes it, the others wait for one that
    names their step. That one which has failed ends all is for srun (`--kill-on-bad-exit`).

    Attributes:
        task, tasks: this one's number, and how many there are.
        name: of the step; another one where a job starts again.
    """

    task: int = 0
    tasks: int = 1
    name: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Step:
        """Return the step of this process; one of a single task where there is none.

        Only srun sets these variables, for each of its steps; in a batch script they are those of
        no step.
        """
        try:
            task, tasks = int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
            name = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
        except (KeyError, ValueError):
            return cls()
        if tasks < 2 or not 0 <= task < tasks:
            return cls()
        # A job that starts again has the same numbers, and not everywhere counts its starts.
        again = [environ.get(f"SLURM_{one}", "") for one in ("RESTART_COUNT", "JOB_START_TIME")]
        return cls(task, tasks, ".".join([name, *again]))


@dataclass(frozen=True)
class Pack:
    """What all parts of a pack need to know.

    Attributes:
        watch: called often; raises once there is a reason to stop.
        quota: gives lines about the user's quota at a path.
    """

    request: Request
    goal: Target
    step: Step
    watch: Callable[[], None]
    quota: Callable[[Path], list[str]]

    @property
    def work(self) -> Work:
        return Work(self.goal)

    @property
    def workers(self) -> int:
        return self.request.workers or cores()

    @property
    def looks(self) -> bool:
        """True where images are looked at on their way; else it was done before."""
        return self.request.bad == "keep" and self.request.resize is None

    def say(self, line: str) -> None:
        """Print a line of the command's output."""
        if not self.request.as_json:
            print(clean(line), flush=True)

    def progress(self, what: str, index: Index, before: int = 0) -> closing[Progress]:
        """Return what shows how far a part of the pack is, until it is closed."""
        quiet = self.request.as_json or self.step.task > 0
        total = sample_bytes(index)
        return closing(Progress(what, total, len(index), before=before, quiet=quiet))


def shape(request: Request) -> Shape:
    """Return what a request says of the form of its container."""
    return Shape(shard=bytes_of(request.shard_size, "--shard-size"))


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


def resized(pack: Pack, source: Index) -> tuple[Index, int]:
    """Encode the images of the source anew (`--resize`), below the work folder.

    Returns:
        the new source, and the bytes of the old one that were read now.
    """
    from . import spool

    assert pack.request.resize is not None
    before = spool.bytes_there(pack.work, source)
    if before:
        pack.say(f"going on: {size(before)} of {size(sample_bytes(source))} are encoded already")

    def needed() -> int:
        """Return the room for images that are smaller now, and again in the container."""
        there, now = journal.allocated(pack.work.spool), spool.bytes_there(pack.work, source)
        return int(2 * there * sample_bytes(source) / now) + index_bytes(source) if now else 0

    with (
        missing_space(pack.work, needed),
        pack.progress("resizing", source, before) as progress,
    ):
        index = spool.spooled(
            pack.work,
            Reader(source, root(pack.request)),
            pack.request.resize,
            pack.request.bad,
            pack.workers,
            fsync=pack.request.fsync,
            watch=pack.watch,
            progress=progress,
        )
    return index, sample_bytes(source) - before


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
    spans = _spans_of(reader)
    with pack.progress("packing", source) as progress:

        def chunks(field: int, row: int) -> Iterator[memoryview | bytes]:
            nonlocal done, looked
            span = spans(field, row)
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


def streamed(goal: Target) -> bool:
    """Return True for a container that one program writes from its beginning to its end."""
    return goal.container not in LAYOUTS


def _spans_of(reader: Reader) -> Callable[[int, int], Any]:
    """Return a function that gives the span of a field and row; rows are asked for in order."""
    kept: dict[int, tuple[int, list[Any]]] = {}

    def span(field: int, row: int) -> Any:
        first, columns = kept.get(field, (-_BATCH, []))
        if not first <= row < first + _BATCH:
            first = row
            columns = reader.spans(range(row, min(row + _BATCH, len(reader.index))))[field]
            kept[field] = first, columns
        return columns[row - first]

    return span


def _of_units(layout: Layout) -> tuple[Int64s, Int64s]:
    """Return the bytes of samples, and the samples, of each unit."""
    sizes = np.zeros(len(layout.units) - 1, np.int64)
    for field in layout.index.fields:
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(field.length)])
        sizes += np.diff(ends[layout.units])
    return sizes, np.diff(layout.units)
