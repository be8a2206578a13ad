"""What a pack has done, as JSON."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from .. import inodes
from ..index import Index
from ..inodes import words
from .checks import UNDECODABLE
from .summary import Summary, classes, unlabelled

VERSION = 1
# Of the problems of images; a report is read by people too.
_MOST = 10_000
# What `--resize` leaves as it is, an image has one of these; a truncated one may be small enough.
_NOT_RESIZED = (UNDECODABLE, "no image", "empty")


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
    """The report of a pack that is complete.

    Args:
        problems: of images, see `checks.listed`.
        left_out: names of samples that `--bad skip` has left out.
        seconds: of this process, from its start.
    """
    kinds: dict[str, int] = {}
    for one in problems:
        for problem in one["problems"]:
            kinds[problem] = kinds.get(problem, 0) + 1
    after = inodes.of_pack(of.target.container, len(index.files), bool(index.classes))
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
        "folders_before": of.folders_before,
        "files_after": after.files,
        "folders_after": after.folders,
        "images": {"problems": kinds, "listed": list(problems[:_MOST])},
        "left_out": list(left_out),
        "seconds": round(seconds, 3),
        "tasks": tasks,
        "workers": workers,
        "host": socket.gethostname(),
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def lines(done: Mapping[str, Any], path: Path) -> list[str]:
    """What of a report is worth a line at the end of a pack."""
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
