"""From units that are all written to a container that is complete: the index comes last."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...base.errors import RunFailed, UserError
from ...base.files import fsync_directory, write_json
from .. import blocks, indexes, stamp
from ..blocks import Blocks
from ..index import Index, UInt64s, data_path
from ..pool import spread
from .journal import Work, sync
from .layout import Layout

# Blocks that one process reads as quickly as several are started.
_FEW = 256
Watch = Callable[[], None]


def hashed(layout: Layout, hashes: UInt64s, data: Path) -> Index:
    """Write what a format puts beside its data, and return the index with its hashes.

    Raises:
        RunFailed: a file has not the size that was planned.
        OSError: something could not be written or read.
    """
    for path in data.glob(".*.tmp"):  # of one that was killed in the midst of this
        path.unlink()
    layout.finish(data, hashes)
    fields = tuple(
        replace(field, hash=column)
        for field, column in zip(layout.index.fields, hashes, strict=True)
    )
    index = replace(layout.index, fields=fields, sizes=layout.sizes)
    for row, size in enumerate(index.sizes.tolist()):
        path = data_path(data, index.files, row)
        found = path.stat().st_size
        if found != size:
            raise RunFailed(f"{path} has {found} bytes, and {size} were planned; pack it anew")
    return index


def complete(data: Path, index: Index, files_before: int, workers: int, watch: Watch) -> Index:
    """Return the index with all that tells later whether a byte of the container has changed.

    Nothing is taken over of what the source's index says of its own files.
    """
    of = Blocks(index, data)
    if len(of) <= _FEW:
        hashes = [of.hashes(0, len(of))]
    else:
        edges = np.linspace(0, len(of), 4 * workers + 1).astype(int).tolist()
        parts = spread(lambda part: (part, of.hashes(*part)), list(pairwise(edges)), workers, watch)
        hashes = [found for _, found in sorted(parts, key=lambda one: one[0])]
    facts: dict[str, Any] = {
        **index.facts,
        "writer": f"rankup {__version__}",
        "ends": stamp.all_ends(index, data),
        "files_before": files_before,
    }
    beside = blocks.beside(data, index)
    if beside:
        facts["beside"] = beside
    return replace(index, blocks=np.concatenate(hashes), facts=facts)


def save(work: Work, index: Index, report: Mapping[str, Any], *, fsync: bool) -> None:
    """Write report and index into the work folder; from here on only names change.

    Raises:
        OSError: it could not be written; nothing looks complete then.
    """
    if fsync:
        sync(work.data)
    write_json(work.report, report)
    indexes.save(index, work.index)


def publish(work: Work) -> None:
    """Let the container appear under its name, and its index as the last.

    Each name is made first, which fails where it is there, and what is empty and ours is replaced.
    (A link in two folders would do it in one step, but not on BeeGFS; RENAME_NOREPLACE not on GPFS
    and NFS.)

    Raises:
        UserError: something of that name has come meanwhile.
        OSError: a name could not be changed; nothing looks complete then.
    """
    goal = work.goal
    again = work.published.exists()
    if not again:
        free(work)
        write_json(work.published, {})
    names = [(work.data, goal.out)]
    if goal.one_file:
        names += [(work.report, goal.report), (work.index, goal.index)]
    for path, name in names:
        if path.exists():
            _rename(path, name, again)
        elif not os.path.lexists(name):
            raise RunFailed(f"{name} is gone since it was packed; remove {work.part} and pack anew")


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


def free(work: Work) -> None:
    """Refuse a pack early where something has a name that is needed.

    Raises:
        UserError: something has.
    """
    for path in work.goal.names:
        if os.path.lexists(path):
            raise UserError(_taken(path))


def _taken(path: Path) -> str:
    return (
        f"{path} is there, and a pack of that name would overwrite it: remove it or give it "
        "another name, and run the same command again (with --resume if it had begun)"
    )
