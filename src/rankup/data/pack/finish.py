"""From units that are all written to a container that is complete: the index comes last."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...base.errors import UserError
from ...base.files import fsync_directory
from .. import frames, indexes, stamp
from ..index import Index, UInt64s, data_path
from . import work as state
from .layout import Layout
from .request import Target
from .trees import sync
from .work import Work
from .workers import Board, Lost, run

# Gaps that one process reads as quickly as several are started.
_FEW = 4000
Watch = Callable[[], None]


def finished(work: Work, layout: Layout, files_before: int, count: int, watch: Watch) -> Index:
    """Write what a format puts beside its data, look at what is there, and give the whole index.

    Args:
        files_before: that the samples were in.
        count: processes to read with.

    Raises:
        Lost: a file has not the size that was planned.
        OSError: something could not be written or read.
    """
    if work.data.is_dir():
        for path in work.data.glob(".*.tmp"):  # of one that was killed in the midst of this
            path.unlink()
    hashes = state.hashes(work, layout)
    layout.finish(work.data, hashes)
    index = layout.index
    fields = tuple(
        replace(field, hash=column) for field, column in zip(index.fields, hashes, strict=True)
    )
    index = replace(index, fields=fields, sizes=layout.sizes)
    _check_sizes(work, index)
    return complete(work.data, index, files_before, count, watch)


def complete(root: Path, index: Index, files_before: int, count: int, watch: Watch) -> Index:
    """The index with all that tells later whether a byte of the container has changed.

    Nothing is taken over of what the source's index says of its own files.
    """
    index = replace(index, frames=_frames(root, index, count, watch))
    facts: dict[str, Any] = {
        **index.facts,
        "writer": f"rankup {__version__}",
        "ends": stamp.all_ends(index, root),
        "files_before": files_before,
    }
    beside = frames.beside(root, index)
    if beside:
        facts["beside"] = beside
    return replace(index, facts=facts)


def save(
    work: Work, target: Target, index: Index, report: Mapping[str, Any], *, fsync: bool
) -> None:
    """Write report and index into the work folder; from here on only names change.

    Raises:
        OSError: it could not be written; nothing looks complete then.
    """
    if fsync:
        sync(work.data)
    state.write(work.report, report)
    if not target.one_file:
        os.rename(work.report, work.data / target.report.name)
    indexes.save(index, _saved(work, target))


def publish(work: Work, target: Target) -> None:
    """Let the container appear under its name, and its index as the last.

    Raises:
        UserError: something of that name has come meanwhile.
        OSError: a name could not be changed; nothing looks complete then.
    """
    if not os.path.lexists(target.out) and not work.data.exists():
        raise Lost(f"{target.out} is gone since it was packed; remove {work.part} and pack anew")
    if work.data.exists():
        free(target)
        state.write(work.published, {})
        os.rename(work.data, target.out)
        fsync_directory(target.out.parent)
    if target.one_file:
        for path, name in ((work.report, target.report), (work.index, target.index)):
            if path.exists():
                os.rename(path, name)
                fsync_directory(name.parent)


def saved(work: Work, target: Target) -> bool:
    """Whether the index of what is in a work folder was saved, and only names are to be changed."""
    return _saved(work, target).is_file()


def free(target: Target) -> None:
    """Make sure that nothing has a name that is needed; none is ever overwritten.

    Raises:
        UserError: something has.
    """
    for path in target.names:
        if os.path.lexists(path):
            raise UserError(
                f"{path} is there, and a pack of that name would overwrite it: remove it or give "
                "it another name, and run the same command again (with --resume if it had begun)"
            )


def _saved(work: Work, target: Target) -> Path:
    return work.index if target.one_file else work.data / "index.npz"


def _check_sizes(work: Work, index: Index) -> None:
    for row, size in enumerate(index.sizes.tolist()):
        path = data_path(work.data, index.files, row)
        found = path.stat().st_size
        if found != size:
            raise Lost(f"{path} has {found} bytes, and {size} were planned; pack it anew")


def _frames(root: Path, index: Index, count: int, watch: Watch) -> UInt64s:
    groups = frames.frames(index)
    if len(groups.gaps) <= _FEW or count < 2 or len(groups) < 2:
        return frames.hashes(groups, root, index.files, 0, len(groups))
    edges = np.linspace(0, len(groups), min(count, len(groups)) + 1).astype(int).tolist()
    board = Board(len(edges) - 1)

    def some(worker: int) -> list[int]:
        found = frames.hashes(groups, root, index.files, edges[worker], edges[worker + 1])
        result: list[int] = found.tolist()
        return result

    parts = run(board, len(edges) - 1, some, watch)
    return np.array([one for part in parts for one in part], np.uint64)
