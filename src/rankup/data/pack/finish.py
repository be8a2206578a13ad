"""From units that are all written to a container that is complete: the index comes last."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
from ..index import Index, UInt64s
from ..pool import spread
from .journal import Pack, sync
from .layout import Layout

# Blocks that one process reads as quickly as several are started.
_FEW = 256


def hashed(layout: Layout, hashes: UInt64s, data: Path) -> Index:
    """Write what a format puts beside its data, and return the index with its hashes.

    Raises:
        OSError: something could not be written or read.
    """
    for path in data.glob(".*.tmp"):  # of one that was killed in the midst of this
        path.unlink()
    layout.finish(data, hashes)
    return with_hashes(replace(layout.index, sizes=layout.sizes), hashes)


def complete(pack: Pack, index: Index, files_before: int) -> Index:
    """Return the index with all that tells later whether a byte of the container has changed.

    Nothing is taken over of what the source's index says of its own files.
    """
    data, of = pack.data, Blocks(index, pack.data)
    if len(of) <= _FEW:
        hashes = [of.hashes(0, len(of))]
    else:
        edges = np.linspace(0, len(of), 4 * pack.workers + 1).astype(int).tolist()
        found = spread(
            lambda part: (part, of.hashes(*part)), pairwise(edges), pack.workers, pack.watch
        )
        hashes = [part for _, part in sorted(found, key=lambda one: one[0])]
    facts = {
        **index.facts,
        "writer": f"rankup {__version__}",
        "ends": stamp.all_ends(index, data),
        "files_before": files_before,
    }
    if beside := blocks.beside(data, index):
        facts["beside"] = beside
    return replace(index, blocks=np.concatenate(hashes), facts=facts)


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
