"""The index of what is to be packed: sorted, with safe, unique names and known sizes."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ...base.files import user_path
from .. import finding, keys, stamp
from ..containers import Choice, detect, isolated
from ..errors import BadContainer
from ..index import Index, Split, ordered
from ..roles import split_order
from ..stage import mount
from .request import Request

# All else that a pack's index says is of its files, not of the samples. (What the index of a source
# of others says stays, as its `Fallback` needs it; nothing of it gets into the pack.)
_HANDED_ON = "files_before"
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
    index = _scanned(path, choice, request.preset)
    problem = unsound(index)
    if problem:
        raise BadContainer(f"{path} is damaged, or not what it seems: {problem}")
    index = sorted_(index)
    check_names(index, path)
    if not len(index):
        raise UserError(f"{path} has no samples: nothing to pack")
    known = {one.name for one in index.splits}
    if request.split not in {Request.split, *known}:
        raise UserError(
            f"--split {request.split!r} is for samples that belong to no split; here all do: "
            f"{', '.join(sorted(known))}"
        )
    return noted(replace(index, blocks=None), path)


def files_before(source: Index) -> int:
    """How many files the samples of a source were once; of a pack, before that was made."""
    before = source.facts.get(_HANDED_ON)
    return before if isinstance(before, int) else len(source.files)


def unsound(index: Index) -> str:
    """Return what is wrong in an index, of all its samples; empty: nothing."""
    for strings in (index.keys, index.files):
        if len(strings) and int(np.diff(strings.ends).min()) < 0:
            return "a name ends before it begins"
    if (index.sizes < 0).any():
        return f"a file has {index.sizes.min()} bytes"
    for one in index.fields:
        file = np.zeros(len(index), np.int64) if one.file is None else one.file
        if len(file) and int(file.max()) >= len(index.files):
            return f"a sample lies in the file numbered {file.max()}, of {len(index.files)}"
        there = one.offset >= 0
        if (one.length[there] < 0).any() or (one.length < -1).any():
            return f"a sample has {one.length.min()} bytes"
        if len(index.sizes) == len(index.files):
            # This way round, as a sum might be too large.
            room = index.sizes[file[there]] - one.length[there]
            if (one.offset[there] > room).any():
                return "a sample goes past the end of its file"
    return ""


def root(request: Request) -> Path:
    """Return the folder that the files of the source's index are relative to.

    Raises:
        BadContainer, UserError: it is a SquashFS image of others that cannot be mounted.
    """
    return mount.files_of(Path(os.path.abspath(user_path(request.source, "SOURCE"))))


def sorted_(index: Index) -> Index:
    """By split, and within one by the bytes of the keys."""
    splits = tuple(sorted(index.splits, key=lambda split: split_order(split.name)))
    pairs = (itertools.pairwise(_names(index, split)) for split in splits)
    if splits == index.splits and all(name <= after for every in pairs for name, after in every):
        return index
    split_of = np.empty(len(index), np.int64)
    for number, split in enumerate(splits):
        split_of[split.start : split.stop] = number
    return ordered(index, split_of, splits)


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
    index = finding.fitting(path)
    if index is None:
        return isolated.scan(detect.detect(path), path, choice)
    # There, of many files some are looked at. But who made a pack up does not know how files begin
    # and end that are only on the reader's machine, behind a link.
    if index.facts.get("ends") != stamp.all_ends(index, path):
        raise BadContainer(
            f"{path} is not what its index describes: not all of its files begin and end as they "
            "did when it was packed; restore it"
        )
    if choice.label or choice.key or choice.fields:
        raise UserError(
            f"{path} was packed by rankup: --label, --key and --fields are for other sources"
        )
    facts = {name: value for name, value in index.facts.items() if name == _HANDED_ON}
    return replace(index, facts=facts)


def check_names(index: Index, path: Path) -> None:
    """Refuse keys that could not be made files again, and such as are there twice.

    Raises:
        BadContainer, UserError: names the first of them.
    """
    keys.check_all(index.keys, str(path))
    for split in index.splits:
        names = _names(index, split)
        twice = [name for name, after in itertools.pairwise(names) if name == after]
        if twice:
            first = ", ".join(keys.shown(name) for name in twice[:_NAMED])
            raise UserError(
                f"{path}: {len(twice)} samples of {split.name} have a name that another one has "
                f"({first}); names must be unique, choose a column of keys with --key"
            )


def _names(index: Index, split: Split) -> list[bytes]:
    if split.stop - split.start == len(index):
        return list(index.keys)
    return list(index.keys.take(np.arange(split.start, split.stop)))
