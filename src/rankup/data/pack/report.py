"""The summary before a pack, its report afterwards, and the check of the room for it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...base.amounts import size, some
from ...base.errors import RunFailed, UserError
from ...base.files import no_space
from .. import images, inodes
from ..index import Index
from ..inodes import words
from .checks import UNDECODABLE
from .journal import Work, allocated
from .layout import Layout
from .request import Request, Target, asked
from .source import root

VERSION = 1
# Of the problems of images; a report is read by people too.
_MOST = 10_000
# What `--resize` leaves as it is, an image has one of these; a truncated one may be small enough.
_NOT_RESIZED = (UNDECODABLE, "no image", "empty")
_WNID = re.compile(r"n\d{8}")
_ILSVRC = (b"ILSVRC/", b"Data/CLS-LOC/")


def before(request: Request, goal: Target, source: Index, layout: Layout | None) -> dict[str, Any]:
    """Return what will be done, as JSON values.

    `bytes` of the container with its index is 0 and `files_after` None where it is not known
    before. `no_images`: where most samples are images by their names, how many end otherwise, by
    suffix. `hint`: what may have been forgotten.

    Args:
        layout: None where places are not known before the bytes.

    Raises:
        OSError: SOURCE cannot be read.
    """
    needs = 0
    if layout is not None:
        needs = int(layout.sizes.sum()) + index_bytes(source)
    elif request.resize is None:  # nothing of a SquashFS is compressed
        needs = sample_bytes(source) + index_bytes(source)
    return {
        **_counts(request, goal, source),
        "sample_bytes": sample_bytes(source),
        "bytes": needs,
        "files_before": inodes.of_source(source, root(request)),
        "files_after": _files_after(source, layout, goal),
        "no_images": _no_images(source),
        "hint": _hint(source) if _unlabelled(source) else "",
    }


def after(
    request: Request,
    goal: Target,
    told: Mapping[str, Any],
    index: Index,
    notes: Mapping[str, Sequence[Any]],
    *,
    seconds: float,
    tasks: int,
    workers: int,
) -> dict[str, Any]:
    """Return the report of a pack that is complete, as JSON values.

    Args:
        told: what `before` has said.
        notes: `problems` of images, see `checks.listed`; `left_out`, names of samples that
            `--bad skip` has left out.
        seconds: of this process, from its start.
    """
    problems = notes["problems"]
    kinds = Counter(problem for one in problems for problem in one["problems"])
    return {
        "rankup_pack_report": VERSION,
        "rankup": __version__,
        **told,
        **_counts(request, goal, index),
        "fields": [field.name for field in index.fields],
        "bytes": int(index.sizes.sum()),
        "files_after": inodes.of_pack(goal.container, len(index.files), bool(index.classes)),
        "images": {"problems": dict(kinds), "listed": list(problems[:_MOST])},
        "left_out": list(notes["left_out"]),
        "seconds": round(seconds, 3),
        "tasks": tasks,
        "workers": workers,
        "host": socket.gethostname(),
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def read(path: Path) -> dict[str, Any] | None:
    """Return the report that lies with a container; None where it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(found, dict) and isinstance(found.get("asked"), dict) and "samples" in found:
        return found
    return None


def lines_before(source: str, told: Mapping[str, Any], quota: Sequence[str]) -> list[str]:
    """Return what is printed before a pack."""
    counts = [f"{one['name']} {one['samples']:,}" for one in told["splits"]]
    counted = ", ".join(counts) or "none"
    if told["classes"]:
        counted += f", {words(told['classes'], 'class', 'classes')}"
    if told["unlabelled"]:
        some_of = told["unlabelled"] < told["samples"]
        without = f"{told['unlabelled']:,} without a label" if some_of else "without labels"
        counted += f", {without}"
    files = words(told["files_before"], "file", "files")
    if told["files_after"] is not None:
        files += f" -> {words(told['files_after'], 'file', 'files')}"
    found = [
        f"{source} -> {told['out']} ({told['container']})",
        f"samples: {counted}, {size(told['sample_bytes'])}",
        f"files: {files}",
    ]
    if told["no_images"]:
        kinds = [f"{count:,} {kind}" for kind, count in told["no_images"].items()]
        found.append(f"not images by their names: {some(kinds)}")
    if told["hint"]:
        found.append(f"labels: {told['hint']}")
    needs = f"{size(told['bytes'])} needed, " if told["bytes"] else ""
    found.append(f"space: {needs}{size(free(Path(told['out'])))} free")
    return found + [f"quota: {line}" for line in quota]


def lines_after(done: Mapping[str, Any], path: Path) -> list[str]:
    """Return what of a report is worth a line at the end of a pack."""
    found = []
    kinds = done["images"]["problems"]
    if kinds:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        found.append(f"images: {counts}; listed in {path}")
    if done["asked"].get("--resize") is not None and done["asked"].get("--bad") == "keep":
        count = sum(kinds.get(kind, 0) for kind in _NOT_RESIZED)
        stand = "stands as it was" if count == 1 else "stand as they were"
        if count:
            found.append(f"{words(count, 'image', 'images')} could not be encoded anew and {stand}")
    if done["left_out"]:
        found.append(f"{words(len(done['left_out']), 'sample', 'samples')} left out: see {path}")
    return found


