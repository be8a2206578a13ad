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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...base.amounts import size, some, words
from ...base.errors import RunFailed, UserError
from ...base.files import no_space
from .. import images, indexes
from ..index import Index
from .checks import UNDECODABLE, listed
from .journal import Pack, allocated
from .layout import Layout, sample_bytes
from .source import root

VERSION = 1
# Of the problems of images; a report is read by people too.
_MOST = 10_000
# What `--resize` leaves as it is, an image has one of these; a truncated one may be small enough.
_NOT_RESIZED = (UNDECODABLE, "no image", "empty")
_WNID = re.compile(r"n\d{8}")
_ILSVRC = (b"ILSVRC/", b"Data/CLS-LOC/")


def before(pack: Pack, source: Index, layout: Layout | None) -> dict[str, Any]:
    """Return what will be done, as JSON values.

    `bytes` of the container with its index is 0 and `files_after` None where it is not known
    before. `no_images`: where most samples are images by their names, how many end otherwise, by
    suffix. `nulls`: missing values of each column. `hint`: what may have been forgotten.

    Args:
        layout: None where places are not known before the bytes.

    Raises:
        OSError: SOURCE cannot be read.
    """
    needs, data = 0, None
    if layout is not None:
        needs, data = int(layout.sizes.sum()) + index_bytes(source), len(layout.sizes)
    elif pack.request.resize is None:  # nothing of a SquashFS is compressed
        needs = sample_bytes(source) + index_bytes(source)
    if pack.one_file:
        data = 1
    elif pack.container == "arrow":
        data = len(source.splits)
    files_after = data and indexes.files_of_pack(pack.container, data, bool(source.classes))
    counts = _counts(pack, source)
    return {
        **counts,
        "sample_bytes": sample_bytes(source),
        "bytes": needs,
        "files_before": indexes.files_of_source(source, root(pack.request)),
        "files_after": files_after,
        "no_images": _no_images(source),
        "nulls": dict(source.facts.get("nulls", {})),
        "hint": _hint(source) if counts["unlabelled"] else "",
    }


def after(
    pack: Pack, plan: Mapping[str, Any], source: Index, index: Index, seconds: float
) -> dict[str, Any]:
    """Return the report of a pack that is complete, as JSON values.

    Args:
        plan: see `before`.
        source: which the numbers of samples in the notes are of.
        seconds: of this process, from its start.
    """
    notes = pack.notes()
    problems = [one for one in notes if "sample" in one]
    problems += listed(source, [one for one in notes if "row" in one])
    kinds = Counter(problem for one in problems for problem in one["problems"])
    return {
        "rankup_pack_report": VERSION,
        "rankup": __version__,
        **plan,
        **_counts(pack, index),
        "fields": [field.name for field in index.fields],
        "bytes": int(index.sizes.sum()),
        "files_after": indexes.files_of_pack(pack.container, len(index.files), bool(index.classes)),
        "images": {"problems": dict(kinds), "listed": problems[:_MOST]},
        "left_out": [one["left_out"] for one in notes if "left_out" in one],
        "seconds": round(seconds, 3),
        "workers": pack.workers,
        "host": socket.gethostname(),
        "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def read(path: Path) -> dict[str, Any]:
    """Return the report that lies with a container.

    Raises:
        UserError: it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found["asked"], dict) and "samples" in found:
            return dict(found)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise UserError(
        f"{path}, which says of what the pack is, cannot be read: remove the pack, or choose "
        "another name"
    )


def lines_before(source: str, plan: Mapping[str, Any], quota: Sequence[str]) -> list[str]:
    """Return what is printed before a pack."""
    counts = [f"{one['name']} {one['samples']:,}" for one in plan["splits"]]
    counted = ", ".join(counts) or "none"
    if plan["classes"]:
        counted += f", {words(plan['classes'], 'class', 'classes')}"
    if plan["unlabelled"]:
        some_of = plan["unlabelled"] < plan["samples"]
        without = f"{plan['unlabelled']:,} without a label" if some_of else "without labels"
        counted += f", {without}"
    files = words(plan["files_before"], "file", "files")
    if plan["files_after"] is not None:
        files += f" -> {words(plan['files_after'], 'file', 'files')}"
    found = [
        f"{source} -> {plan['out']} ({plan['container']})",
        f"samples: {counted}, {size(plan['sample_bytes'])}",
        f"files: {files}",
    ]
    if plan["no_images"]:
        kinds = [f"{count:,} {kind}" for kind, count in plan["no_images"].items()]
        found.append(f"not images by their names: {some(kinds)}")
    if plan["nulls"]:
        missing = ", ".join(f"{count:,} of {name}" for name, count in plan["nulls"].items())
        found.append(f"without a value: {missing}; they become empty samples")
    if plan["hint"]:
        found.append(f"labels: {plan['hint']}")
    needs = f"{size(plan['bytes'])} needed, " if plan["bytes"] else ""
    found.append(f"space: {needs}{size(free(Path(plan['out'])))} free")
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


def _counts(pack: Pack, index: Index) -> dict[str, Any]:
    labels = np.empty(0, np.int64) if index.labels is None else index.labels
    classes, known = len(index.classes), labels[labels >= 0]
    # A class counts that has a name or a sample. (np.unique would import numpy.ma: 40 ms.)
    return {
        "out": str(pack.out),
        "container": pack.container,
        "asked": pack.asked,
        "splits": [{"name": one.name, "samples": one.stop - one.start} for one in index.splits],
        "samples": len(index),
        "classes": max(classes, int(np.count_nonzero(np.diff(np.sort(known), prepend=-1)))),
        "unlabelled": len(index) - len(known),
    }


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


def fits(plan: Mapping[str, Any], layout: Layout | None, there: int) -> None:
    """Refuse a pack that cannot fit.

    Args:
        layout: None where places are not known before the bytes.
        there: bytes that an earlier attempt has written already.

    Raises:
        UserError: says how much is missing, or that a file is larger than `ulimit -f`: a library
            would say that in its own way.
    """
    largest = plan["bytes"] if layout is None else int(layout.sizes.max())
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and largest > limit:
        raise UserError(
            f"{plan['out']} needs a file of {size(largest)}, and this shell's limit for a file is "
            f"{size(limit)} (ulimit -f): raise it, or write a tar of smaller files (--shard-size)"
        )
    room = free(Path(plan["out"]))
    missing = plan["bytes"] - there - room
    if missing > 0:
        raise UserError(
            f"{plan['out']} needs {size(plan['bytes'])}, and {size(room)} are free on its file "
            f"system: {size(missing)} are missing; make space, or choose another place"
        )


class Full(RunFailed):
    """No space is left, or no quota."""


@contextmanager
def missing_space(pack: Pack, needed: int) -> Iterator[None]:
    """Say of an error that comes of a full disk where, and how much is missing.

    Args:
        needed: bytes that the work folder will take; 0: not known before.

    Raises:
        Full: instead of that error.
    """
    try:
        yield
    except OSError as error:
        if not no_space(error):
            raise
        missing = needed - allocated(pack.part) - free(pack.part)
        more = f"; about {size(missing)} more are needed" if missing > 0 else ""
        why = os.strerror(error.errno or 0)
        raise Full(f"{pack.part}: {why}{more}: make space there") from None
