"""An index as a file: written, mapped again, looked at before it is believed; and files counted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import keys, npz
from .errors import DAMAGE, BadContainer
from .index import Field, Index, Split, Strings

VERSION = 1
_MOST = 1 << 62  # bytes of a sample; more does not fit into a column of lengths


def place(container: Path) -> Path:
    """Return the path of a container's index: in its folder, or beside the file that it is."""
    if container.is_dir():
        return container / "index.npz"
    return container.with_name(f"{container.name}.index.npz")


def save(index: Index, path: Path) -> None:
    """Write an index, old or new; `numpy.load` reads it too.

    Raises:
        OSError: it could not be written.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "files_data": index.files.data,
        "files_ends": index.files.ends,
        "keys_data": index.keys.data,
        "keys_ends": index.keys.ends,
        "sizes": index.sizes,
    }
    if index.labels is not None:
        arrays["labels"] = index.labels
    if index.times is not None:
        arrays["times"] = index.times
    fields = []
    for number, one in enumerate(index.fields):
        for column in ("offset", "length", "file", "hash"):
            values = getattr(one, column)
            if values is not None:
                arrays[f"{column}_{number}"] = values
        fields.append({"name": one.name, "dtype": one.dtype, "shape": list(one.shape)})
    about = {
        "rankup_index": VERSION,
        "container": index.container,
        "splits": [asdict(one) for one in index.splits],
        "classes": list(index.classes),
        "fields": fields,
        "facts": dict(index.facts),
    }
    text = json.dumps(about).encode()  # ASCII, so that names that are no UTF-8 come through
    arrays["about"] = np.frombuffer(text, np.uint8)
    npz.save(path, arrays)


def load(path: Path) -> Index:
    """Map an index into memory.

    Raises:
        BadContainer: the file is no index, is damaged, or does not hold together.
        OSError: it cannot be read.
    """
    arrays = npz.load(path)
    try:
        about = json.loads(arrays["about"].tobytes())
        if about["rankup_index"] != VERSION:
            raise BadContainer(
                f"{path} is an index of version {about['rankup_index']!r}; this rankup reads "
                f"{VERSION}: pack again, or use the rankup that wrote it"
            )
        fields = tuple(
            Field(
                _name(one["name"]),
                arrays[f"offset_{number}"],
                arrays[f"length_{number}"],
                arrays.get(f"file_{number}"),
                arrays.get(f"hash_{number}"),
                str(one["dtype"]),
                tuple(map(int, one["shape"])),
            )
            for number, one in enumerate(about["fields"])
        )
        index = Index(
            str(about["container"]),
            Strings(arrays["files_data"], arrays["files_ends"]),
            tuple(
                Split(_name(s["name"]), int(s["start"]), int(s["stop"]), _name(s["folder"]))
                for s in about["splits"]
            ),
            Strings(arrays["keys_data"], arrays["keys_ends"]),
            fields,
            arrays.get("labels"),
            tuple(map(_name, about["classes"])),
            arrays["sizes"],
            {str(name): value for name, value in about["facts"].items()},
            arrays.get("times"),
        )
        problem = inconsistency(index)
    except DAMAGE as error:
        raise BadContainer(f"{path} is no index of rankup, or damaged: {error!r}") from None
    if problem:
        raise BadContainer(f"{path} is a damaged index: {problem}; pack again, or restore it")
    return index


def _name(text: object) -> str:
    found = str(text)
    found.encode("utf-8", "surrogateescape")  # what is no text cannot be written anywhere either
    return found


def inconsistency(index: Index) -> str:
    """Return what does not hold together in an index, without reading its millions; else ""."""
    return _columns(index) or _names(index) or _fields(index) or _splits(index)


def _columns(index: Index) -> str:
    n, files = len(index), len(index.files)
    # name, values, how many there should be, of which type
    columns: list[tuple[str, npt.NDArray[Any] | None, int | None, str]] = [
        ("keys", index.keys.ends, n + 1, "i8"),
        ("files", index.files.ends, files + 1, "i8"),
        ("labels", index.labels, n, "i8"),
        ("times", index.times, files, "i8"),
        ("sizes", index.sizes, files if len(index.sizes) else 0, "i8"),
    ]
    for one in index.fields:
        columns += [
            ("offset", one.offset, n, "i8"),
            ("length", one.length, n, "i8"),
            ("file", one.file, n, "u4"),
            ("hash", one.hash, n, "u8"),
        ]
    for name, values, size, kind in columns:
        if values is None:
            continue
        if values.ndim != 1 or values.dtype != np.dtype(f"<{kind}"):
            return f"{name} is {values.dtype} of shape {values.shape}, not 1-d {kind}"
        if size is not None and len(values) != size:
            return f"{name} has {len(values)} rows for {n} samples in {files} files"
    return ""


def _names(index: Index) -> str:
    for strings in (index.keys, index.files):
        if strings.data.dtype != np.uint8 or strings.data.ndim != 1 or not len(strings.ends):
            return f"names are {strings.data.dtype}, and end at {strings.ends.shape} places"
        if strings.ends[0] != 0 or strings.ends[-1] > len(strings.data):
            return "names go past their end"
    if np.any(np.diff(index.files.ends) < 0):
        return "names of files end before they begin"
    return ""


def _fields(index: Index) -> str:
    if len(index) and not index.fields:
        return f"{len(index)} samples have no field"
    for one in index.fields:
        if one.dtype and np.dtype(one.dtype).hasobject:
            return f"field {one.name} would be Python objects"
        if min(one.shape, default=0) < 0 or one.width > _MOST:
            return f"a sample of field {one.name} would have the shape {one.shape}"
    return _twice("fields", [one.name for one in index.fields])


def _splits(index: Index) -> str:
    at = 0
    for split in index.splits:
        if split.start != at or split.stop < at:
            return f"split {split.name} does not begin where the one before ends"
        at = split.stop
    if at != len(index):
        return f"the splits have {at} of {len(index)} samples"
    return _twice("splits", [one.name for one in index.splits])


def _twice(what: str, names: list[str]) -> str:
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"two {what} are called {twice[0]!r}" if twice else ""


def stray(index: Index, root: Path) -> bytes | None:
    """The first of a container's files that is not below its folder, nor the container itself.

    Who opens `root` trusts that nothing else is read, whatever an index from elsewhere says.
    """
    if not root.is_dir() and len(index.files) == 1 and index.files[0] == b"":
        return None  # the one file has no name
    return keys.unsafe(index.files)


def files_of_source(index: Index, root: Path) -> int:
    """Return the files that samples are taken from, or those of a container."""
    return len(index.files) if index.container == "files" else files_lying(root)


def files_of_samples(index: Index, splits: Iterable[Split]) -> int:
    """Return the files that the samples of some splits would be."""
    arrays = sum(bool(one.dtype) for one in index.fields)
    single = len(index.fields) - arrays
    return sum(arrays + single * (split.stop - split.start) for split in splits)


def files_of_pack(container: str, data: int, classes: bool) -> int:
    """Return how many files `rankup pack` writes, from the index to the report.

    Args:
        data: files with samples.
        classes: True where they have names.
    """
    if container == "tar":  # an index of DALI's for each; info.json, and names of classes
        return 2 * data + 1 + classes + 2
    return data + 2


def files_lying(root: Path) -> int:
    """Return how many files there are of a container, with its index and its report.

    Raises:
        OSError: it cannot be read.
    """
    if not root.is_dir():
        report = root.with_name(f"{root.name}.report.json")
        return 1 + place(root).is_file() + report.is_file()
    return sum(len(names) for _, _, names in os.walk(root))
