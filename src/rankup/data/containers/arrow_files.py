"""The files of a data set, and the splits that their names tell."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...base.errors import UserError
from ..index import split_order

# As Hugging Face names the files of a split: `train-00000-of-00008.parquet`.
_NUMBERED = re.compile(r"^(.+?)-\d{2,6}-of-\d{2,6}$")
_KNOWN_SPLITS = re.compile(r"^(train|training|val|valid|validation|dev|test|testing)$", re.I)


class File(NamedTuple):
    """A file of a data set.

    Attributes:
        name: relative to the container, empty where it is that itself.
        split, folder: what its rows belong to.
    """

    name: str
    split: str
    folder: str = ""


def files_below(path: Path, suffix: str, split: str) -> list[File]:
    """The files of a folder with their splits, in order; a file that is given is the only one.

    Raises:
        UserError: there is none.
    """
    if not path.is_dir():
        found = split_of(path.name.removesuffix(suffix))
        return [File("", found or split, "")]
    names = sorted(
        os.path.relpath(one, path)
        for pattern in (f"*{suffix}", f"*/*{suffix}")
        for one in path.glob(pattern)
        if not one.name.startswith(".") and one.is_file()
    )
    if not names:
        raise UserError(f"{path} has no {suffix} files, neither directly nor one folder below")
    files = []
    for name in names:
        folder, _, base = name.rpartition("/")
        own = folder if _KNOWN_SPLITS.match(folder) else ""
        told = split_of(base.removesuffix(suffix)) or own
        files.append(File(name, told or split, told))
    return in_order(files)


def in_order(files: Iterable[File]) -> list[File]:
    """By split, then as they came."""
    return sorted(files, key=lambda one: split_order(one.split))


def split_of(stem: str) -> str | None:
    """The split that a file's name tells: `imagenet-train`, `test-00000-of-00002`."""
    numbered = _NUMBERED.match(stem)
    stem = numbered[1] if numbered else stem
    last = re.split(r"[-_.]", stem)[-1]
    if _KNOWN_SPLITS.match(last):
        return last
    return stem if numbered else None
