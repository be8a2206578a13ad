"""What a pack is about to do, before it does it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.amounts import size
from ...base.errors import UserError
from ..index import Index
from .layout import Layout
from .request import Target

# What the work folder, the index and the report may take beside the data, for each sample.
_EACH = 128


@dataclass(frozen=True)
class Summary:
    """Attributes:
    samples: of each split.
    classes: how many there are.
    source_bytes: of all samples.
    bytes: of the container with its index; 0 where that is not known before.
    files_before, files_after: inodes that the samples take.
    free: bytes that a user may still write there.
    """

    source: str
    target: Target
    samples: tuple[tuple[str, int], ...]
    classes: int
    source_bytes: int
    bytes: int
    files_before: int
    files_after: int
    free: int


def summary(source: str, index: Index, layout: Layout | None, target: Target) -> Summary:
    """Count what there is, and what there will be."""
    lengths = sum(int(field.length.clip(0).sum()) for field in index.fields)
    beside = 1 if layout is None else len(layout.sizes)
    needs = 0 if layout is None else int(layout.sizes.sum())
    return Summary(
        source,
        target,
        tuple((split.name, split.stop - split.start) for split in index.splits),
        len(index.classes),
        lengths,
        needs + _EACH * len(index) if needs else 0,
        len(index.files),
        beside + 1,
        free(target.part),
    )


def free(path: Path) -> int:
    """Bytes that may still be written where a path will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def lines(of: Summary, quota: Sequence[str]) -> list[str]:
    """The summary as it is printed."""
    splits = ", ".join(f"{name} {_spaced(count)}" for name, count in of.samples) or "none"
    classes = f", {_spaced(of.classes)} classes" if of.classes else ""
    found = [
        f"{of.source} -> {of.target.out} ({of.target.container})",
        f"samples: {splits}{classes}, {size(of.source_bytes)}",
        f"files: {_spaced(of.files_before)} -> {_spaced(of.files_after)} (with the index)",
    ]
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


def words(count: int, one: str, many: str) -> str:
    """`1 file`, `1 000 files`."""
    return f"{_spaced(count)} {one if count == 1 else many}"


def _spaced(count: int) -> str:
    return f"{count:,}".replace(",", " ")
