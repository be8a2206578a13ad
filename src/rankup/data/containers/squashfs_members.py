"""Which files of a SquashFS image the samples of an index become, and where they lie in it."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split
from ..keys import shown
from ..strings import Strings
from .grouping import LONE
from .squashfs import facts_of
from .squashfs_blocks import opened
from .squashfs_tree import files as files_of
from .squashfs_write import Buffer, Member

# In the image: labels of samples whose folders do not tell them. Hidden, so that it is no sample.
LABELS = b".labels.csv"


def members(source: Index, chunks: Callable[[int, int], Iterable[Buffer]]) -> Iterator[Member]:
    """The files that the samples of an index become, in its order.

    A lone field `data` is `<folder>/<key>`, several are `<folder>/<key>.<field>`; an array field
    is `<folder>/<field>.npy` for each split, as `numpy.save` writes it.

    Args:
        source: all lengths are known.
        chunks: gives the bytes of a field of a sample, by the field's place and the row.
    """
    text = _labels(source)
    if text:
        yield Member(LABELS, len(text), (text,))
    plain = [number for number, one in enumerate(source.fields) if not one.dtype]
    lengths = {number: source.fields[number].length.tolist() for number in plain}
    for split, folder in zip(source.splits, folders(source), strict=True):
        for row in range(split.start, split.stop):
            for number in plain:
                path = _path(source, folder, row, number)
                yield Member(path, lengths[number][row], chunks(number, row))
        for number, one in enumerate(source.fields):
            if one.dtype:
                head = _npy_head(one, split)
                size = len(head) + _row_bytes(one) * (split.stop - split.start)
                yield Member(_array_path(folder, one), size, _rows(head, split, number, chunks))


def folders(source: Index) -> list[bytes]:
    """What stands before the keys of each split: its folder, or its name where two have the same.

    With a `/` at its end, or empty.
    """
    names = [one.folder for one in source.splits]
    if len(set(names)) < len(names):
        names = [one.name for one in source.splits]
    return [os.fsencode(name) + b"/" if name else b"" for name in names]


def indexed(source: Index, out: Path) -> Index:
    """The index of an image that `write` made of the `members` of an index: the same samples.

    Raises:
        BadContainer: the image has not exactly these files, each with its length and in one piece.
        OSError: it cannot be read.
    """
    with opened(out) as image:
        found = files_of(image)
        facts = facts_of(image)
    rows = {path: row for row, path in enumerate(found.paths)}
    rows.pop(LABELS, None)
    before = folders(source)
    wanted = 0
    fields = []
    for number, one in enumerate(source.fields):
        if one.dtype:
            fields.append(_array(source, one, before, rows, found.offset, out))
            wanted += len(source.splits)
            continue
        paths = (
            _path(source, folder, row, number)
            for split, folder in zip(source.splits, before, strict=True)
            for row in range(split.start, split.stop)
        )
        at = np.fromiter((_row(rows, path, out) for path in paths), np.int64, len(source))
        offset, length = found.offset[at], found.length[at]
        different = np.flatnonzero((length != one.length) | (offset < 0))
        if len(different):
            raise _unlike(out, f"{source.path(int(different[0]))} is not there in one piece")
        fields.append(replace(one, offset=offset, length=length, file=None))
        wanted += len(source)
    if wanted != len(rows):
        raise _unlike(out, f"there are {len(rows)} files for {wanted}: two have the same path")
    return replace(
        source,
        container="squashfs",
        files=Strings.of([b""]),
        fields=tuple(fields),
        sizes=np.array([out.stat().st_size], np.int64),
        times=None,
        blocks=None,
        facts=facts,
    )


def _path(source: Index, folder: bytes, row: int, number: int) -> bytes:
    one = source.fields[number]
    if len(source.fields) == 1 and one.name == LONE:
        return folder + source.keys[row]
    return folder + source.keys[row] + b"." + os.fsencode(one.name)


def _array_path(folder: bytes, one: Field) -> bytes:
    return folder + os.fsencode(one.name) + b".npy"


def _row_bytes(one: Field) -> int:
    size = np.dtype(one.dtype).itemsize
    for axis in one.shape:
        size *= axis
    return size


def _npy_head(one: Field, split: Split) -> bytes:
    head = io.BytesIO()
    shape = (split.stop - split.start, *one.shape)
    about = {"descr": one.dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


def _rows(
    head: bytes, split: Split, number: int, chunks: Callable[[int, int], Iterable[Buffer]]
) -> Iterator[Buffer]:
    yield head
    for row in range(split.start, split.stop):
        yield from chunks(number, row)


def _labels(source: Index) -> bytes:
    """Path and label of each sample as CSV; empty where there are none, or folders tell them."""
    if source.labels is None:
        return b""
    labels = source.labels.tolist()
    names = [os.fsencode(name) for name in source.classes]
    if all(
        label < 0 or (label < len(names) and key.startswith(names[label] + b"/"))
        for key, label in zip(source.keys, labels, strict=True)
    ):
        return b""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("path", "label"))
    for split, folder in zip(source.splits, folders(source), strict=True):
        for row in range(split.start, split.stop):
            if labels[row] >= 0:
                known = labels[row] < len(names)
                label = source.classes[labels[row]] if known else labels[row]
                lines.writerow((os.fsdecode(folder + source.keys[row]), label))
    return text.getvalue().encode("utf-8", "surrogateescape")


def _row(rows: dict[bytes, int], path: bytes, out: Path) -> int:
    row = rows.get(path)
    if row is None:
        raise _unlike(out, f"{shown(path)} is missing")
    return row


def _array(
    source: Index, one: Field, before: list[bytes], rows: dict[bytes, int], at: Int64s, out: Path
) -> Field:
    offset = np.empty(len(source), np.int64)
    size = _row_bytes(one)
    for split, folder in zip(source.splits, before, strict=True):
        start = int(at[_row(rows, _array_path(folder, one), out)])
        if start < 0:
            raise _unlike(out, f"{shown(_array_path(folder, one))} is not there in one piece")
        start += len(_npy_head(one, split))
        offset[split.start : split.stop] = start + size * np.arange(split.stop - split.start)
    return replace(one, offset=offset, length=np.full(len(source), size), file=None)


def _unlike(out: Path, what: str) -> BadContainer:
    return BadContainer(f"{out} is not what was to be written: {what}")
