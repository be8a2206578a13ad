"""The HDF5 files that rankup writes: what is called how, and where everything lies.

    /                     attribute `rankup_hdf5`: 1, or 0 while it is being written
    /classes              names of the classes, where there are any
    /train                a group per split; attributes `order` and `folder`
    /train/labels         int64 (n,), -1: none; where there are labels
    /train/keys           UTF-8 of fixed length (n,); other bytes stand in it as they are
    /train/data           uint8, all samples one after another
    /train/offsets        int64 (n + 1,): sample i is data[offsets[i]:offsets[i + 1]]
    /train/hashes         uint64 (n,), xxh3 of the bytes of each sample

A lone field is called `data`. Of several each has its own name: `/train/jpg/data`, `…/offsets` and
`…/hashes`. An array field is an ordinary data set (n, …), `/train/data` or `/train/<field>`, with
its hashes in `/train/hashes` or `/train/hashes/<field>`. All of them are contiguous.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

import h5py
import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import keys as names
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, UInt64s
from ..strings import Strings
from . import Choice
from .hdf5_parts import Part, joined, members, place, rows, together

VERSION = 1
MARK = "rankup_hdf5"
CLASSES = "classes"
_RESERVED = {"labels", "keys", "hashes", "offsets", CLASSES}
# What may make a key unsafe; such a table is then looked at key by key.
_SUSPECT = re.compile(rb"//|\\|[\0/]\.{1,2}[\0/]|\0/|/\0")
_ROWS = 1 << 20


def link(name: str) -> str:
    """The name of a split or field in the file: `%XX` for what HDF5 or this layout cannot have."""
    text = "".join(_coded(c) if c in "%/\0" or "\udc80" <= c <= "\udcff" else c for c in name)
    if text in _RESERVED or not text.strip("."):
        text = _coded(text[0]) + text[1:]
    return text


def _coded(character: str) -> str:
    return f"%{ord(character) & 0xFF:02X}"


def name_of(found: str) -> str:
    """The name that `link` was given."""
    return unquote(found, errors="surrogateescape")


def is_lone(fields: Sequence[Field]) -> bool:
    """Whether samples have the one field `data`, which then needs no group of its own."""
    return len(fields) == 1 and fields[0].name == "data"


@dataclass(frozen=True)
class Paths:
    """Where the parts of a field of a split stand."""

    data: str
    hashes: str
    offsets: str = ""


def paths(split: str, field: Field, lone: bool) -> Paths:
    """Of a field in a split, given the names of both."""
    group = f"/{link(split)}"
    if field.dtype:
        one = f"{group}/data" if lone else f"{group}/{link(field.name)}"
        return Paths(one, f"{group}/hashes" if lone else f"{group}/hashes/{link(field.name)}")
    base = group if lone else f"{group}/{link(field.name)}"
    return Paths(f"{base}/data", f"{base}/hashes", f"{base}/offsets")


def scan(file: h5py.File, size: int, choice: Choice) -> Index:
    """Where everything lies in a file of rankup.

    Raises:
        BadContainer: it is unfinished, of another version, or does not hold together.
    """
    version = int(file.attrs[MARK])
    if version != VERSION:
        raise BadContainer(
            "it was being written when that was interrupted: pack again, with --resume"
            if version == 0
            else f"it has the layout {version} of rankup; this rankup reads {VERSION}"
        )
    if choice.label not in (None, "labels") or choice.key not in (None, "keys"):
        raise UserError(
            "this file was packed by rankup, with its labels in `labels` and its keys in `keys`: "
            "leave --label and --key out"
        )
    tree = dict(members(file))
    classes = _classes(tree.pop(CLASSES), size) if CLASSES in tree else ()
    groups = [one for one in tree.values() if isinstance(one, h5py.Group) and "order" in one.attrs]
    groups.sort(key=lambda one: int(one.attrs["order"]))
    parts, start = [], 0
    for group in groups:
        part = _scan_split(group, size, choice)
        stop = start + len(part.keys)
        parts.append(replace(part, split=replace(part.split, start=start, stop=stop)))
        start = stop
    labelled = {part.labels is not None for part in parts}
    if len(labelled) > 1:
        raise BadContainer("some of its splits have labels and some have none")
    return Index(
        "hdf5",
        Strings.of([b""]),
        tuple(part.split for part in parts),
        joined([part.keys for part in parts]),
        together([part.split.name for part in parts], [part.fields for part in parts]),
        np.concatenate([part.labels for part in parts]) if labelled == {True} else None,  # type: ignore[arg-type]
        classes,
        np.array([size], np.int64),
    )


def _scan_split(group: h5py.Group, size: int, choice: Choice) -> Part:
    name = name_of(str(group.name).removeprefix("/"))
    found = dict(members(group))
    keys = _keys(found["keys"], size, name)
    n = len(keys)
    labels = _numbers(found["labels"], "<i8", n, size) if "labels" in found else None
    fields = tuple(
        one for one in _fields(found, n, size) if not choice.fields or one.name in choice.fields
    )
    missing = set(choice.fields) - {one.name for one in fields}
    if missing:
        raise UserError(f"no field {min(missing)!r} in split {name}")
    folder = group.attrs["folder"]
    if not isinstance(folder, str):
        raise BadContainer(f"{group.name} has no text as its attribute `folder`")
    folder = name_of(folder)
    if folder:
        names.check(folder.encode("utf-8", "surrogateescape"), f"the folder of split {name}")
    return Part(Split(name, 0, 0, folder), keys, fields, labels)


def _fields(found: dict[str, h5py.Group | h5py.Dataset], n: int, size: int) -> list[Field]:
    hashes = found.get("hashes")
    if isinstance(hashes, h5py.Dataset):  # a lone field
        if "offsets" in found:
            return [_bytes("data", found["data"], found["offsets"], hashes, n, size)]
        return [_array("data", found["data"], hashes, n, size)]
    fields = []
    for name, one in found.items():
        if "order" not in one.attrs:
            continue
        if isinstance(one, h5py.Group):
            in_it = dict(members(one))
            data, offsets, column = (in_it[part] for part in ("data", "offsets", "hashes"))
            field = _bytes(name_of(name), data, offsets, column, n, size)
        else:
            if not isinstance(hashes, h5py.Group):
                raise BadContainer(f"{one.name} has its hashes nowhere")
            field = _array(name_of(name), one, dict(members(hashes))[name], n, size)
        fields.append((int(one.attrs["order"]), field))
    return [field for _, field in sorted(fields, key=lambda pair: pair[0])]


def _bytes(
    name: str,
    data: h5py.Dataset,
    offsets: h5py.Dataset,
    hashes: h5py.Dataset,
    n: int,
    size: int,
) -> Field:
    ends = _numbers(offsets, "<i8", n + 1, size)
    at = _contiguous(data, size)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise BadContainer(f"{data.name} is {data.dtype} of {data.ndim} dimensions, not bytes")
    length = np.diff(ends)
    if ends[0] != 0 or np.any(length < 0) or ends[-1] != data.shape[0]:
        raise BadContainer(
            f"{offsets.name} does not rise from 0 to the {data.shape[0]} bytes of {data.name}: the "
            "file is damaged"
        )
    hash_of = _numbers(hashes, "<u8", n, size).view(np.uint64)
    return Field(name, ends[:-1] + at, length, hash=hash_of)


def _array(name: str, data: h5py.Dataset, hashes: h5py.Dataset, n: int, size: int) -> Field:
    at = _contiguous(data, size)
    dtype = data.dtype
    if data.ndim < 1 or data.shape[0] != n or dtype.kind in "OV":
        raise BadContainer(f"{data.name} is {dtype} of shape {data.shape}, not {n} rows of numbers")
    hash_of: UInt64s = _numbers(hashes, "<u8", n, size).view(np.uint64)
    return rows(name, at, dtype, data.shape, hash_of)


def _contiguous(data: h5py.Dataset, size: int) -> int:
    if not isinstance(data, h5py.Dataset):
        raise BadContainer(f"{data.name} is a group, not a data set")
    at = place(data, size)
    if at is None:
        raise BadContainer(
            f"{data.name} is in chunks, so another program has rewritten this file: bring it back "
            "with `h5repack -l CONTI`, or pack again"
        )
    return at


def _numbers(data: h5py.Dataset, dtype: str, count: int, size: int) -> Int64s:
    _contiguous(data, size)
    if data.dtype != np.dtype(dtype) or data.shape != (count,):
        raise BadContainer(
            f"{data.name} is {data.dtype} of shape {data.shape}, not {np.dtype(dtype)} of "
            f"shape ({count},)"
        )
    found: Int64s = data[()]
    return found


def _classes(data: h5py.Dataset, size: int) -> tuple[str, ...]:
    table = _strings(data, size)
    return tuple(one.decode("utf-8", "surrogateescape") for one in table[:].tolist())


def _keys(data: h5py.Dataset, size: int, split: str) -> Strings:
    table = _strings(data, size)
    parts = []
    for start in range(0, len(table), _ROWS):
        part = table[start : start + _ROWS]
        found = Strings.fixed(part)
        cells = np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1)
        # Each between two zeros, so that one search finds a `/` or `..` at either end of a key.
        framed = np.zeros((len(part), cells.shape[1] + 2), np.uint8)
        framed[:, 1:-1] = cells
        plain = np.all(np.diff(found.ends) > 0) and np.all(found.data)
        if not plain or cells.shape[1] > names.LONGEST or _SUSPECT.search(framed.tobytes()):
            for key in found:
                names.check(key, f"split {split}")
        parts.append(found)
    return joined(parts)


def _strings(data: h5py.Dataset, size: int) -> npt.NDArray[np.bytes_]:
    _contiguous(data, size)
    if data.dtype.kind != "S" or data.ndim != 1:
        raise BadContainer(f"{data.name} is {data.dtype} of shape {data.shape}, not text")
    found: npt.NDArray[np.bytes_] = data[()]
    return found
