"""Files, as a quota counts them, before and after a pack."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from . import indexes
from .index import Index, Split

REPORT = "report.json"


def of_source(index: Index, root: Path) -> int:
    """Return the files that samples are taken from, or those of a container."""
    return len(index.files) if index.container == "files" else lying(root)


def of_samples(index: Index, splits: Iterable[Split]) -> int:
    """Return the files that the samples of some splits would be."""
    arrays = sum(bool(one.dtype) for one in index.fields)
    single = len(index.fields) - arrays
    return sum(arrays + single * (split.stop - split.start) for split in splits)


def of_pack(container: str, data: int, classes: bool) -> int:
    """Return how many files `rankup pack` writes, from the index to the report.

    Args:
        data: files with samples.
        classes: True where they have names.
    """
    if container == "tar":  # an index of DALI's for each; info.json, and names of classes
        return 2 * data + 1 + classes + 2
    return data + 2


def lying(root: Path) -> int:
    """Return how many files there are of a container, with its index and its report.

    Raises:
        OSError: it cannot be read.
    """
    if not root.is_dir():
        report = root.with_name(f"{root.name}.{REPORT}")
        return 1 + indexes.place(root).is_file() + report.is_file()
    return sum(len(names) for _, _, names in os.walk(root))


def words(count: int, one: str, many: str) -> str:
    """Return `1 file`, `1,000 files`."""
    return f"{count:,} {one if count == 1 else many}"
