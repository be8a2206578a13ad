"""Facts about a container: as plain values, which `--json` prints, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...base.amounts import size, words
from ...base.text import clean
from .. import indexes
from ..containers import FORMATS
from ..images import HEAD, look
from ..index import Field, Index, Split
from ..opened import Samples

_FIRST_CLASSES = 5
# Of the facts of an index only these are for people. The others are for whoever reads the bytes:
# places, paths of columns, hashes.
_TOLD = ("writer", "skipped", "nulls", "compression")


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
        "splits": [_split_facts(index, one) for one in splits],
        "fields": [_field_facts(one, rows) for one in index.fields],
        "classes": _class_facts(index, splits),
        "first": [
            _sample(samples, row)
            for one in splits
            for row in range(one.start, min(one.stop, one.start + first))
        ],
        "files": {
            "container": indexes.files_of_source(index, samples.root),
            "samples": indexes.files_of_samples(index, splits),
        },
        "hashes": bool(index.fields) and all(one.hash is not None for one in index.fields),
        "pieces": _pieces(index, rows),
        "facts": {name: index.facts[name] for name in _TOLD if name in index.facts},
    }


def _pieces(index: Index, rows: slice) -> int:
    """Return how many samples do not lie in one piece as they are: compressed, chunked, sparse."""
    apart = [one.offset[rows] < 0 for one in index.fields]
    return int(np.logical_or.reduce(apart).sum()) if apart else 0


def _split_facts(index: Index, split: Split) -> dict[str, Any]:
    rows = slice(split.start, split.stop)
    # As floats, which hold sums of what a damaged index says.
    every = (np.maximum(one.length[rows], 0) for one in index.fields)
    known = int(sum(float(one.sum(dtype=np.float64)) for one in every))
    labelled = int((index.labels[rows] >= 0).sum()) if index.labels is not None else 0
    count = split.stop - split.start
    return {"name": split.name, "samples": count, "bytes": known, "labelled": labelled}


def _field_facts(field: Field, rows: slice) -> dict[str, Any]:
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


def _class_facts(index: Index, splits: tuple[Split, ...]) -> dict[str, Any]:
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


def safe(text: str) -> str:
    """Return a name as a terminal may have it: control characters and no UTF-8 are written out."""
    # A carriage return would else stand for a line drawn over.
    return clean(text.replace("\r", "\\x0d")).encode("utf-8", "backslashreplace").decode()


def lines(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `rankup inspect` prints."""
    kind = FORMATS[about["container"]].title
    yield f"{about['path']}: {kind}, {_count(about['samples'], 'sample')}"
    yield from _splits(about["splits"])
    yield from _classes(about["classes"])
    for field in about["fields"]:
        yield from _field(field, len(about["fields"]) > 1)
    yield from _first(about["first"])
    yield from _container(about)


def _count(count: int, word: str) -> str:
    return words(count, word, {"class": "classes"}.get(word, f"{word}s"))


def _splits(splits: list[dict[str, Any]]) -> Iterator[str]:
    yield ""
    width = max((len(one["name"]) for one in splits), default=0)
    for one in splits:
        labels = "" if one["labelled"] == one["samples"] else f", {one['labelled']:,} with a label"
        labels = labels if one["labelled"] else ", without labels"
        what = f"{_count(one['samples'], 'sample')}, {size(one['bytes'])}"
        yield f"  {one['name']:{width}}  {what}{labels if one['samples'] else ''}"


def _classes(classes: Mapping[str, Any]) -> Iterator[str]:
    if not classes["count"]:
        return
    yield ""
    yield f"  {_count(classes['count'], 'class')}" + ("" if classes["named"] else ", without names")
    for one in classes["first"]:
        counts = ", ".join(f"{count} {split}" for split, count in one["samples"].items())
        named = f"{one['label']} {one['name']}" if classes["named"] else str(one["label"])
        yield f"    {named}: {counts}"
    if classes["count"] > len(classes["first"]):
        yield "    …"


def _field(field: Mapping[str, Any], several: bool) -> Iterator[str]:
    yield ""
    name = f"  {field['name']}: " if several or "dtype" in field else "  "
    if "dtype" in field:
        shape = " x ".join(map(str, field["shape"])) or "one value"
        yield f"{name}{field['dtype']}, {shape}"
        return
    if "median" not in field:
        unknown = field["unknown"]
        yield f"{name}sizes that are known only once they are read" if unknown else f"{name}none"
        return
    low, middle, most, high = (
        size(field[which]) for which in ("smallest", "median", "nine_tenths", "largest")
    )
    if low == high:
        yield f"{name}{low} each"
    else:
        yield f"{name}{low} to {high}, half of them up to {middle}, nine of ten up to {most}"


def _first(first: list[dict[str, Any]]) -> Iterator[str]:
    if not first:
        return
    yield ""
    yield "  first of each split:"
    width = max(len(one["path"]) for one in first)
    for one in first:
        fields = "; ".join(_value(name, of, one) for name, of in one["fields"].items())
        label = "" if one["label"] is None else f", label {one['label']}"
        named = f" ({one['class']})" if one["class"] not in (None, str(one["label"])) else ""
        yield f"    {one['path']:{width}}  {fields}{label}{named}"


def _value(name: str, of: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    before = f"{name} " if len(sample["fields"]) > 1 else ""
    if "dtype" in of:
        return f"{before}{of['dtype']} {' x '.join(map(str, of['shape']))}".rstrip()
    image = f", {of['image']} {of['width']} x {of['height']}" if "image" in of else ""
    return f"{before}{size(of['bytes'])}{image}"


def _container(about: Mapping[str, Any]) -> Iterator[str]:
    here, single = about["files"]["container"], about["files"]["samples"]
    yield ""
    if about["container"] == "files":
        yield f"  {_count(here, 'file')}; `rankup pack` makes a few of them"
    else:
        saved = f" instead of {single:,}" if single > here else ""
        yield f"  {_count(here, 'file')}{saved}"
    hashes = "with a hash of each sample" if about["hashes"] else "without hashes"
    yield f"  {hashes}; read by {about['read']} here"
    if about["pieces"]:
        how = f" (with {about['facts']['compression']})" if "compression" in about["facts"] else ""
        yield f"  {_count(about['pieces'], 'sample')} compressed{how} or in several pieces"
    yield from _facts(about["facts"])


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts.get("writer"):
        yield f"  written by {facts['writer']}"
    left = facts.get("skipped")
    if left:
        yield f"  passed over: {_plain(left)}"
    if facts.get("nulls"):
        yield f"  without a value: {_plain(facts['nulls'])}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{one} {name}" for name, one in value.items())
    return f"{value} of its files" if isinstance(value, int) else str(value)
