"""Where samples come to lie when they are made files again."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .. import keys
from ..containers.grouping import LONE
from ..index import Index, Split

LABELS = "labels"


def end(index: Index, field: int) -> str:
    """What the file of a field has behind the key of its sample: empty for a lone `data`."""
    name = index.fields[field].name
    lone = len(index.fields) == 1 and name == LONE
    return "" if lone else name


def of_sample(split: Split, key: bytes, field: str) -> bytes:
    """The file of one field of a sample.

    Args:
        field: what comes behind its key, see `end`.
    """
    path = key + b"." + os.fsencode(field) if field else key
    return os.fsencode(split.folder) + b"/" + path if split.folder else path


def of_array(split: Split, field: str, alone: bool) -> bytes:
    """The file of an array field of a split.

    Args:
        alone: there is no other split, so that the names cannot meet.
    """
    folder = split.folder or ("" if alone else split.name)
    return os.fsencode(f"{folder}/{field}.npy" if folder else f"{field}.npy")


def folders(index: Index, splits: tuple[Split, ...], where: str) -> list[bytes]:
    """All folders that are needed, the outer ones first; every name is checked on the way.

    Args:
        where: the container, for messages.

    Raises:
        BadContainer: a name would not stay below the folder that all is written to.
    """
    needed: set[bytes] = set()
    bytes_too = any(not one.dtype for one in index.fields)
    for one in index.fields:
        keys.check(b"x." + os.fsencode(one.name), f"{where} (as a field)")
    for split in splits:
        for one in index.fields:
            path = of_array(split, one.name, len(splits) == 1)
            keys.check(path, f"{where} (as a split)")
            if one.dtype:
                needed.add(os.path.dirname(path))
        for row in range(split.start, split.stop) if bytes_too else ():
            key = index.keys[row]
            keys.check(key, where)
            needed.add(os.path.dirname(of_sample(split, key, "")))
    return sorted({part for path in needed for part in _outer(path)})


def _outer(path: bytes) -> Iterator[bytes]:
    """A folder and those that it lies in."""
    while path:
        yield path
        path = os.path.dirname(path)
