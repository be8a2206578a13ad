"""Samples from the names of files: splits, classes, keys, and what belongs together.

The same rules for folders, tars and zips. Folders named `train`, `val`, `test` (`roles.SPLITS`) at
the top are splits, where nothing else stands beside them; the first folder below is the class.

In an archive files of one stem may be one sample, as WebDataset has it: `0001.jpg`, `0001.txt` and
`0001.cls` are the fields `jpg` and `txt` and the label of sample `0001`. The stem ends at the first
dot of the base name, and case does not matter in what follows.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import UserError
from .. import keys
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, Strings
from . import Choice

LONE = "data"
LABEL = "cls"  # ends the name of a member whose text is the label
# Folders of detection data sets (YOLO, COCO, VOC): pictures, and what is known of them.
_LAYOUT = {b"images/", b"labels/", b"annotations/", b"jpegimages/"}
_LONGEST_LABEL = 64  # bytes
# Looked at last, so that the first field of a sample is what it is about.
_TEXT = {"txt", "json", "text", "caption", "csv", "xml", "yaml", "id", "index"}


@dataclass
class Members:
    """The files in an archive, or in several; the lists have an entry for each.

    Attributes:
        names: relative paths, each once in its archive.
        offset, length: of their bytes, as in `index.Field`.
        part: which archive each lies in.
        keys: row -> the true key, where rankup has written it under another name.
        passed: what -> how many are no members.
    """

    names: list[bytes] = dataclasses.field(default_factory=list)
    offset: list[int] = dataclasses.field(default_factory=list)
    length: list[int] = dataclasses.field(default_factory=list)
    part: list[int] = dataclasses.field(default_factory=list)
    keys: dict[int, bytes] = dataclasses.field(default_factory=dict)
    passed: Counter[str] = dataclasses.field(default_factory=Counter)


@dataclass(frozen=True)
class Parts:
    """The files of a container that has several, as tar shards.

    Attributes:
        of: int64 (m,), part of each member.
        names: of the parts, put before keys that several of them have.
        splits: the split that each part's own name tells; empty: none.
    """

    of: Int64s
    names: Sequence[bytes]
    splits: Sequence[str]


@dataclass(frozen=True)
class Groups:
    """The members that are fields of the samples, and what is known of the samples.

    Attributes:
        member: int64 (n, fields), row of the member that is a field of a sample.
        fields: `("data",)` where a sample has one kind of bytes.
        keys: of the samples, below the folder of their split.
        split_of: int64 (n,), row of `splits`.
        splits: in their order; start and stop are not filled in.
        labels: int64 (n,), rows of `classes`, -1: none. None: no labels, or they stand in members.
        classes: names of the class folders, in the order of their bytes.
        label_member: int64 (n,), the member whose text is the label, -1: none. None: there are no
            such members.
    """

    member: Int64s
    fields: tuple[str, ...]
    keys: list[bytes]
    split_of: Int64s = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    splits: tuple[Split, ...] = ()
    labels: Int64s | None = None
    classes: tuple[str, ...] = ()
    label_member: Int64s | None = None


def plain(name: bytes) -> bytes:
    """Return a name without `./` and doubled slashes, as `tar .` has them; absolute stays absolute.

    >>> plain(b"./n01//x.jpg")
    b'n01/x.jpg'
    """
    if b"./" not in name and b"//" not in name and not name.endswith((b"/", b"/.")):
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    return (b"/" if name.startswith(b"/") else b"") + b"/".join(parts)


def cut(name: bytes) -> tuple[bytes, bytes]:
    """Stem and extension of a member, as WebDataset takes them; no extension: it is in no sample.

    >>> cut(b"a.b/0001.seg.png")
    (b'a.b/0001', b'seg.png')
    """
    stem, dot, extension = name[name.rfind(b"/") + 1 :].partition(b".")
    if not (stem and dot):
        return name, b""
    return name[: len(name) - len(extension) - 1], extension


def archived(
    container: str,
    where: str,
    members: Members,
    choice: Choice,
    read: Callable[[int], bytes],
    *,
    files: Strings,
    sizes: Int64s,
    parts: Parts | None = None,
    classes: tuple[str, ...] = (),
) -> Index:
    """Return the index of the members of archives.

    Args:
        read: gives the bytes of a member by its row; asked for those that are labels.
        classes: names that are known from elsewhere.

    Raises:
        UserError: see `group`; a label is too long for one.
        BadContainer: a label is no row of `classes`, or negative.
    """
    groups = group(members.names, choice=choice, stems=True, parts=parts)
    keys, labels, classes_of = groups.keys, groups.labels, groups.classes
    if members.keys:
        first = groups.member[:, 0].tolist()
        keys = [members.keys.get(row, key) for row, key in zip(first, keys, strict=True)]
    used = groups.member.size
    if groups.label_member is not None:
        used += int((groups.label_member >= 0).sum())
        texts = [
            None if row < 0 else _label_text(members, row, read, where)
            for row in groups.label_member.tolist()
        ]
        labels, classes_of = _labels(texts, classes, where)
    passed = dict(members.passed)
    if used < len(members.names):
        passed["outside of samples"] = len(members.names) - used
    offset, length = np.array(members.offset, np.int64), np.array(members.length, np.int64)
    index = Index(
        container,
        files,
        (),
        Strings.of(keys),
        tuple(
            Field(
                name,
                offset[of],
                length[of],
                None if parts is None else parts.of[of].astype(np.uint32),
            )
            for name, of in zip(groups.fields, groups.member.T, strict=True)
        ),
        labels,
        classes_of,
        sizes,
        facts={"skipped": passed} if passed else {},
    )
    # Split by split, else in their order.
    stops = np.cumsum(np.bincount(groups.split_of, minlength=len(groups.splits))).tolist()
    splits = tuple(
        replace(one, start=start, stop=stop)
        for one, start, stop in zip(groups.splits, [0, *stops], stops, strict=False)
    )
    return index.take(np.argsort(groups.split_of, kind="stable"), splits)


def group(
    paths: Sequence[bytes], *, choice: Choice, stems: bool = False, parts: Parts | None = None
) -> Groups:
    """Samples, splits and labels of files with these names.

    Args:
        paths: relative, with `/`, each once (in its part).
        stems: an archive: files of one stem may be one sample, and one folder around everything is
            passed over.

    Raises:
        UserError: the names leave open what is a split or a sample, or `choice` names what is not
            there.
    """
    outer, kept = _within(paths) if stems else (b"", list(range(len(paths))))
    below = [paths[row][len(outer) :] for row in kept]
    tops = _tops(below)
    by_folder = _are_splits(tops)
    if not by_folder and _name_splits(tops):
        raise UserError(_mixed(below, tops))
    part = np.zeros(len(kept), np.int64) if parts is None else parts.of[kept]
    if by_folder:
        folders = sorted(tops, key=lambda top: keys.split_order(_text(top[:-1]).lower()))
        number_of = {top: number for number, top in enumerate(folders)}
        lengths = [path.find(b"/") + 1 for path in below]
        pairs = zip(below, lengths, strict=True)
        split_of = np.fromiter((number_of[path[:end]] for path, end in pairs), np.int64, len(below))
        below = [path[end:] for path, end in zip(below, lengths, strict=True)]
        splits = [Split(_text(top[:-1]), 0, 0, _text(outer + top[:-1])) for top in folders]
    else:
        split_of, splits = _by_part(parts, part, choice, outer)
    # What lies in two splits, or in two parts, is never one sample.
    apart = split_of * (int(part.max(initial=0)) + 1) + part
    groups = _stemmed(below, apart, choice) if stems else None
    if groups is None:
        groups = _lone(below, by_folder)
    first = groups.member[:, 0]
    groups = replace(groups, split_of=split_of[first], splits=tuple(splits))
    if parts is not None:
        groups = _keys_apart(groups, part[first], parts.names)
    if len(kept) == len(paths):
        return groups
    rows, label = np.array(kept, np.int64), groups.label_member
    label = None if label is None else np.where(label >= 0, rows[label], -1)
    return replace(groups, member=rows[groups.member], label_member=label)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _kind(top: bytes) -> str:
    """The kind of split that a first folder is."""
    return keys.kind_of(_text(top[:-1])) if top else ""


def _tops(paths: Sequence[bytes]) -> set[bytes]:
    """First folders with their `/`; empty for files that lie in none."""
    return {path[: path.find(b"/") + 1] for path in paths}


def _are_splits(tops: set[bytes]) -> bool:
    return bool(tops) and all(map(_kind, tops))


def _name_splits(tops: set[bytes]) -> bool:
    """Return True where some can be nothing but splits: one to train on, and another."""
    kinds = set(map(_kind, tops)) - {""}
    return "train" in kinds and len(kinds) > 1


def _within(paths: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """A folder around everything in an archive, and the members that are not beside its splits."""
    rows = list(range(len(paths)))
    outer = b""
    tops = _tops(paths)
    if len(tops) == 1 and not _are_splits(tops):
        (outer,) = tops
        tops = _tops([path[len(outer) :] for path in paths])
        if not (_name_splits(tops) or _are_splits(tops) or (len(tops) > 1 and b"" not in tops)):
            return b"", rows
    if b"" in tops and _name_splits(tops) and _are_splits(tops - {b""}):
        # Nobody can move a README out of an archive, as they could out of a folder.
        rows = [row for row in rows if b"/" in paths[row][len(outer) :]]
    return outer, rows


def _mixed(paths: Sequence[bytes], tops: set[bytes]) -> str:
    splits = sorted(_text(top) for top in tops if _kind(top))
    beside = sorted(top for top in tops if top and not _kind(top))
    beside += sorted(path for path in paths if b"/" not in path)[:3] if b"" in tops else []
    shown = ", ".join(repr(_text(one)) for one in beside[:3])
    return (
        f"there are folders {', '.join(splits)}, which are splits, and beside them {shown}: move "
        f"that away, or give a list (CSV or JSON) of what belongs to which split"
    )


def _by_part(
    parts: Parts | None, part: Int64s, choice: Choice, outer: bytes
) -> tuple[Int64s, list[Split]]:
    """Splits as the names of the parts tell them; one split where they do not."""
    if parts is None or not any(parts.splits):
        folder = _text(outer.removesuffix(b"/"))
        return np.zeros(len(part), np.int64), [Split(choice.split, 0, 0, folder)]
    named = [name or choice.split for name in parts.splits]
    order = sorted(set(named), key=lambda name: keys.split_order(name.lower()))
    rows = np.array([order.index(name) for name in named], np.int64)
    return rows[part], [Split(name, 0, 0, name) for name in order]


def _lone(paths: Sequence[bytes], by_folder: bool) -> Groups:
    """Each member a sample, labelled by its folder."""
    n = len(paths)
    folders = [path[: path.find(b"/") + 1] for path in paths]
    classes = sorted(set(folders) - {b""})
    found = Groups(np.arange(n)[:, None], (LONE,), list(paths))
    if layout := [_text(one[:-1]) for one in classes if one.lower() in _LAYOUT]:
        if len(classes) > 1:
            raise UserError(_no_classes([_text(one[:-1]) for one in classes], layout))
        return found
    if not classes or (b"" in folders and not by_folder):
        return found
    numbers = {folder: number for number, folder in enumerate(classes)} | {b"": -1}
    labels = np.fromiter(map(numbers.__getitem__, folders), np.int64, n)
    return replace(found, labels=labels, classes=tuple(_text(one[:-1]) for one in classes))


def _no_classes(folders: Sequence[str], layout: Sequence[str]) -> str:
    shown = ", ".join(folders[:4]) + (", …" if len(folders) > 4 else "")
    kaggle = {"Data", "ImageSets"} <= {*folders}
    return (
        f"there are folders {shown}, and {' or '.join(layout)} is no class: it holds pictures, or "
        "what is known of them. Pack what belongs together by a list (CSV) of paths with a column "
        "for each, `image,annotation`, and `split` where there are several"
        f"{'; ImageNet of Kaggle: --preset imagenet' if kaggle else ''}"
    )


def _stemmed(paths: Sequence[bytes], apart: Int64s, choice: Choice) -> Groups | None:
    """Members of one stem a sample, labelled by one of them; None where they are no such samples.

    Args:
        apart: int64 (m,): members of which it differs are never one sample.

    Raises:
        UserError: a sample has something twice or not at all.
    """
    pairs = [cut(path) for path in paths]
    ends = [extension.decode("utf-8", "surrogateescape").lower() for _, extension in pairs]
    number_of: dict[tuple[int, bytes], int] = {}
    numbers = (
        number_of.setdefault((part, stem), len(number_of)) if end else -1
        for part, (stem, end) in zip(apart.tolist(), pairs, strict=True)
    )
    sample = np.fromiter(numbers, np.int64, len(pairs))
    label = choice.label or LABEL
    if not _are_stems(sample, len(number_of), ends, label, choice):
        return None
    known = set(ends) - {""}
    kinds = sorted(known - {label}, key=lambda one: (one in _TEXT, one))
    missing = [one for one in choice.fields if one.lower() not in kinds]
    missing += [one for one in (choice.label,) if one and one not in known]
    if missing:
        common = ", ".join(f".{one}" for one, _ in Counter(ends).most_common(8) if one)
        raise UserError(f"no member ends with .{missing[0]} (there are {common or 'none'})")
    if choice.fields:
        kinds = [one.lower() for one in choice.fields]
    number = {kind: row for row, kind in enumerate(kinds)}
    field_of = np.fromiter((number.get(end, -1) for end in ends), np.int64, len(ends))
    is_label = np.fromiter((end == label for end in ends), np.bool_, len(ends))
    # Samples are those that have a field, in the order of their first.
    having = np.flatnonzero((sample >= 0) & (field_of >= 0))
    found, first = np.unique(sample[having], return_index=True)
    renumbered = np.full(len(number_of) + 1, -1, np.int64)  # the last: of -1
    renumbered[found] = np.arange(len(found))
    sample = renumbered[sample]
    keys = [pairs[row][0] for row in having[first].tolist()]
    cells = sample[having] * len(kinds) + field_of[having]
    _check_once(paths, having, cells)
    labels = np.flatnonzero((sample >= 0) & is_label)
    _check_once(paths, labels, sample[labels])
    label_member = None
    if len(labels):
        label_member = np.full(len(keys), -1, np.int64)
        label_member[sample[labels]] = labels
    if not choice.fields and (np.bincount(sample[having], minlength=len(keys)) == 1).all():
        # One kind of bytes under several extensions: the name is the key.
        kinds, member = [LONE], having[np.argsort(sample[having]), None]
        keys = [paths[row] for row in member[:, 0].tolist()]
    else:
        _check_whole(keys, cells, kinds)
        member = having[np.argsort(cells)].reshape(len(keys), len(kinds))
    return Groups(member, tuple(kinds), keys, label_member=label_member)


def _are_stems(
    sample: Int64s, samples: int, ends: Sequence[str], label: str, choice: Choice
) -> bool:
    if not len(sample):
        return False
    if choice.fields or choice.label:
        return True
    if not samples:
        return False
    members = np.bincount(sample[sample >= 0], minlength=samples)
    labels = [row for row, one in enumerate(ends) if one == label]
    if labels and (members[sample[labels]] > 1).all():
        return True
    return bool(2 * np.count_nonzero(members > 1) >= samples)


def _check_once(paths: Sequence[bytes], members: Int64s, cells: Int64s) -> None:
    """Refuse two members in one cell, that is, as one field of one sample."""
    twice = np.flatnonzero(np.bincount(cells) > 1)
    if len(twice):
        one, two = (_text(paths[row]) for row in members[cells == twice[0]][:2].tolist())
        raise UserError(
            f"{one} and {two} are the same field of one sample ({len(twice)} such "
            f"pair{'s' * (len(twice) > 1)}): rename one of them"
        )


def _check_whole(keys: Sequence[bytes], cells: Int64s, kinds: Sequence[str]) -> None:
    """Refuse a sample that lacks a field which others have."""
    there = np.bincount(cells, minlength=len(keys) * len(kinds)).reshape(len(keys), len(kinds)) > 0
    for kind, having in zip(kinds, there.T, strict=True):
        without = np.flatnonzero(~having)
        if len(without):
            whole = [one for one, of in zip(kinds, there.T, strict=True) if of.all()]
            advice = f"; --fields {','.join(whole)} takes what all of them have" if whole else ""
            raise UserError(
                f"{len(without)} of {len(keys)} samples have no .{kind}, the first is "
                f"{_text(keys[without[0]])}{advice}"
            )


def _keys_apart(groups: Groups, part_of: Int64s, names: Sequence[bytes]) -> Groups:
    """Put the part's name before the keys of each split in which several parts have the same."""
    keys = list(groups.keys)
    for split in range(len(groups.splits)):
        rows = np.flatnonzero(groups.split_of == split).tolist()
        if len({keys[row] for row in rows}) < len(rows):
            for row in rows:
                keys[row] = names[part_of[row]] + b"/" + keys[row]
    return replace(groups, keys=keys)


