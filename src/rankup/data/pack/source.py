"""The request of a pack, and the index of what is to be packed.

Of the request: its options and the container that OUT's name stands for. The index is
sorted, with safe, unique names and known sizes.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...base.amounts import bytes_of
from ...base.errors import UserError, nearest
from ...base.files import user_path
from .. import finding, keys, stamp
from ..containers import Choice, detect
from ..errors import BadContainer
from ..index import Index, Split, ordered
from ..keys import split_order
from ..stage import mount

BAD = ("keep", "skip", "fail")
PRESETS = ("imagenet", "imagewoof")
_SUFFIXES = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "hdf5"),
    **dict.fromkeys((".sqsh", ".squashfs", ".sfs", ".sqfs"), "squashfs"),
}
# A folder of files with these names each; a name like that for OUT itself says what is wanted.
_FOLDERS = {".arrow": "arrow", ".tar": "tar"}
CONTAINERS = ("hdf5", "arrow", "tar", "squashfs")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
# All else that a pack's index says is of its files, not of the samples. (What the index of a source
# of others says stays, as its `Fallback` needs it; nothing of it gets into the pack.)
_HANDED_ON = "files_before"
_NAMED = 5
# Container files whose size and time are noted, so that a change during the pack is seen.
_NOTED = 4096


@dataclass(frozen=True)
class Request:
    """The words of `rankup pack`, as they were given."""

    source: str
    out: str
    to: str | None = None
    preset: str | None = None
    split: str = "train"
    label: str | None = None
    key: str | None = None
    fields: tuple[str, ...] = ()
    bad: str = "keep"
    resize: int | None = None
    shard_size: str = "1GB"
    resume: bool = False
    fsync: bool = True
    workers: int | None = None
    dry_run: bool = False
    as_json: bool = False


def asked(request: Request, container: str) -> dict[str, Any]:
    """Return what decides the bytes of a pack; a pack is resumed with the same only."""
    return {
        "SOURCE": os.path.abspath(request.source),
        "--to": container,
        "--preset": request.preset,
        "--split": request.split,
        "--label": request.label,
        "--key": request.key,
        "--fields": ",".join(request.fields) or None,
        "--bad": request.bad,
        "--resize": request.resize,
        "--shard-size": request.shard_size,
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in what two packs were asked for different things; empty: in nothing."""
    return "; ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in now
        if before.get(name) != now.get(name)
    )


def target(out: str, to: str | None) -> tuple[Path, str]:
    """Return the absolute path and the container that OUT and --to mean together.

    Raises:
        UserError: the container is not known, not said, or the two do not fit.
    """
    if to is not None and to not in CONTAINERS:
        raise UserError(f"--to {to!r} is no container rankup writes; {nearest(to, CONTAINERS)}")
    path = user_path(out, "OUT")
    # Not resolved: where OUT is a link to elsewhere, it is refused as something that exists.
    path = Path(os.path.abspath(path))
    if not path.name:
        raise UserError(f"OUT {out!r} has no name; give the file or folder to be made")
    suffix = path.suffix.lower()
    if suffix in _FOLDERS:
        kind, plain = _FOLDERS[suffix], path.with_suffix("").name
        raise UserError(
            f"OUT {out!r}: {kind} is written as a folder with a {suffix} file per split"
            f"{' and shard' if kind == 'tar' else ''}; name that folder: {plain} --to {kind}"
        )
    said = _SUFFIXES.get(suffix)
    if to is None and said is None:
        raise UserError(
            f"OUT {out!r} does not say which container to write: end its name with .h5 or .sqsh, "
            f"or add --to {', '.join(CONTAINERS[:-1])} or {CONTAINERS[-1]}"
        )
    if to is not None and said is not None and to != said:
        raise UserError(f"OUT {out!r} is named as {said}, and --to says {to}; change one of them")
    container = to or said or ""
    if out.endswith("/") and container in ("hdf5", "squashfs"):
        raise UserError(f"OUT {out!r} is a folder, and {container} is one file; name the file")
    return path, container


def checked(request: Request, container: str) -> None:
    """Look at what needs no source.

    Args:
        container: that OUT will be.

    Raises:
        UserError: an option has a value that cannot be.
    """
    if request.bad not in BAD:
        raise UserError(f"--bad {request.bad!r}: {nearest(request.bad, BAD)}")
    if request.preset is not None and request.preset not in PRESETS:
        raise UserError(f"--preset {request.preset!r}: {nearest(request.preset, PRESETS)}")
    if request.resize is not None and request.resize < 1:
        raise UserError(f"--resize {request.resize}: the shorter side has at least 1 pixel")
    if request.workers is not None and request.workers < 1:
        raise UserError(f"--workers {request.workers}: at least 1")
    if bytes_of(request.shard_size, "--shard-size") < 1 << 20:
        raise UserError(f"--shard-size {request.shard_size!r} is too small; at least 1MiB")
    if request.shard_size != Request.shard_size and container != "tar":
        raise UserError(f"--shard-size is for a tar, and OUT is to be {container}; leave it away")
    if _URL.match(request.source):
        raise UserError(
            f"SOURCE {request.source!r} is a URL, and pack reads files: `rankup fetch --url` "
            "brings it here first"
        )
    if not request.split or "/" in request.split or request.split in (".", ".."):
        raise UserError(f"--split {request.split!r} cannot be the name of a split")


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
    return noted(index, path)


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
        from ..sources import lists

        if preset is not None or lists.is_list(path):
            return sources.scan_source(path, choice, preset=preset)
    index = finding.fitting(path)
    if index is None:
        return finding.scan(detect.detect(path), path, choice)
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