def _counts(request: Request, goal: Target, index: Index) -> dict[str, Any]:
    return {
        "out": str(goal.out),
        "container": goal.container,
        "asked": asked(request, goal),
        "splits": [{"name": one.name, "samples": one.stop - one.start} for one in index.splits],
        "samples": len(index),
        "classes": _classes(index),
        "unlabelled": _unlabelled(index),
    }


def _classes(index: Index) -> int:
    """Return how many classes have a name or a sample."""
    if index.labels is None:
        return 0
    known = np.sort(index.labels[index.labels >= 0])  # np.unique would import numpy.ma: 40 ms
    return max(len(index.classes), int(np.count_nonzero(np.diff(known, prepend=-1))))


def _unlabelled(index: Index) -> int:
    """Return how many samples have no label."""
    return len(index) if index.labels is None else int(np.count_nonzero(index.labels < 0))


def _files_after(index: Index, layout: Layout | None, target: Target) -> int | None:
    if layout is not None:
        data = len(layout.sizes)
    elif target.one_file:
        data = 1
    elif target.container == "arrow":
        data = len(index.splits)
    else:  # shards of samples that get another length
        return None
    return inodes.of_pack(target.container, data, bool(index.classes))


def _no_images(index: Index) -> dict[str, int]:
    """Return samples that are no images by their names, most first, where half of all are."""
    if [(one.name, one.dtype) for one in index.fields] != [("data", "")]:
        return {}
    names = (key[key.rfind(b"/") + 1 :].rpartition(b".") for key in index.keys)
    kinds = Counter(end.lower() if stem and dot else b"" for stem, dot, end in names)
    others = {
        f".{kind.decode('utf-8', 'backslashreplace')}" if kind else "without a suffix": count
        for kind, count in sorted(kinds.items(), key=lambda one: (-one[1], one[0]))
        if kind.decode("latin-1") not in images.SUFFIXES
    }
    return others if 2 * sum(others.values()) <= len(index) else {}


def _hint(index: Index) -> str:
    """Images without labels may be ImageNet, whose labels stand in files of their own."""
    found = any(name.startswith(_ILSVRC) for name in index.files)
    if index.labels is not None and index.classes and all(map(_WNID.fullmatch, index.classes)):
        val = (index.labels[one.start : one.stop] for one in index.splits if one.name == "val")
        found |= any((labels < 0).any() for labels in val)
    return "this looks like ImageNet: --preset imagenet knows its labels" if found else ""


def index_bytes(index: Index) -> int:
    """Return about what an index takes; in the work folder it is there twice."""
    columns = 8 * (3 * len(index.fields) + 3) * len(index)
    return 2 * (columns + len(index.keys.data) + len(index.files.data)) + (64 << 10)


def free(path: Path) -> int:
    """Return the bytes that may still be written where a path will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def fits(told: Mapping[str, Any], there: int) -> None:
    """Refuse a pack that cannot fit.

    Args:
        there: bytes that an earlier attempt has written already.

    Raises:
        UserError: says how much is missing.
    """
    room = free(Path(told["out"]))
    missing = told["bytes"] - there - room
    if missing > 0:
        raise UserError(
            f"{told['out']} needs {size(told['bytes'])}, and {size(room)} are free on its file "
            f"system: {size(missing)} are missing; make space, or choose another place"
        )


def within_limit(out: Path, largest: int) -> None:
    """Refuse a file that this process may not write: a library would say it in its own way.

    Raises:
        UserError: its size is more than `ulimit -f`.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and largest > limit:
        raise UserError(
            f"{out} needs a file of {size(largest)}, and this shell's limit for a file is "
            f"{size(limit)} (ulimit -f): raise it, or write a tar of smaller files (--shard-size)"
        )


class Full(RunFailed):
    """No space is left, or no quota; the message tells where, and how much is missing."""


@contextmanager
def missing_space(work: Work, needed: Callable[[], int]) -> Iterator[None]:
    """Say of an error that comes of a full disk where, and how much is missing.

    Args:
        needed: gives the bytes that the work folder will take; 0: not known yet.

    Raises:
        Full: instead of that error.
    """
    try:
        yield
    except OSError as error:
        if not no_space(error):
            raise
        wanted = needed()
        missing = wanted - allocated(work.part) - free(work.part)
        more = f"about {size(missing)} more are needed" if missing > 0 else "it was full just now"
        more = more if wanted else "how much more is needed is not known yet"
        why = os.strerror(error.errno or 0)
        raise Full(f"{work.part}: {why}; {more}: make space there") from None


def sample_bytes(index: Index) -> int:
    """Return the bytes of all samples whose length is known."""
    return sum(int(field.length.clip(0).sum()) for field in index.fields)
