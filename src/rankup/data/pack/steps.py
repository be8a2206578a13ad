"""The steps of a pack, one after the other; each can be gone on with where it was interrupted."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...base.amounts import size
from ...base.files import write_json
from ...base.text import clean
from .. import index as indexes
from ..errors import BadContainer
from ..index import Index
from . import checks, finish, slurm
from . import work as state
from .engine import Share, bytes_done, copied
from .layout import LAYOUTS, Layout, Shape, plan
from .progress import Progress
from .reader import Reader
from .request import Request, Target, bytes_of
from .slurm import Team
from .source import root
from .summary import free
from .work import Work
from .workers import Full, Watch, boot, cores

_POLL = 0.2  # seconds between two looks at what other tasks have done
# Each of them costs some milliseconds to start.
_SAMPLES_OF_A_WORKER = 64


@dataclass(frozen=True)
class Pack:
    """What all steps need to know.

    Attributes:
        of: the Slurm step that this process is task 0 of, if any.
        watch: called often; raises once there is a reason to stop.
    """

    request: Request
    goal: Target
    of: Team | None
    watch: Watch
    quota: Callable[[Path], list[str]]

    @property
    def work(self) -> Work:
        return Work(self.goal.part)

    @property
    def workers(self) -> int:
        return self.request.workers or cores()

    @property
    def streamed(self) -> bool:
        """Whether the container is written from its beginning to its end, by one program."""
        return self.goal.container not in LAYOUTS

    def say(self, line: str) -> None:
        """A line of the command's output."""
        if not self.request.as_json:
            print(clean(line), flush=True)

    @contextmanager
    def progress(self, what: str, index: Index, before: int = 0) -> Iterator[Progress]:
        """Show how far a step is while the body runs."""
        total = sum(int(field.length.clip(0).sum()) for field in index.fields)
        progress = Progress(what, total, len(index), before=before, quiet=self.request.as_json)
        try:
            yield progress
        finally:
            progress.close()


def shape(request: Request) -> Shape:
    """What a request says of the form of its container."""
    return Shape(shard=bytes_of(request.shard_size, "--shard-size"))


def without_damaged(pack: Pack, source: Index) -> tuple[Index, list[dict[str, Any]]]:
    """Look at all images before the copy, for `--bad fail` and `skip`.

    Returns:
        the source without what is left out, and what is to be said of images.

    Raises:
        UserError: with `fail`, an image is damaged.
    """
    reader = Reader(source, root(pack.request))
    count = max(1, min(pack.workers, len(source) // _SAMPLES_OF_A_WORKER))
    found = checks.looked_at(reader, count, pack.watch)
    rows = checks.damaged(found)
    if pack.request.bad == "fail":
        checks.refuse(source, rows, found)
    notes = checks.listed(source, found) + [{"left_out": source.path(row)} for row in rows]
    return (checks.without(source, rows) if rows else source), notes


def spooled(pack: Pack, source: Index) -> Index:
    """The source with its images encoded anew (`--resize`), below the work folder."""
    from .spool import spooled as put

    assert pack.request.resize is not None
    with pack.progress("resizing", source) as progress:
        return put(
            pack.work,
            Reader(source, root(pack.request)),
            pack.request.resize,
            pack.request.bad,
            pack.workers,
            fsync=pack.request.fsync,
            watch=pack.watch,
            progress=progress,
        )


def streamed(pack: Pack, source: Index, base: Path) -> Index:
    """Write a container that comes from one program's hands, and give its index."""
    from .squash import written

    if pack.of is not None:
        write_json(pack.of.ready, {"alone": True})
    with pack.progress("packing", source) as progress:
        index = written(
            pack.work,
            Reader(source, base),
            shape(pack.request),
            pack.workers,
            look=_looks(pack.request),
            watch=pack.watch,
            progress=progress,
        )
    return finish.complete(pack.work.data, index, source, pack.workers, pack.watch)


def filled(pack: Pack, source: Index, base: Path, layout: Layout) -> Index:
    """Write a container at final offsets, with all processes and all tasks, and give its index.

    Args:
        base: what the source's files are relative to.
    """
    work, request, now = pack.work, pack.request, boot()
    one_file = pack.goal.one_file
    with missing_space(work, layout):
        if state.begun(work, layout, now):
            layout = layout.attach(work.data)
            if not request.fsync:
                state.weaken(work, now)
        else:
            layout = state.begin(work, layout, one_file=one_file, fsync=request.fsync, boot=now)
        units, there = len(layout.units) - 1, int(np.count_nonzero(state.done(work)))
        if there:
            pack.say(f"going on: {there} of {units} parts are there already")
        share = _share(pack, units)
        if pack.of is not None:
            told = {
                "source": "source.npz" if base != work.part else "spooled.npz",
                "root": str(base),
                "workers": share.workers,
                "look": _looks(request),
            }
            write_json(pack.of.ready, told)
        with pack.progress("packing", layout.index, bytes_done(work, layout)) as progress:
            reader = Reader(source, base)
            copied(
                work,
                layout,
                reader,
                share,
                fsync=request.fsync,
                look=_looks(request),
                watch=pack.watch,
                progress=progress,
            )
            if pack.of is not None:
                _wait(pack, layout, progress)
                pack.of.copied.touch()
        return finish.finished(work, layout, source, pack.workers, pack.watch)


def follow(request: Request, goal: Target, of: Team, watch: Watch) -> None:
    """A task other than the first: copy its units once there is something to copy to."""
    told = slurm.wait_ready(of, watch)
    if told.get("alone"):
        return
    try:
        _help(request, goal, of, told, watch)
    except (OSError, BadContainer):
        # Too late: the others have done it all, and the work folder is being cleared away.
        if not of.copied.exists():
            raise


def _help(request: Request, goal: Target, of: Team, told: Mapping[str, Any], watch: Watch) -> None:
    work = Work(goal.part)
    source = indexes.load(work.part / told["source"])
    layout = plan(goal.container, source, shape(request)).attach(work.data)
    copied(
        work,
        layout,
        Reader(source, Path(told["root"])),
        Share(told["workers"], of.task, of.tasks),
        fsync=request.fsync,
        look=told["look"],
        watch=watch,
        progress=Progress("", 0, 0, quiet=True),
    )


def _looks(request: Request) -> bool:
    """Whether images are looked at on their way: else it was done before."""
    return request.bad == "keep" and request.resize is None


def _share(pack: Pack, units: int) -> Share:
    if pack.of is None:
        return Share(max(1, min(pack.workers, units)))
    return Share(pack.workers, pack.of.task, pack.of.tasks)


def _wait(pack: Pack, layout: Layout, progress: Progress) -> None:
    """Wait for the other tasks' units."""
    first = bytes_done(pack.work, layout)
    while not state.done(pack.work).all():
        pack.watch()
        progress(bytes_done(pack.work, layout) - first, 0)
        time.sleep(_POLL)


@contextmanager
def missing_space(work: Work, layout: Layout) -> Iterator[None]:
    """Say of an error that comes of a full disk how much is missing.

    Raises:
        Full: instead of that error.
    """
    try:
        yield
    except (Full, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        missing = int(layout.sizes.sum()) - state.allocated(work.data) - free(work.part)
        more = f"about {size(missing)} more are needed" if missing > 0 else "it was full just now"
        what = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise Full(f"{work.part}: {what}; {more}: make space there") from None