def _label_text(members: Members, row: int, read: Callable[[int], bytes], where: str) -> bytes:
    """The text of a label; what is too long for one is refused before it is read."""
    length = members.length[row]
    if length > _LONGEST_LABEL:
        raise UserError(
            f"{where}: the label {_text(members.names[row])} has {length} bytes; a label is a "
            f"number or a name of at most {_LONGEST_LABEL}: say which member it is with --label, "
            f"or --fields without it"
        )
    return read(row).strip()


def _labels(
    words: Sequence[bytes | None], classes: tuple[str, ...], where: str
) -> tuple[Int64s, tuple[str, ...]]:
    """Labels and class names: numbers are rows of `classes`, other words are classes themselves."""
    present = [row for row, word in enumerate(words) if word is not None]
    found = [word for word in words if word is not None]
    labels = np.full(len(words), -1, np.int64)
    if not all(map(_is_number, found)):
        named = sorted(set(found))
        number = {name: row for row, name in enumerate(named)}
        labels[present] = [number[word] for word in found]
        return labels, tuple(map(_text, named))
    labels[present] = list(map(int, found))
    lowest, highest = int(labels.min(initial=-1)), int(labels.max(initial=-1))
    if lowest < -1:
        raise BadContainer(f"{where}: a label is {lowest}; labels count from 0, and -1 is none")
    if classes and highest >= len(classes):
        raise BadContainer(f"{where}: a label is {highest}, and there are {len(classes)} classes")
    return labels, classes


def _is_number(text: bytes) -> bool:
    return text.removeprefix(b"-").isdigit() and len(text) < 18
