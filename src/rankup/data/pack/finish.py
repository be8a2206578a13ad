"""From units that are all written to a container that is complete: the index comes last."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...base.errors import RunFailed, UserError
from ...base.files import fsync_directory, write_json
from .. import blocks, indexes, inodes, stamp
from ..blocks import Blocks
from ..index import Index, UInt64s, data_path
from ..inodes import words
from ..pool import spread
from .checks import UNDECODABLE
from .journal import Work, sync
from .layout import Layout
from .summary import Summary, classes, unlabelled

VERSION = 1
# Of the problems of images; a report is read by people too.
_MOST = 10_000
# What `--resize` leaves as it is, an image has one of these; a truncated one may be small enough.
_NOT_RESIZED = (UNDECODABLE, "no image", "empty")
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


def report(
    of: Summary,
    index: Index,
    problems: Sequence[Mapping[str, Any]],
    left_out: Sequence[str],
    *,
    asked: Mapping[str, Any],
    seconds: float,
    tasks: int,
    workers: int,
) -> dict[str, Any]:
    """Return the report of a pack that is complete, as JSON values.

    Args:
        problems: of images, see `checks.listed`.
        left_out: names of samples that `--bad skip` has left out.
        seconds: of this process, from its start.
    """
    kinds: dict[str, int] = {}
    for one in problems:
        for problem in one["problems"]:
            kinds[problem] = kinds.get(problem, 0) + 1
    return {
        "rankup_pack_report": VERSION,
        "rankup": __version__,
        "out": str(of.target.out),
        "container": of.target.container,
        "asked": dict(asked),
        "splits": [
            {"name": split.name, "samples": split.stop - split.start} for split in index.splits
        ],
        "samples": len(index),
        "classes": classes(index),
        "unlabelled": unlabelled(index),
        "fields": [field.name for field in index.fields],
        "sample_bytes": of.source_bytes,
        "bytes": int(index.sizes.sum()),
        "files_before": of.files_before,
        "files_after": inodes.of_pack(of.target.container, len(index.files), bool(index.classes)),
        "images": {"problems": kinds, "listed": list(problems[:_MOST])},
        "left_out": list(left_out),
        "seconds": round(seconds, 3),
        "tasks": tasks,
        "workers": workers,
        "host": socket.gethostname(),
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def read_report(work: Work) -> dict[str, Any] | None:
    """Return the report that lies with a container; None where it cannot be read."""
    try:
        found = json.loads(work.goal.report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(found, dict) and isinstance(found.get("asked"), dict) and "samples" in found:
        return found
    return None


def lines(done: Mapping[str, Any], path: Path) -> list[str]:
    """Return what of a report is worth a line at the end of a pack."""
    found = []
    kinds = done["images"]["problems"]
    if kinds:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        found.append(f"images: {counts}; listed in {path}")
    asked = done["asked"]
    if asked.get("--resize") is not None and asked.get("--bad") == "keep":
        count = sum(kinds.get(kind, 0) for kind in _NOT_RESIZED)
        stand = "stands as it was" if count == 1 else "stand as they were"
        if count:
            found.append(f"{words(count, 'image', 'images')} could not be encoded anew and {stand}")
    if done["left_out"]:
        found.append(f"{words(len(done['left_out']), 'sample', 'samples')} left out: see {path}")
    return found
