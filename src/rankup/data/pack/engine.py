"""All units of a container, by the processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..index import Int64s
from . import work as state
from .checks import Looker
from .copy import Copier
from .layout import Layout
from .progress import Progress
from .reader import Reader
from .work import Journal, Work
from .workers import Board, run


@dataclass(frozen=True)
class Share:
    """Which of all units are copied here: with several Slurm tasks each has some.

    Attributes:
        workers: processes of this task, and of every other one.
        task, tasks: this one's number, and how many there are.
    """

    workers: int
    task: int = 0
    tasks: int = 1

    def of(self, worker: int, units: int) -> range:
        """The units of a worker of this task."""
        return range(self.task * self.workers + worker, units, self.tasks * self.workers)


def copied(
    work: Work,
    layout: Layout,
    reader: Reader,
    share: Share,
    *,
    fsync: bool,
    look: bool,
    watch: Callable[[], None],
    progress: Progress,
) -> None:
    """Copy what is not done of this task's share.

    Args:
        look: whether images are looked at on their way.
        watch: called ten times a second; may raise to stop.

    Raises:
        SourceProblems, Lost, UserError, OSError: see `workers.run`; what is done is noted.
    """
    units = len(layout.units) - 1
    done = state.done(work)
    todo = [
        [unit for unit in share.of(worker, units) if not done[unit]]
        for worker in range(share.workers)
    ]
    todo = [one for one in todo if one]
    if not todo:
        return
    board = Board(len(todo))

    def body(worker: int) -> None:
        name = f"noted-{share.task}-{worker}.jsonl"
        looker = Looker(reader.index, work.part / name) if look else None
        copier = Copier(layout, work.data, reader, lambda n: board.add(worker, n), looker)
        journal = Journal(work, layout, fsync)
        for unit in todo[worker]:
            board.check()
            hashes = copier.unit(unit, fsync)
            if looker is not None:
                looker.write()
            journal.note(unit, hashes)
            board.add(worker, 0, hashes.shape[1])
        journal.close()
        copier.close()

    def seen() -> None:
        progress(*board.done())
        watch()

    run(board, len(todo), body, seen)


def bytes_done(work: Work, layout: Layout) -> int:
    """Bytes of samples of the units that are done."""
    return int(units_of(layout)[0][state.done(work)].sum())


def units_of(layout: Layout) -> tuple[Int64s, Int64s]:
    """Bytes of samples, and samples, of each unit."""
    size = np.zeros(len(layout.units) - 1, np.int64)
    for field in layout.index.fields:
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(field.length)])
        size += np.diff(ends[layout.units])
    return size, np.diff(layout.units)
