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
from .. import frames, stamp
from .. import index as indexes
from ..index import Index, UInt64s
from . import work as state
from .layout import Layout
from .request import Target
from .work import Work
from .workers import Board, Lost, run

# Gaps that one process reads as quickly as several are started.
_FEW = 4000
Watch = Callable[[], None]


def finished(work: Work, layout: Layout, source: Index, count: int, watch: Watch) -> Index:
    """Write what a format puts beside its data, look at what is there, and give the whole index.

    Args:
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
    return complete(work.data, index, source, count, watch)


def complete(root: Path, index: Index, source: Index, count: int, watch: Watch) -> Index:
    """The index with all that tells later whether a byte of the container has changed."""
    index = replace(index, frames=_frames(root, index, count, watch))
    facts: dict[str, Any] = {
        **_handed_on(source.facts),
        **index.facts,
        "writer": f"rankup {__version__}",
        "ends": stamp.all_ends(index, root),
        "files_before": len(source.files),
    }
    beside = frames.beside(root, index)
    if beside:
        facts["beside"] = beside
    return replace(index, facts=facts)


def publish(work: Work, target: Target, index: Index | None, *, fsync: bool) -> None:
    """Let the container appear under its name, and its index as the last.

    Args:
        index: None where an earlier attempt has saved it already.

    Raises:
        UserError: something of that name has come meanwhile.
        OSError: it could not be written; nothing looks complete then.
    """
    if fsync and index is not None:
        state.sync(work.data)
    if not target.one_file:
        if index is not None:
            indexes.save(index, work.data / "index.npz")
        _free(target.out)
        os.rename(work.data, target.out)
        fsync_directory(target.out.parent)
        return
    if index is not None:
        indexes.save(index, work.index)
    if work.data.exists():
        _free(target.out)
        os.rename(work.data, target.out)
        fsync_directory(target.out.parent)
    os.rename(work.index, indexes.place(target.out))
    fsync_directory(target.out.parent)


def saved(work: Work, target: Target) -> bool:
    """Whether the index of what is in a work folder was saved, and only names are to be changed."""
    return (work.index if target.one_file else work.data / "index.npz").is_file()


def _free(out: Path) -> None:
    if os.path.lexists(out):
        raise UserError(
            f"{out} has come into being while this was packed; remove it or give it another name, "
            "and run the same command with --resume"
        )


def _check_sizes(work: Work, index: Index) -> None:
    for row, size in enumerate(index.sizes.tolist()):
        name = index.files.text(row)
        path = work.data / name if name else work.data
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


def _handed_on(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is true of a container's samples whatever they are packed into."""
    own = ("writer", "ends", "beside", "files_before")
    return {} if "writer" in facts else {k: v for k, v in facts.items() if k not in own}
