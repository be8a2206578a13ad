"""What a pack is about to do and the room that it takes, before it does it."""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...base.amounts import size, some
from ...base.errors import RunFailed, UserError
from ...base.files import no_space, user_path
from .. import images, inodes
from ..index import Index
from ..inodes import spaced, words
from .journal import Work, allocated
from .layout import Layout
from .request import Target

_WNID = re.compile(r"n\d{8}")
_ILSVRC = (b"ILSVRC/", b"Data/CLS-LOC/")


@dataclass(frozen=True)
class Summary:
    """Attributes:
    samples: of each split.
    classes: how many there are.
    unlabelled: samples without a label.
    source_bytes: of all samples.
    bytes: of the container with its index; 0 where that is not known before.
    files_before: that the samples take now.
    files_after: all that will be written; None where that is not known before.
    free: bytes that a user may still write there.
    no_images: where most samples are images by their names, how many end otherwise, by suffix.
    hint: what may have been forgotten; empty: nothing.
    """

    source: str
    target: Target
    samples: tuple[tuple[str, int], ...]
    classes: int
    unlabelled: int
    source_bytes: int
    bytes: int
    files_before: int
    files_after: int | None
    free: int
    no_images: Mapping[str, int] = field(default_factory=dict)
    hint: str = ""


def summary(source: str, index: Index, layout: Layout | None, target: Target) -> Summary:
    """Count what there is, and what there will be.

    Raises:
        OSError: SOURCE cannot be read.
    """
    needs = 0 if layout is None else int(layout.sizes.sum())
    without = unlabelled(index)
    return Summary(
        source,
        target,
        tuple((split.name, split.stop - split.start) for split in index.splits),
        classes(index),
        without,
        sample_bytes(index),
        needs + index_bytes(index) if needs else 0,
        inodes.of_source(index, Path(os.path.abspath(user_path(source, "SOURCE")))),
        _after(index, layout, target),
        free(target.part),
        _no_images(index),
        _hint(index) if without else "",
    )


def index_bytes(index: Index) -> int:
    """About what all that is written of an index takes: in the work folder it is there twice."""
    columns = 8 * (3 * len(index.fields) + 3) * len(index)
    return 2 * (columns + len(index.keys.data) + len(index.files.data)) + (64 << 10)


def classes(index: Index) -> int:
    """How many classes have a name or a sample."""
    if index.labels is None:
        return 0
    known = np.sort(index.labels[index.labels >= 0])  # np.unique would import numpy.ma: 40 ms
    return max(len(index.classes), int(np.count_nonzero(np.diff(known, prepend=-1))))


def unlabelled(index: Index) -> int:
    """How many samples have no label."""
    return len(index) if index.labels is None else int(np.count_nonzero(index.labels < 0))


def _after(index: Index, layout: Layout | None, target: Target) -> int | None:
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
    """Samples that are no images by their names, most first, where half of all are."""
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


def free(path: Path) -> int:
    """Bytes that may still be written where a path will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def lines(of: Summary, quota: Sequence[str]) -> list[str]:
    """The summary as it is printed."""
    splits = ", ".join(f"{name} {spaced(count)}" for name, count in of.samples) or "none"
    counted = f", {words(of.classes, 'class', 'classes')}" if of.classes else ""
    if of.unlabelled:
        some_of = of.unlabelled < sum(count for _, count in of.samples)
        counted += f", {spaced(of.unlabelled)} without a label" if some_of else ", without labels"
    files = words(of.files_before, "file", "files")
    if of.files_after is not None:
        files += f" -> {words(of.files_after, 'file', 'files')}"
    found = [
        f"{of.source} -> {of.target.out} ({of.target.container})",
        f"samples: {splits}{counted}, {size(of.source_bytes)}",
        f"files: {files}",
    ]
    if of.no_images:
        kinds = [f"{spaced(count)} {kind}" for kind, count in of.no_images.items()]
        found.append(f"not images by their names: {some(kinds)}")
    if of.hint:
        found.append(f"labels: {of.hint}")
    needs = f"{size(of.bytes)} needed, " if of.bytes else ""
    found.append(f"space: {needs}{size(of.free)} free")
    return found + [f"quota: {line}" for line in quota]


def fits(of: Summary, there: int) -> None:
    """Refuse a pack that cannot fit.

    Args:
        there: bytes that an earlier attempt has written already.

    Raises:
        UserError: says how much is missing.
    """
    missing = of.bytes - there - of.free
    if missing > 0:
        raise UserError(
            f"{of.target.out} needs {size(of.bytes)}, and {size(of.free)} are free on its file "
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
