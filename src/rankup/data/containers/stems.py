"""The habit of WebDataset: members of a tar with one stem are one sample.

`0001.jpg`, `0001.txt` and `0001.cls` are the fields `jpg` and `txt` and the label of sample `0001`.
The stem ends at the first dot of the base name, and case does not matter in what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...base.errors import UserError
from ..index import Int64s
from . import Choice

LABEL = "cls"
# Looked at last, so that the first field of a sample is what it is about.
_TEXT = {"txt", "json", "text", "caption", "csv", "xml", "yaml", "id", "index"}


@dataclass(frozen=True)
class Stems:
    """Members put together; rows and -1 as in `grouping.Groups`."""

    sample: Int64s
    field: Int64s
    fields: tuple[str, ...]
    keys: list[bytes]
    label_member: Int64s | None


def cut(name: bytes) -> tuple[bytes, bytes]:
    """Stem and extension of a member, as WebDataset takes them; no extension: it is in no sample.

    >>> cut(b"a.b/0001.seg.png")
    (b'a.b/0001', b'seg.png')
    """
    stem, dot, extension = name[name.rfind(b"/") + 1 :].partition(b".")
    if not (stem and dot):
        return name, b""
    return name[: len(name) - len(extension) - 1], extension


def stems_of(paths: Sequence[bytes], apart: Int64s, choice: Choice) -> Stems | None:
    """Members by their stems; None where they are no samples of several members.

    Args:
        apart: int64 (m,): members of which it differs are never one sample.

    Raises:
        UserError: a sample has something twice or not at all.
    """
    pairs = [cut(path) for path in paths]
    numbers: dict[object, int] = {}
    marks: Sequence[object] = [stem for stem, _ in pairs]
    if len(apart) and (apart != apart[0]).any():
        marks = list(zip(apart.tolist(), marks, strict=True))
    sample = np.fromiter(
        (
            numbers.setdefault(mark, len(numbers)) if extension else -1
            for mark, (_, extension) in zip(marks, pairs, strict=True)
        ),
        np.int64,
        len(pairs),
    )
    extensions = [extension.decode("utf-8", "surrogateescape").lower() for _, extension in pairs]
    label = choice.label or LABEL
    if not _are_stems(sample, len(numbers), extensions, label, choice):
        return None
    kinds = Counter(one for one in extensions if one)
    if choice.label and choice.label not in kinds:
        raise UserError(f"no member ends with .{choice.label} {_which(kinds)}")
    return _sorted_out(paths, [stem for stem, _ in pairs], sample, extensions, label, choice)


def _are_stems(
    sample: Int64s, samples: int, extensions: Sequence[str], label: str, choice: Choice
) -> bool:
    if not len(sample):
        return False
    if choice.fields or choice.label:
        return True
    if not samples:
        return False
    members = np.bincount(sample[sample >= 0], minlength=samples)
    labels = [row for row, one in enumerate(extensions) if one == label]
    if labels and (members[sample[labels]] > 1).all():
        return True
    return bool(2 * np.count_nonzero(members > 1) >= samples)


def _sorted_out(
    paths: Sequence[bytes],
    stems: Sequence[bytes],
    sample: Int64s,
    extensions: Sequence[str],
    label: str,
    choice: Choice,
) -> Stems:
    kinds = sorted(set(extensions) - {"", label}, key=lambda one: (one in _TEXT, one))
    if choice.fields:
        missing = [one for one in choice.fields if one.lower() not in kinds]
        if missing:
            raise UserError(f"no member ends with .{missing[0]} {_which(Counter(extensions))}")
        kinds = [one.lower() for one in choice.fields]
    number = {kind: row for row, kind in enumerate(kinds)}
    field = np.fromiter((number.get(one, -1) for one in extensions), np.int64, len(extensions))
    is_label = np.fromiter((one == label for one in extensions), np.bool_, len(extensions))
    sample, rows = _with_data(sample, field)
    count = len(rows)
    keys = [stems[row] for row in rows.tolist()]
    data = np.flatnonzero((sample >= 0) & (field >= 0))
    _check_once(paths, sample, field, data, len(kinds))
    labels = np.flatnonzero((sample >= 0) & is_label)
    _check_once(paths, sample, np.zeros_like(field), labels, 1)
    label_member = None
    if len(labels):
        label_member = np.full(count, -1, np.int64)
        label_member[sample[labels]] = labels
    each = np.bincount(sample[data], minlength=count)
    if not choice.fields and (each == 1).all():
        # One kind of bytes under several extensions: the name is the key.
        of = np.empty(count, np.int64)
        of[sample[data]] = data
        keys = [paths[row] for row in of.tolist()]
        field = np.where(field >= 0, 0, -1)
        fields: tuple[str, ...] = ("data",)
    else:
        _check_whole(keys, sample, field, data, kinds)
        fields = tuple(kinds)
    sample = np.where((field >= 0) | is_label, sample, -1)
    return Stems(sample, np.where(sample >= 0, field, -1), fields, keys, label_member)


def _with_data(sample: Int64s, field: Int64s) -> tuple[Int64s, Int64s]:
    """Samples renumbered in order of their first member, and that member, for what has fields."""
    data = np.flatnonzero((sample >= 0) & (field >= 0))
    found, first = np.unique(sample[data], return_index=True)
    renumbered = np.full(int(sample.max(initial=-1)) + 2, -1, np.int64)  # the last: of -1
    renumbered[found] = np.arange(len(found))
    return renumbered[sample], data[first]


def _check_once(
    paths: Sequence[bytes], sample: Int64s, field: Int64s, members: Int64s, fields: int
) -> None:
    cells = sample[members] * max(fields, 1) + field[members]
    order = np.argsort(cells, kind="stable")
    same = np.flatnonzero(np.diff(cells[order]) == 0)
    if len(same):
        one, two = (paths[members[order[same[0] + step]]] for step in (0, 1))
        raise UserError(
            f"{_text(one)} and {_text(two)} are the same field of one sample "
            f"({len(same)} such pair{'s' * (len(same) > 1)}): rename one of them"
        )


def _check_whole(
    keys: Sequence[bytes], sample: Int64s, field: Int64s, data: Int64s, kinds: Sequence[str]
) -> None:
    for number, kind in enumerate(kinds):
        has = np.zeros(len(keys), np.bool_)
        has[sample[data[field[data] == number]]] = True
        without = np.flatnonzero(~has)
        if len(without):
            counts = np.bincount(field[data], minlength=len(kinds)).tolist()
            whole = [one for one, count in zip(kinds, counts, strict=True) if count == len(keys)]
            advice = f"; --fields {','.join(whole)} takes what all of them have" if whole else ""
            raise UserError(
                f"{len(without)} of {len(keys)} samples have no .{kind}, the first is "
                f"{_text(keys[without[0]])}{advice}"
            )


def _which(kinds: Counter[str]) -> str:
    known = ", ".join(f".{one}" for one, _ in kinds.most_common(8) if one)
    return f"(there are {known})" if known else "(there are none)"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
