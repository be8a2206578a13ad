"""The steps of a pack, one after the other; each can be gone on with where it was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.amounts import size
from ...base.files import write_json
from ...base.holder import boot
from ...base.text import clean
from .. import indexes
from ..errors import BadContainer
from ..index import Index
from . import checks, finish, slurm
from . import work as state
from .engine import Share, bytes_done, copied, units_of
from .layout import LAYOUTS, Layout, Shape, plan
from .progress import Progress
from .reader import Reader
from .request import Request, Target, bytes_of
from .slurm import Team
from .source import root
from .space import missing_space, sample_bytes
from .summary import index_bytes
from .trees import allocated
from .work import Work
from .workers import Lost, Watch, cores

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
        progress = Progress(
            what, sample_bytes(index), len(index), before=before, quiet=self.request.as_json
        )
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


def spooled(pack: Pack, source: Index) -> tuple[Index, int]:
    """The source with its images encoded anew (`--resize`), below the work folder.

    Returns:
        it, and the bytes of the source that were read now.
    """
    from .spool import bytes_there
    from .spool import spooled as put

    assert pack.request.resize is not None
    before = bytes_there(pack.work, source)
    if before:
        pack.say(f"going on: {size(before)} of {size(sample_bytes(source))} are encoded already")

    def needed() -> int:
        """Images that are smaller now, and again in the container."""
        there, now = allocated(pack.work.spool), bytes_there(pack.work, source)
        return int(2 * there * sample_bytes(source) / now) + index_bytes(source) if now else 0

    with (
        missing_space(pack.work, needed),
        pack.progress("resizing", source, before) as progress,
    ):
        index = put(
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


def streamed(pack: Pack, source: Index, base: Path, files_before: int) -> tuple[Index, int]:
    """Write a container that comes from one program's hands: its index, and the bytes read."""
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
    index = finish.complete(pack.work.data, index, files_before, pack.workers, pack.watch)
    return index, sample_bytes(source)


def filled(
    pack: Pack, source: Index, base: Path, layout: Layout, files_before: int
) -> tuple[Index, int]:
    """Write a container at final offsets, with all processes and all tasks.

    Args:
        base: what the source's files are relative to.
        files_before: that the samples were in.

    Returns:
        its index, and the bytes of samples that were read now.
    """
    work, request, now = pack.work, pack.request, boot()
    one_file = pack.goal.one_file
    with missing_space(work, lambda: int(layout.sizes.sum())):
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
        began = state.done(work)
        before = bytes_done(work, layout)
        with pack.progress("packing", layout.index, before) as progress:
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
                _wait(pack, layout, began, progress)
                pack.of.copied.touch()
        index = finish.finished(work, layout, files_before, pack.workers, pack.watch)
    return index, sample_bytes(layout.index) - before


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


def _wait(pack: Pack, layout: Layout, began: npt.NDArray[np.bool_], progress: Progress) -> None:
    """Wait for the other tasks' units.

    Args:
        began: the units that were there when the progress began.

    Raises:
        Lost: all others have left, and units are missing.
    """
    assert pack.of is not None
    others = slurm.Others(pack.of)
    size_of, samples_of = units_of(layout)
    while True:
        gone = others.gone()  # asked first: what is done is noted before
        done = state.done(pack.work)
        if done.all():
            return
        if gone:
            others.check()  # one that has failed has said why
            raise Lost(
                f"the other tasks have ended, and {np.count_nonzero(~done)} of {len(done)} parts "
                "are missing; see the job's log, and run the same command with --resume"
            )
        pack.watch()
        new = done & ~began
        progress(int(size_of[new].sum()), int(samples_of[new].sum()))
        time.sleep(_POLL)
