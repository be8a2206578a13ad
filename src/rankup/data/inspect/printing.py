"""The facts of a container in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...base.amounts import size
from ...base.text import clean
from ..inodes import words

_FORMATS = {
    "hdf5": "HDF5",
    "arrow": "Arrow IPC",
    "tar": "tar shards",
    "squashfs": "SquashFS",
    "files": "plain files",
    "numpy": "numpy arrays",
    "hf": "Hugging Face data set",
    "parquet": "Parquet",
}


def safe(text: str) -> str:
    """Return a name as a terminal may have it: control characters and no UTF-8 are written out."""
    # A carriage return would else stand for a line drawn over.
    return clean(text.replace("\r", "\\x0d")).encode("utf-8", "backslashreplace").decode()


def lines(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `rankup inspect` prints."""
    kind = _FORMATS.get(about["container"], about["container"])
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
    if facts.get("symlinks"):
        yield f"  passed over: {_count(facts['symlinks'], 'symbolic link')}"
    if facts.get("nulls"):
        yield f"  without a value: {_plain(facts['nulls'])}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{one} {name}" for name, one in value.items())
    return f"{value} of its files" if isinstance(value, int) else str(value)
