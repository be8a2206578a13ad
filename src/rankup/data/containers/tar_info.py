"""`info.json` beside tar shards: what the tars themselves do not say.

`splits` is what timm reads there. The rest lets `tar.scan` find class names, the folders of splits,
which shards there must be, and which members are rows of arrays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadContainer
from ..index import Index

NAME = "info.json"
CLASSES = "classnames.txt"
_VERSION = 1
_LARGEST = 1 << 28


@dataclass(frozen=True)
class Info:
    """What was found; empty where there is nothing of ours.

    Attributes:
        ours: rankup has written it.
        shards: file name -> split.
        folders: split -> folder.
        classes: names of the labels.
        labelled: whether the samples have labels; None: not known.
        arrays: field -> dtype and shape of a row.
        names: of the fields, where samples have several.
        fields: how the members of each of them end, in lower case.
    """

    ours: bool = False
    shards: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    labelled: bool | None = None
    arrays: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()


def about(index: Index, counts: Sequence[int], ends: Mapping[str, str]) -> dict[str, Any]:
    """What stands in `info.json`.

    Args:
        counts: samples of each shard.
        ends: field -> how its members end; empty where a sample is one member.
    """
    names = [name.decode("utf-8", "surrogateescape") for name in index.files]
    splits = {}
    for split in index.splits:
        rows = [row for row, name in enumerate(names) if name.rpartition("-")[0] == split.name]
        splits[split.name] = {
            "name": split.name,
            "num_samples": split.stop - split.start,
            "filenames": [names[row] for row in rows],
            "shard_lengths": [counts[row] for row in rows],
            "folder": split.folder,
        }
    return {
        "rankup_tar": _VERSION,
        "splits": splits,
        "classes": list(index.classes),
        "labelled": index.labels is not None,
        "fields": dict(ends),
        "arrays": {one.name: [one.dtype, list(one.shape)] for one in index.fields if one.dtype},
    }


def read(folder: Path) -> Info:
    """What `info.json` and `classnames.txt` in a folder say.

    Raises:
        BadContainer: what rankup has written there is damaged.
        OSError: one cannot be read.
    """
    classes = _class_names(folder / CLASSES)
    path = folder / NAME
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        found = json.loads(text) if len(text) <= _LARGEST else None
    except FileNotFoundError:
        return Info(classes=classes)
    except (ValueError, RecursionError):
        # It may be anybody's; a damaged one of ours is missed when nothing else fits.
        return Info(classes=classes)
    if not isinstance(found, dict) or "rankup_tar" not in found:
        return Info(classes=classes)
    try:
        return _ours(found)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadContainer(
            f"{path} is damaged ({error!r}): restore it, or remove it to read the tars as anybody's"
        ) from None


def _ours(found: dict[str, Any]) -> Info:
    if found["rankup_tar"] != _VERSION:
        raise ValueError(f"version {found['rankup_tar']!r} instead of {_VERSION}")
    splits = {str(name): dict(split) for name, split in found["splits"].items()}
    arrays = {}
    for name, (dtype, shape) in found["arrays"].items():
        kind, row = np.dtype(str(dtype)), tuple(int(size) for size in shape)
        if kind.hasobject or min(row, default=0) < 0 or math.prod(row) * kind.itemsize >= 1 << 62:
            raise ValueError(f"array {name!r} of {dtype!r} and {shape!r}")
        arrays[str(name)] = (str(dtype), row)
    return Info(
        True,
        {str(file): name for name, split in splits.items() for file in split["filenames"]},
        {name: str(split["folder"]) for name, split in splits.items()},
        tuple(map(str, found["classes"])),
        bool(found["labelled"]),
        arrays,
        tuple(map(str, found["fields"])),
        tuple(str(end).lower() for end in found["fields"].values()),
    )


def _class_names(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST)
    except FileNotFoundError:
        return ()
    lines = text.decode("utf-8", "surrogateescape").removesuffix("\n")
    return tuple(line.removesuffix("\r") for line in lines.split("\n")) if lines else ()
