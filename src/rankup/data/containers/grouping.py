"""From the names of files to samples: splits, classes, keys, and what belongs together.

The same rules for folders, tars and zips. Folders named `train`, `val`, `test` (or as below) at the
top are splits, where nothing else stands beside them; the first folder below is the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from ..index import Int64s, Split, split_order
from ..strings import Strings
from . import Choice
from .stems import Stems, stems_of

LONE = "data"
# Folder names in lower case -> what they are.
KINDS = {
    **dict.fromkeys((b"train", b"training"), b"train"),
    **dict.fromkeys((b"val", b"valid", b"validation", b"dev"), b"val"),
    **dict.fromkeys((b"test", b"testing"), b"test"),
}


@dataclass(frozen=True)
class Parts:
    """The files of a container that has several, as tar shards.

    Attributes:
        of: int64 (m,), part of each member.
        names: of the parts, put before keys that several of them have.
        splits: the split that each part's own name tells; empty: none.
        sure: these are the splits, whatever folders there are.
    """

    of: Int64s
    names: Sequence[bytes]
    splits: Sequence[str]
    sure: bool = False


@dataclass(frozen=True)
class Groups:
    """Which sample and field each member is, and what is known of the samples.

    Attributes:
        sample: int64 (m,), row of the sample that a member belongs to; -1: to none.
        field: int64 (m,), row of `fields`; -1 for what is no field of a sample.
        fields: `("data",)` where a sample has one kind of bytes.
        keys: of the n samples, below the folder of their split.
        split_of: int64 (n,), row of `splits`.
        splits: in the order of `split_order`; start and stop are not filled in.
        labels: int64 (n,), rows of `classes`, -1: none. None: no labels, or they stand in members.
        classes: names of the class folders, in the order of their bytes.
        label_member: int64 (n,), the member whose text is the label, -1: none. None: there are no
            such members.
        skipped: names of members that belong to no sample.
    """

    sample: Int64s
    field: Int64s
    fields: tuple[str, ...]
    keys: Strings
    split_of: Int64s
    splits: tuple[Split, ...]
    labels: Int64s | None = None
    classes: tuple[str, ...] = ()
    label_member: Int64s | None = None
    skipped: list[bytes] = dataclasses.field(default_factory=list)

    def rows(self) -> tuple[Int64s, tuple[Split, ...]]:
        """Samples split by split, else in their order, and the splits with start and stop."""
        counts = np.bincount(self.split_of, minlength=len(self.splits))
        stops = np.cumsum(counts).tolist()
        splits = tuple(
            replace(one, start=stop - int(count), stop=stop)
            for one, count, stop in zip(self.splits, counts, stops, strict=True)
        )
        return np.argsort(self.split_of, kind="stable").astype(np.int64), splits


def group(
    names: Strings, *, choice: Choice, stems: bool = False, parts: Parts | None = None
) -> Groups:
    """Samples, splits and labels of files with these names.

    Args:
        names: relative paths with `/`, each once (in its part).
        stems: an archive: files of one stem (`a.jpg`, `a.json`) may be one sample, and one folder
            around everything is passed over.

    Raises:
        UserError: the names leave open what is a split or a sample, or `choice` names what is not
            there.
    """
    paths = list(names)
    outer, kept = b"", list(range(len(paths)))
    sure = parts is not None and parts.sure
    if stems and not sure:
        outer, kept = _within(paths)
    skipped = [] if len(kept) == len(paths) else _others(paths, kept)
    paths = [paths[row][len(outer) :] for row in kept]
    tops = _tops(paths)
    by_folder = _are_splits(tops) and not sure
    if not by_folder and not sure and _name_splits(tops):
        raise UserError(_mixed(paths, tops))
    if by_folder:
        folders = sorted(tops, key=lambda top: split_order(_text(top[:-1]).lower()))
        found = {top: number for number, top in enumerate(folders)}
        lengths = [path.find(b"/") + 1 for path in paths]
        pairs = zip(paths, lengths, strict=True)
        split_of = np.fromiter((found[path[:end]] for path, end in pairs), np.int64, len(paths))
        paths = [path[end:] for path, end in zip(paths, lengths, strict=True)]
        splits = [_split(top[:-1], outer + top[:-1]) for top in folders]
    else:
        split_of, splits = _by_part(parts, kept, choice, outer)
    part = None if parts is None else parts.of[kept]
    # What lies in two splits, or in two parts, is never one sample.
    apart = split_of if parts is None else split_of * len(parts.names) + parts.of[kept]
    found_stems = stems_of(paths, apart, choice) if stems else None
    if found_stems is None:
        groups = _lone(paths, split_of, splits, by_folder)
    else:
        skipped += [paths[row] for row in np.flatnonzero(found_stems.sample < 0).tolist()]
        groups = _stemmed(found_stems, split_of, splits)
    if parts is not None and part is not None:
        groups = _apart(groups, part, parts.names)
    groups = replace(groups, skipped=skipped)
    return groups if len(kept) == len(names) else _back(groups, kept, len(names))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _split(name: bytes, folder: bytes) -> Split:
    return Split(_text(name), 0, 0, _text(folder))


def _tops(paths: Sequence[bytes]) -> set[bytes]:
    """First folders with their `/`; empty for files that lie in none."""
    return {path[: path.find(b"/") + 1] for path in paths}


def _are_splits(tops: set[bytes]) -> bool:
    return bool(tops) and all(top[:-1].lower() in KINDS for top in tops)


def _name_splits(tops: set[bytes]) -> bool:
    """Whether some can be nothing but splits: one to train on, and another."""
    kinds = {KINDS.get(top[:-1].lower(), b"") for top in tops} - {b""}
    return b"train" in kinds and len(kinds) > 1


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


def _others(paths: Sequence[bytes], kept: Sequence[int]) -> list[bytes]:
    inside = set(kept)
    return [path for row, path in enumerate(paths) if row not in inside]


def _mixed(paths: Sequence[bytes], tops: set[bytes]) -> str:
    splits = sorted(_text(top) for top in tops if top[:-1].lower() in KINDS)
    beside = sorted(top for top in tops if top and top[:-1].lower() not in KINDS)
    beside += sorted(path for path in paths if b"/" not in path)[:3] if b"" in tops else []
    shown = ", ".join(repr(_text(one)) for one in beside[:3])
    return (
        f"there are folders {', '.join(splits)}, which are splits, and beside them {shown}: move "
        f"that away, or give a list (CSV or JSON) of what belongs to which split"
    )


def _by_part(
    parts: Parts | None, kept: Sequence[int], choice: Choice, outer: bytes
) -> tuple[Int64s, list[Split]]:
    """Splits as the names of the parts tell them; one split where they do not."""
    if parts is None or not any(parts.splits):
        folder = outer.removesuffix(b"/")
        return np.zeros(len(kept), np.int64), [_split(choice.split.encode(), folder)]
    named = [name or choice.split for name in parts.splits]
    order = sorted(set(named), key=lambda name: split_order(name.lower()))
    rows = np.array([order.index(name) for name in named], np.int64)
    return rows[parts.of[kept]], [Split(name, 0, 0, name) for name in order]


def _lone(
    paths: Sequence[bytes], split_of: Int64s, splits: Sequence[Split], by_folder: bool
) -> Groups:
    """Each member a sample, labelled by its folder."""
    n = len(paths)
    folders = [path[: path.find(b"/") + 1] for path in paths]
    classes = sorted(set(folders) - {b""})
    labels = None
    if classes and (by_folder or b"" not in set(folders)):
        numbers = {folder: number for number, folder in enumerate(classes)} | {b"": -1}
        labels = np.fromiter(map(numbers.__getitem__, folders), np.int64, n)
    return Groups(
        np.arange(n),
        np.zeros(n, np.int64),
        (LONE,),
        Strings.of(paths),
        split_of,
        tuple(splits),
        labels,
        tuple(_text(folder[:-1]) for folder in classes) if labels is not None else (),
    )


def _stemmed(found: Stems, split_of: Int64s, splits: Sequence[Split]) -> Groups:
    """Members of one stem a sample, labelled by one of them."""
    n = len(found.keys)
    of_sample = np.zeros(n, np.int64)
    members = np.flatnonzero(found.sample >= 0)
    of_sample[found.sample[members]] = split_of[members]
    return Groups(
        found.sample,
        found.field,
        found.fields,
        Strings.of(found.keys),
        of_sample,
        tuple(splits),
        label_member=found.label_member,
    )


def _apart(groups: Groups, part: Int64s, names: Sequence[bytes]) -> Groups:
    """With the part's name before the keys of each split in which several parts have the same."""
    if len(names) < 2:
        return groups
    keys = list(groups.keys)
    part_of = np.zeros(len(keys), np.int64)
    members = np.flatnonzero(groups.sample >= 0)
    part_of[groups.sample[members]] = part[members]
    changed = False
    for split in range(len(groups.splits)):
        rows = np.flatnonzero(groups.split_of == split).tolist()
        if len({keys[row] for row in rows}) < len(rows):
            changed = True
            for row in rows:
                keys[row] = names[part_of[row]] + b"/" + keys[row]
    return replace(groups, keys=Strings.of(keys)) if changed else groups


def _back(groups: Groups, kept: Sequence[int], members: int) -> Groups:
    """The same, in rows of all members."""
    rows = np.asarray(kept, np.int64)

    def spread(values: Int64s) -> Int64s:
        all_of_them: npt.NDArray[np.int64] = np.full(members, -1, np.int64)
        all_of_them[rows] = values
        return all_of_them

    label = groups.label_member
    if label is not None:
        label = np.where(label >= 0, rows[label], -1)
    return replace(
        groups, sample=spread(groups.sample), field=spread(groups.field), label_member=label
    )
