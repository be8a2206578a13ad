"""What there is to say about a container, as plain values: also what `--json` prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import inodes
from ..images import HEAD, look
from ..index import Field, Index, Int64s, Split
from ..opened import Samples

_BARS = 8
_ROUND = tuple(m * 10**e for e in range(18) for m in (1, 2, 5))
_END = 10**18  # of a damaged index there may be more, which the last range then takes in
_FIRST_CLASSES = 5
# Labels up to which each has a counter; a damaged index may say anything.
_MOST_LABELS = 1 << 24
# Of the facts of an index only these are for people. The others are for whoever reads the bytes:
# places, paths of columns, hashes.
_TOLD = ("writer", "skipped", "symlinks", "nulls", "compression")


def describe(samples: Samples, splits: tuple[Split, ...], first: int) -> dict[str, Any]:
    """The facts of the samples of some splits, all there are or one.

    Only the index is read, and of the `first` samples of each split the beginnings.
    """
    index = samples.index
    rows = slice(splits[0].start, splits[-1].stop) if splits else slice(0, 0)
    return {
        "path": str(samples.root),
        "container": index.container,
        "read": samples.how,
        "samples": rows.stop - rows.start,
        "splits": [_split(index, one) for one in splits],
        "fields": [_field(one, rows) for one in index.fields],
        "classes": _classes(index, splits),
        "first": [
            _sample(samples, row)
            for one in splits
            for row in range(one.start, min(one.stop, one.start + first))
        ],
        "files": {
            "container": inodes.of_source(index, samples.root),
            "samples": inodes.of_samples(index, splits),
        },
        "hashes": bool(index.fields) and all(one.hash is not None for one in index.fields),
        "pieces": _pieces(index, rows),
        "facts": {name: index.facts[name] for name in _TOLD if name in index.facts},
    }


def _pieces(index: Index, rows: slice) -> int:
    """How many samples do not lie in one piece as they are: compressed, chunked, sparse."""
    apart = [one.offset[rows] < 0 for one in index.fields]
    return int(np.logical_or.reduce(apart).sum()) if apart else 0


def _split(index: Index, split: Split) -> dict[str, Any]:
    rows = slice(split.start, split.stop)
    # As floats, which hold sums of what a damaged index says.
    every = (np.maximum(one.length[rows], 0) for one in index.fields)
    known = int(sum(float(one.sum(dtype=np.float64)) for one in every))
    labelled = int((index.labels[rows] >= 0).sum()) if index.labels is not None else 0
    count = split.stop - split.start
    return {"name": split.name, "samples": count, "bytes": known, "labelled": labelled}


def _field(field: Field, rows: slice) -> dict[str, Any]:
    about: dict[str, Any] = {"name": field.name}
    if field.dtype:
        return {**about, "dtype": field.dtype, "shape": list(field.shape)}
    lengths = field.length[rows]
    known = lengths[lengths >= 0]
    about["unknown"] = len(lengths) - len(known)
    if len(known):
        low, middle, high = (int(q) for q in np.quantile(known, [0, 0.5, 1], method="nearest"))
        about |= {"smallest": low, "median": middle, "largest": high}
        about["histogram"] = histogram(known)
    return about


def histogram(lengths: Int64s) -> list[dict[str, int]]:
    """How many are of which size, in at most 8 ranges between round numbers.

    Of each `from`, `to` (not reached) and `count`.
    """
    lengths = np.minimum(lengths, _END - 1)
    low, high = int(lengths.min()), int(lengths.max())
    for step in (1, 3, 6, 12):  # of 1, 2, 5, 10, …: decades where these are too many
        edges = [0, *_ROUND[::step], _END]
        first = max(number for number, edge in enumerate(edges) if edge <= low)
        last = min(number for number, edge in enumerate(edges) if edge > high)
        edges = edges[first : last + 1]
        if len(edges) <= _BARS + 1:
            break
    counts = np.diff(np.searchsorted(np.sort(lengths), edges))
    return [
        {"from": a, "to": b, "count": int(count)}
        for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def _classes(index: Index, splits: tuple[Split, ...]) -> dict[str, Any]:
    if index.labels is None:
        return {"count": 0}
    counts: dict[str, dict[int, int]] = {}
    for split in splits:
        labels = index.labels[split.start : split.stop]
        labels = labels[labels >= 0]
        if len(labels) and int(labels.max()) < _MOST_LABELS:
            found = np.bincount(labels)
            used = np.flatnonzero(found)
            counts[split.name] = dict(zip(used.tolist(), found[used].tolist(), strict=True))
        else:
            values, found = np.unique(labels, return_counts=True)
            counts[split.name] = dict(zip(values.tolist(), found.tolist(), strict=True))
    used_labels = {label for one in counts.values() for label in one}
    about: dict[str, Any] = {"count": max(len(index.classes), len(used_labels))}
    about["named"] = bool(index.classes)
    shown = range(len(index.classes)) if index.classes else sorted(used_labels)
    about["first"] = [
        {
            "label": label,
            "name": _name(index, label),
            "samples": {split: one.get(label, 0) for split, one in counts.items()},
        }
        for label in list(shown)[:_FIRST_CLASSES]
    ]
    return about


def _name(index: Index, label: int) -> str:
    return index.classes[label] if label < len(index.classes) else str(label)


def _sample(samples: Samples, row: int) -> dict[str, Any]:
    index = samples.index
    label = int(index.labels[row]) if index.labels is not None else -1
    about: dict[str, Any] = {
        "path": index.path(row),
        "label": label if label >= 0 else None,
        "class": _name(index, label) if label >= 0 else None,
    }
    about["fields"] = {
        one.name: {"dtype": one.dtype, "shape": list(one.shape)}
        if one.dtype
        else _bytes(samples, row, one)
        for one in index.fields
    }
    return about


def _bytes(samples: Samples, row: int, field: Field) -> dict[str, Any]:
    size = int(field.length[row])
    if field.offset[row] < 0:
        size, head = _beginning(samples, row, field.name, size)
    else:
        head = bytes(samples.span(row, field.name, 0, HEAD))
    seen = look(head, b"", size, samples.index.keys.text(row))
    about: dict[str, Any] = {"bytes": size}
    if seen.kind:
        about |= {"image": seen.kind, "width": seen.width, "height": seen.height}
    return about


def _beginning(samples: Samples, row: int, field: str, size: int) -> tuple[int, bytes]:
    """Return the size and the head of a sample that is compressed, of which no more is read.

    Args:
        size: as the index has it, which is believed; -1: the sample is read through to count it.
    """
    head, counted = b"", 0
    for piece in samples.chunks(row, field):
        head += bytes(piece[: HEAD - len(head)])
        counted += len(piece)
        if size >= 0 and len(head) == HEAD:
            break
    return (size if size >= 0 else counted), head
