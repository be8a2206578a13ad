"""Samples that all look alike, read as the table that they are: several times as fast as JSON.

A sampler writes the same line over and over, with other numbers. Where nothing but the numbers
differs over a stretch of lines (their skeletons are equal), the stretch is CSV once its keys and
brackets are gone. What looks different in any way is left to the reader of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import jsonl
from .jsonl import Record

Numbers = NDArray[np.float64]
WORTH = 256 << 10  # bytes of lines that are worth loading Arrow for
_BLOCK = jsonl.LONGEST  # bytes that Arrow reads at once: they stay in the processor's cache
_FEW = 64  # lines that are not worth a table
_MOST_MOUNTS = 16

_KEYS = ("t", "dt", "gpu", "host", "cores", "ranks", "fs")
# What stands for a key that would leave characters of numbers behind; only text without such bytes
# is read here. (`cores` leaves an e in front of its text.)
_MARKS = [bytes([code]) for code in range(0x80, 0x80 + 1 + _MOST_MOUNTS)]
_PRINTABLE = bytes([0x0A, *range(0x20, 0x7F)])
_VALUES = b"0123456789.-+eanul"  # of numbers, null, and the characters of `cores`
_NO_CSV = bytes(set(range(256)) - set(b"0123456789.-+ea,\n"))


@dataclass(frozen=True)
class Stretch:
    """Samples that look alike.

    Attributes:
        columns: of numbers, (samples,) each, NaN for null, by place: ("t",), ("host", 3),
            ("gpu", 0, 2), ("fs", "/p/scratch", 1).
        cores: (samples, characters); None where the lines have none.
    """

    samples: int
    columns: dict[tuple[Any, ...], Numbers]
    cores: NDArray[np.uint8] | None


def stretches(text: bytes) -> Iterator[Stretch | bytes]:
    """The text of whole lines in pieces: what could be read as a table, and what could not."""
    known = _first_form(text) if len(text) >= WORTH else None
    if known is None or text.translate(None, _PRINTABLE):
        yield text
        return
    mounts = known.get("fs", {})
    marked = text
    for key, mark in zip(["ranks", *mounts], _MARKS, strict=False):
        marked = marked.replace(b'"' + key.encode() + b'":', mark)
    lines, replaced = _edges(text), _edges(marked)
    at = 0
    for _, alike in groupby(marked.translate(None, _VALUES).splitlines()):
        end = at + sum(1 for _ in alike)
        form = _form(text[lines[at] : lines[at + 1]]) if end - at >= _FEW else None
        # Names that stand there still could be any: their digits are gone from the skeleton.
        if form and not form.get("fs", {}).keys() <= mounts.keys():
            form = None
        found = _table(marked[replaced[at] : replaced[end]], end - at, form) if form else None
        yield found or text[lines[at] : lines[end]]
        at = end


def _edges(text: bytes) -> NDArray[np.int64]:
    """Where each line of a text begins, and where the last one ends."""
    edges = np.flatnonzero(np.frombuffer(text, np.uint8) == 0x0A) + 1
    ends = [] if text.endswith(b"\n") else [len(text)]
    return np.concatenate([[0], edges, ends]).astype(np.int64)


def _first_form(text: bytes) -> Record | None:
    """The first sample, to be looked for behind a head only."""
    for line in text[: jsonl.LONGEST].split(b"\n", 3)[:3]:
        if form := _form(line):
            return form
    return None


def _form(line: bytes) -> Record | None:
    """A sample in the form in which samplers write them, with plain names; None for any other."""
    found = jsonl.records(line)
    form = found[0] if len(found) == 1 else None
    if not form or not set(form) <= set(_KEYS):
        return None
    mounts = form.get("fs", {})
    if not isinstance(mounts, dict) or len(mounts) > _MOST_MOUNTS or set(mounts) & set(_KEYS):
        return None
    if any(not mount.isascii() or '"' in mount or "\\" in mount for mount in mounts):
        return None
    return form


def _table(marked: bytes, samples: int, form: Record) -> Stretch | None:
    """The numbers of marked lines of a form; None where they are no such thing."""
    import pyarrow as pa  # only where there is much to read
    from pyarrow import csv

    places = dict(_places(form, ()))
    texts = [place for place, kind in places.items() if kind is str]
    if places.get(("t",)) is not float or texts not in ([], [("cores",)]):
        return None
    names = [str(at) for at in range(len(places))]
    kinds = [pa.float64() if kind is float else pa.string() for kind in places.values()]
    text = marked.translate(None, _NO_CSV)
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=_BLOCK),
            parse_options=csv.ParseOptions(quote_char=False),
            convert_options=csv.ConvertOptions(
                column_types=dict(zip(names, kinds, strict=True)), null_values=[""]
            ),
        )
    except pa.ArrowException:
        return None
    if table.num_rows != samples:
        return None
    columns = {}
    cores = None
    for name, (place, kind) in zip(names, places.items(), strict=True):
        if kind is float:
            columns[place] = table.column(name).to_numpy()
        elif kind is str and (cores := _characters(table.column(name))) is None:
            return None
    return Stretch(samples, columns, cores)


def _places(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], type]]:
    """The fields that a value leaves in a line of CSV, in order, each a float, a str or nothing."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from _places(one, (*place, key))
        if not value:
            yield place, object
    else:
        yield place, str if isinstance(value, str) else float


def _characters(column: Any) -> NDArray[np.uint8] | None:
    """(samples, characters) of a column of equally long texts; None where they are not."""
    array = column.combine_chunks()
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    wide = int(at[1] - at[0])
    if array.null_count or not (np.diff(at) == wide).all():
        return None
    text = np.frombuffer(data, np.uint8)[at[0] : at[-1]].reshape(len(array), wide)
    return text[:, 1:] if (text[:, 0] == ord("e")).all() else None
