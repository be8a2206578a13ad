"""Facts about a container, as plain values: `--json` prints them, too."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import inodes
from ..images import HEAD, look
from ..index import Field, Index, Split
from ..opened import Samples

_FIRST_CLASSES = 5
# Of the facts of an index only these are for people. The others are for whoever reads the bytes:
# places, paths of columns, hashes.
_TOLD = ("writer", "skipped", "symlinks", "nulls", "compression")


def describe(samples: Samples, splits: tuple[Split, ...], first: int) -> dict[str, Any]:
    """Return the facts of the samples of some splits, all there are or one.

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
    """Return how many samples do not lie in one piece as they are: compressed, chunked, sparse."""
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
        found = np.quantile(known, [0, 0.5, 0.9, 1], method="nearest").tolist()
        about |= dict(zip(("smallest", "median", "nine_tenths", "largest"), found, strict=True))
    return about


def _classes(index: Index, splits: tuple[Split, ...]) -> dict[str, Any]:
    if index.labels is None:
        return {"count": 0}
    labels = {one.name: index.labels[one.start : one.stop] for one in splits}
    used = np.unique(index.labels[index.labels >= 0])
    shown = range(len(index.classes)) if index.classes else used.tolist()
    return {
        "count": max(len(index.classes), len(used)),
        "named": bool(index.classes),
        "first": [
            {
                "label": label,
                "name": _name(index, label),
                "samples": {split: int((of == label).sum()) for split, of in labels.items()},
            }
            for label in shown[:_FIRST_CLASSES]
        ],
    }


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
