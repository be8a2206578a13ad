"""Tar files, one or a folder of shards, ours and other people's, as an index.

Members are grouped as `grouping` says: in the habit of WebDataset, or as class folders.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split
from ..strings import Strings
from . import Choice, label_text, tar_info
from .grouping import KINDS, Groups, Parts, group
from .stems import LABEL
from .tar_special import Members
from .tar_walk import walk

_COMPRESSED = {
    b"\x1f\x8b": "gzip -d",
    b"BZh": "bzip2 -d",
    b"\xfd7zXZ\x00": "xz -d",
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"\x04\x22\x4d\x18": "lz4 -d",
}


class NoFallback:
    """Every member of a tar lies in one piece."""

    def chunks(self, field: str, number: int) -> Iterator[bytes | memoryview]:
        raise BadContainer("the index of a tar says that a sample lies in pieces: it is damaged")


def fallback(index: Index, root: Path) -> NoFallback:
    """Never needed."""
    return NoFallback()


@dataclass(frozen=True)
class _Shards:
    """All members of all shards; the columns have a row for each."""

    root: Path
    names: Sequence[bytes]
    members: Strings
    part: Int64s
    offset: Int64s
    length: Int64s
    keys: dict[int, bytes]
    small: dict[int, bytes]
    sizes: Int64s
    passed: Counter[str]


def scan(path: Path, choice: Choice) -> Index:
    """Where every member lies.

    Args:
        path: a tar, or a folder of them, also one folder below; their names tell the split.

    Raises:
        BadContainer: it is damaged, cut short, compressed, or holds what no sample can be.
        UserError: its members leave open what is a sample.
        OSError: it cannot be read.
    """
    info = tar_info.read(path) if path.is_dir() else tar_info.Info()
    names = _shard_names(path)
    _check_present(path, info, names)
    sure = info.ours and all(os.fsdecode(name) in info.shards for name in names)
    shards = _walk_all(path, names, choice, sure)
    stems = [os.path.splitext(os.fsdecode(name) or path.name)[0] for name in names]
    splits = [
        info.shards.get(os.fsdecode(name)) or _split_name(stem)
        for name, stem in zip(names, stems, strict=True)
    ]
    parts = Parts(shards.part, [os.fsencode(stem) for stem in stems], splits, sure)
    if sure and info.fields:
        ends = dict(zip(info.names, info.fields, strict=True))
        wanted = choice.fields or info.names
        choice = replace(choice, fields=tuple(ends.get(name, name) for name in wanted))
    groups = group(shards.members, choice=choice, stems=True, parts=parts)
    if len(groups.keys) and groups.fields == ("data",) and not sure:
        _refuse_nested(path, groups)
    return _index(shards, groups, info if sure else replace(info, arrays={}, fields=()), sure)


def _shard_names(path: Path) -> list[bytes]:
    """Names of the tars below a folder; an empty one for a file."""
    if not path.is_dir():
        return [b""]
    found = [*path.glob("*.tar"), *path.glob("*/*.tar")]
    names = sorted(os.fsencode(one.relative_to(path)) for one in found if one.is_file())
    if not names:
        raise BadContainer(f"{path} holds no file that ends with .tar")
    return names


def _check_present(path: Path, info: tar_info.Info, names: Sequence[bytes]) -> None:
    missing = sorted(set(info.shards) - {os.fsdecode(name) for name in names})
    if missing and info.ours:
        raise BadContainer(
            f"{path} lacks {len(missing)} of the {len(info.shards)} shards that its "
            f"{tar_info.NAME} names, the first is {missing[0]}: copy it there, or remove "
            f"{tar_info.NAME} to read what is left as anybody's tars"
        )


def _walk_all(path: Path, names: Sequence[bytes], choice: Choice, ours: bool) -> _Shards:
    wanted = b"." + (choice.label or LABEL).encode()
    whole = Members()
    counts, sizes = [], []
    for name in names:
        shard = path / os.fsdecode(name) if name else path
        descriptor = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            _refuse_compressed(shard, os.pread(descriptor, 8, 0))
            found = walk(descriptor, size, str(shard), wanted, ours)
        finally:
            os.close(descriptor)
        start = len(whole.names)
        whole.names += found.names
        whole.offsets += found.offsets
        whole.lengths += found.lengths
        whole.keys.update((start + row, key) for row, key in found.keys.items())
        whole.small.update((start + row, data) for row, data in found.small.items())
        whole.passed += found.passed
        counts.append(len(found.names))
        sizes.append(size)
    return _Shards(
        path,
        names,
        Strings.of(whole.names),
        np.repeat(np.arange(len(names)), counts),
        np.array(whole.offsets, np.int64),
        np.array(whole.lengths, np.int64),
        whole.keys,
        whole.small,
        np.array(sizes, np.int64),
        whole.passed,
    )


def _refuse_compressed(path: Path, head: bytes) -> None:
    for magic, command in _COMPRESSED.items():
        if head.startswith(magic):
            raise BadContainer(
                f"{path} is compressed as a whole, so that no sample can be read without all "
                f"before it: unpack it once with `{command}`, which leaves a tar"
            )


def _split_name(stem: str) -> str:
    """The split that a shard's name, or its folder's, tells: `imagenet-train-0001`; or empty."""
    for text in reversed(stem.split("/")):
        words = [word for word in re.split(r"[^A-Za-z]+", text) if word.lower().encode() in KINDS]
        if len({KINDS[word.lower().encode()] for word in words}) == 1:
            return words[-1]
    return ""


def _refuse_nested(path: Path, groups: Groups) -> None:
    if all(key.endswith(b".tar") for key in groups.keys):
        raise BadContainer(
            f"{path} is a tar of {len(groups.keys)} tars: unpack it once, each into a folder of "
            f"its name, or into a folder of tars"
        )


def _index(shards: _Shards, groups: Groups, info: tar_info.Info, sure: bool) -> Index:
    keys = _true_keys(shards, groups)
    rows, splits = groups.rows()
    if sure:
        splits = _all_splits(splits, info)
    elif info.folders:
        splits = tuple(
            replace(one, folder=info.folders.get(one.name, one.folder)) for one in splits
        )
    labels, classes = groups.labels, groups.classes
    if groups.label_member is not None:
        texts = _texts(shards, groups.label_member)
        labels, classes = label_text.parse(texts, info.classes, str(shards.root))
    elif sure:
        labels, classes = None, ()
        if info.labelled:
            labels, classes = np.full(len(keys), -1, np.int64), info.classes
    passed = dict(shards.passed)
    if groups.skipped:
        passed["outside of samples"] = len(groups.skipped)
    files = Strings.of(shards.names)
    return Index(
        "tar",
        files,
        splits,
        keys.take(rows),
        _fields(shards, groups, info, rows),
        None if labels is None else labels[rows],
        classes,
        shards.sizes,
        facts={"skipped": passed} if passed else {},
    )


def _true_keys(shards: _Shards, groups: Groups) -> Strings:
    if not shards.keys:
        return groups.keys
    keys = list(groups.keys)
    for row, key in shards.keys.items():
        if groups.field[row] == 0:
            keys[groups.sample[row]] = key
    return Strings.of(keys)


def _all_splits(found: Sequence[Split], info: tar_info.Info) -> tuple[Split, ...]:
    """With those that have no samples."""
    known = {one.name: one for one in found if one.stop > one.start}
    splits, at = [], 0
    for name, folder in info.folders.items():
        count = known[name].stop - known[name].start if name in known else 0
        splits.append(Split(name, at, at + count, folder))
        at += count
    return tuple(splits)


def _fields(
    shards: _Shards, groups: Groups, info: tar_info.Info, rows: Int64s
) -> tuple[Field, ...]:
    fields = []
    for number, name in enumerate(groups.fields if len(rows) else info.fields or groups.fields):
        members = np.flatnonzero((groups.field == number) & (groups.sample >= 0))
        of = np.empty(len(rows), np.int64)
        of[groups.sample[members]] = members
        of = of[rows]
        file = shards.part[of].astype(np.uint32)
        field = Field(name, shards.offset[of], shards.length[of], file)
        if name in info.fields:
            field = replace(field, name=info.names[info.fields.index(name)])
        if field.name in info.arrays:
            field = _array(shards, field, *info.arrays[field.name])
        fields.append(field)
    return tuple(fields)


def _array(shards: _Shards, field: Field, dtype: str, shape: tuple[int, ...]) -> Field:
    """Past the headers of .npy files that all hold a row of one form."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    heads = field.length - size
    if len(heads) and not (heads == heads[0]).all():
        raise BadContainer(f"{shards.root}: the arrays {field.name} are of different sizes")
    head = int(heads[0]) if len(heads) else 0
    if head < 0:
        raise BadContainer(f"{shards.root}: the arrays {field.name} are shorter than a row")
    return replace(
        field,
        offset=field.offset + head,
        length=np.full(len(heads), size, np.int64),
        dtype=dtype,
        shape=shape,
    )


def _texts(shards: _Shards, members: Int64s) -> list[bytes | None]:
    """The text of each member; None for row -1."""
    texts: list[bytes | None] = []
    opened, descriptor = -1, -1
    try:
        for row in members.tolist():
            text = shards.small.get(row)
            if row >= 0 and text is None:
                length, part = int(shards.length[row]), int(shards.part[row])
                label_text.check_length(shards.members.text(row), length, str(shards.root))
                if part != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                    name = os.fsdecode(shards.names[part])
                    shard = shards.root / name if name else shards.root
                    descriptor, opened = os.open(shard, os.O_RDONLY | os.O_CLOEXEC), part
                text = os.pread(descriptor, length, int(shards.offset[row]))
            texts.append(text)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return texts
