"""What is to be packed, as an index: sorted, with safe and unique names, and with known sizes."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ...base.files import user_path
from .. import index as indexes
from .. import keys, stamp
from ..containers import Choice, detect, isolated
from ..index import Index, ordered
from .request import Request

# What an index says of the files that it was made of, not of the samples.
_OWN = ("writer", "ends", "beside", "files_before")
_NAMED = 5
# Container files whose size and time are noted, so that a change during the pack is seen.
_NOTED = 4096


def scanned(request: Request) -> Index:
    """The index of a pack's source, in the order in which it is packed.

    Raises:
        UserError: there is nothing that can be packed; says why.
        OSError: it cannot be read.
    """
    path = root(request)
    choice = Choice(request.label, request.key, request.fields, request.split)
    index = sorted_(_scanned(path, choice, request.preset))
    _check_names(index, path)
    if not len(index):
        raise UserError(f"{path} has no samples: nothing to pack")
    facts = {name: value for name, value in index.facts.items() if name not in _OWN}
    return noted(replace(index, facts=facts, frames=None), path)


def root(request: Request) -> Path:
    """What the files of the source's index are relative to."""
    return Path(os.path.abspath(user_path(request.source, "SOURCE")))


def sorted_(index: Index) -> Index:
    """By split, and within one by the bytes of the keys."""
    splits = sorted(index.splits, key=lambda split: indexes.split_order(split.name))
    if tuple(splits) == index.splits and all(_in_order(index, split) for split in splits):
        return index
    split_of = np.zeros(len(index), np.int64)
    for number, split in enumerate(splits):
        split_of[split.start : split.stop] = number
    return ordered(index, split_of, tuple(splits))


def noted(index: Index, root: Path) -> Index:
    """With size and time of each file, where the scan has not noted them and they are few."""
    count = len(index.files)
    if count > _NOTED or (len(index.sizes) == count and index.times is not None):
        return index
    about = [
        os.stat(os.path.join(os.fsencode(root), name) if name else root) for name in index.files
    ]
    return replace(
        index,
        sizes=np.array([one.st_size for one in about], np.int64),
        times=np.array([one.st_mtime_ns for one in about], np.int64),
    )


def _scanned(path: Path, choice: Choice, preset: str | None) -> Index:
    if preset is not None or path.is_file():
        from .. import sources  # of no use for a folder
        from ..sources import tables

        if preset is not None or tables.is_list(path):
            return sources.scan_source(path, choice, preset=preset)
    return _container(path, choice)


def _container(path: Path, choice: Choice) -> Index:
    beside = indexes.place(path)
    if beside.is_file() and path.suffix != detect.PART:
        index = indexes.load(beside)
        problem = stamp.unfit(index, path)
        if problem:
            raise UserError(f"{path} does not fit its index: {problem}; restore it, or pack anew")
        if choice.label or choice.key or choice.fields:
            raise UserError(
                f"{path} was packed by rankup: --label, --key and --fields are for other sources"
            )
        return index
    return isolated.scan(detect.detect(path), path, choice)


def _in_order(index: Index, split: indexes.Split) -> bool:
    before = None
    for key in index.keys.take(np.arange(split.start, split.stop)):
        if before is not None and key < before:
            return False
        before = key
    return True


def _check_names(index: Index, path: Path) -> None:
    """Refuse keys that could not be made files again, and such as are there twice."""
    for split in index.splits:
        names = list(index.keys.take(np.arange(split.start, split.stop)))
        unsafe = next((name for name in names if not keys.safe(name)), None)
        if unsafe is not None:
            keys.check(unsafe, str(path))
        twice = [name for name, after in itertools.pairwise(names) if name == after]
        if twice:
            first = ", ".join(keys.shown(name) for name in twice[:_NAMED])
            raise UserError(
                f"{path}: {len(twice)} samples of {split.name} have a name that another one has "
                f"({first}); names must be unique, choose a column of keys with --key"
            )
