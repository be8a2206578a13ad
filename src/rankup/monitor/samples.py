"""A node's file as arrays: stretches of samples under one head, in the order they were written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import encodable
from . import heads, jsonl, lines, plain
from .heads import Layout
from .jsonl import Record
from .values import amount

Numbers = NDArray[np.float64]
# What bounds the memory that hostile lines could ask for.
MOST_SAMPLES = 2000  # of a batch
MOST_RANKS = 512  # of a node
MOST_COLUMNS = 32
MOST_MOUNTS = 64

# What each character of `cores` stands for, in %; NaN: no such character.
_TENTHS = np.full(256, np.nan, np.float32)
_TENTHS[np.frombuffer(b"0123456789a", np.uint8)] = np.arange(11) * 10


@dataclass(frozen=True)
class Batch:
    """Samples under one head, (samples, things, columns); NaN: not read. Order as in the file.

    Attributes:
        t: unix seconds; dt: seconds that each stands for, NaN for a sampler's first.
        gpu: columns of `lines.GPU`; host: (samples, columns) of `lines.HOST`.
        cores: (samples, cores) use in %.
        ranks: columns of `lines.RANKS`; the same place may be another rank in the next sample.
        fs: by mount point, (samples, columns) of `lines.FS`.
    """

    t: Numbers
    dt: Numbers
    gpu: Numbers
    host: Numbers
    cores: NDArray[np.float32]
    ranks: Numbers
    fs: dict[str, Numbers] = field(default_factory=dict)

    def only(self, good: NDArray[np.bool_]) -> Batch:
        """Those samples alone for which `good` (samples,) holds."""
        return Batch(
            t=self.t[good],
            dt=self.dt[good],
            gpu=self.gpu[good],
            host=self.host[good],
            cores=self.cores[good],
            ranks=self.ranks[good],
            fs={mount: rows[good] for mount, rows in self.fs.items()},
        )


@dataclass(frozen=True)
class Note:
    """What a sampler said in the job's log."""

    t: float
    code: str
    text: str


@dataclass(frozen=True)
class End:
    """A sampler's last line."""

    t: float
    why: str


@dataclass(frozen=True)
class Torn:
    """Lines that were none, after what came before."""

    count: int


Part = Layout | Batch | Note | End | Torn


def read(path: Path) -> Iterator[Part]:
    """All that the file says, in its order; samples come after the layout that they are read by.

    Raises:
        OSError: the file cannot be read.
    """
    layout = None
    node = encodable(path.stem)
    for raw in _parts(path, node):
        if isinstance(raw, Batch):
            if layout is None:
                layout = heads.missing(node)
                yield layout
            yield _normal(raw, layout)
            continue
        if isinstance(raw, Layout):
            layout = raw
        yield raw


def _parts(path: Path, node: str) -> Iterator[Part]:
    """The parts of a file, its samples' columns still as they were written."""
    for block in jsonl.blocks(path):
        for piece in plain.stretches(block):
            if isinstance(piece, plain.Stretch):
                yield _of_stretch(piece)
                continue
            for samples, group in groupby(jsonl.records(piece), _is_sample):
                while samples and (records := list(islice(group, MOST_SAMPLES))):
                    yield _of_records([record for record in records if record])
                for record in group:
                    part = _other(record, node)
                    if part is not None:
                        yield part


def _is_sample(record: Record | None) -> bool:
    return record is not None and "kind" not in record and _time(record) is not None


def _other(record: Record | None, node: str) -> Layout | Note | End | Torn | None:
    """What a line says that is no sample; None for a kind of a version to come."""
    kind = record.get("kind") if record else None
    if record is None or kind is None:
        return Torn(1)
    if kind == "head":
        return heads.read(record, node)
    if kind not in ("note", "end"):
        return None
    if (t := _time(record)) is None:
        return Torn(1)
    if kind == "end":
        return End(t, _words(record.get("why")))
    return Note(t, _words(record.get("code")), _words(record.get("text")))


def _of_records(records: list[Record]) -> Batch:
    """All columns as written."""
    return Batch(
        t=np.array([record["t"] for record in records], np.float64),
        dt=_rows([[record.get("dt")] for record in records])[:, 0],
        gpu=_tables([record.get("gpu") for record in records], heads.MOST_GPUS),
        host=_rows([record.get("host") for record in records]),
        cores=_cores([record.get("cores") for record in records]),
        ranks=_tables([record.get("ranks") for record in records], MOST_RANKS),
        fs=_mounts(records),
    )


def _of_stretch(stretch: plain.Stretch) -> Batch:
    """All columns as written."""
    columns = stretch.columns
    nothing = np.full(stretch.samples, np.nan)

    def rows(*key: Any) -> Numbers:
        array = np.full((stretch.samples, wide(key)), np.nan)
        for at in range(array.shape[1]):
            array[:, at] = columns.get((*key, at), nothing)
        return array

    def wide(key: tuple[Any, ...]) -> int:
        own = [place[-1] + 1 for place in columns if place[:-1] == key]
        return min(max(own, default=0), MOST_COLUMNS)

    def tables(key: str, most: int) -> Numbers:
        things = {place[1] for place in columns if place[0] == key and len(place) == 3}
        deep = min(max(things, default=-1) + 1, most)
        array = np.full(
            (stretch.samples, deep, max(wide((key, t)) for t in range(deep + 1))), np.nan
        )
        for at in range(deep):
            some = rows(key, at)
            array[:, at, : some.shape[1]] = some
        return array

    cores = stretch.cores
    if cores is None:
        cores = np.empty((stretch.samples, 0), np.uint8)
    mounts = dict.fromkeys(place[1] for place in columns if place[0] == "fs" and len(place) == 3)
    return Batch(
        t=columns["t",],
        dt=columns.get(("dt",), nothing).copy(),
        gpu=tables("gpu", heads.MOST_GPUS),
        host=rows("host"),
        cores=_TENTHS[cores[:, : heads.MOST_CORES]],
        ranks=tables("ranks", MOST_RANKS),
        fs={mount: rows("fs", mount) for mount in mounts},
    )


def _normal(raw: Batch, layout: Layout) -> Batch:
    """With the columns that we know, in our order, and NaN for what cannot be."""
    places = layout.places
    batch = Batch(
        t=raw.t,
        dt=_numbers(raw.dt),
        gpu=_known(_numbers(raw.gpu), places["gpu"]),
        host=_known(_numbers(raw.host), places["host"]),
        cores=raw.cores,
        ranks=_known(_numbers(raw.ranks), places["ranks"]),
        fs={mount: _known(_numbers(rows), places["fs"]) for mount, rows in raw.fs.items()},
    )
    batch.dt[batch.dt <= 0] = np.nan
    _plausible(batch)
    return batch


def _known(rows: Numbers, places: list[int]) -> Numbers:
    """The columns that we know, in our order; NaN where the rows are too short."""
    if places == list(range(rows.shape[-1])):
        return rows
    padded = np.concatenate([rows, np.full((*rows.shape[:-1], 1), np.nan)], axis=-1)
    width = rows.shape[-1]
    return padded[..., [at if 0 <= at < width else width for at in places]]


def _rows(rows: list[Any]) -> Numbers:
    """(samples, columns) of rows that should be lists of numbers."""
    try:
        array = np.array(rows, np.float64)
        if array.ndim == 2:
            return array
    except (ValueError, TypeError, OverflowError):
        pass
    wide = max((len(row) for row in rows if isinstance(row, list)), default=0)
    array = np.full((len(rows), min(wide, MOST_COLUMNS)), np.nan)
    for at, row in enumerate(rows):
        if isinstance(row, list):
            array[at, : len(row)] = [amount(v, math.nan) for v in row[: array.shape[1]]]
    return array


def _tables(tables: list[Any], most: int) -> Numbers:
    """(samples, things, columns) of what should be lists of such rows."""
    try:
        array = np.array(tables, np.float64)
        if array.ndim == 3 and array.shape[1] <= most:
            return array
        if array.ndim == 2 and array.shape[1] == 0:
            return np.empty((len(tables), 0, 0))
    except (ValueError, TypeError, OverflowError):
        pass
    lists = [table[:most] if isinstance(table, list) else [] for table in tables]
    deep = max(map(len, lists), default=0)
    rows = _rows([row for table in lists for row in [*table, *[None] * (deep - len(table))]])
    return rows.reshape(len(tables), deep, rows.shape[1])


def _cores(strings: list[Any]) -> NDArray[np.float32]:
    texts = [s.encode("ascii", "replace") if isinstance(s, str) else b"" for s in strings]
    wide = min(max(map(len, texts)), heads.MOST_CORES)
    joined = b"".join(text[:wide].ljust(wide) for text in texts)
    return _TENTHS[np.frombuffer(joined, np.uint8)].reshape(len(texts), wide)


def _mounts(records: list[Record]) -> dict[str, Numbers]:
    every = [found if isinstance(found := r.get("fs"), dict) else {} for r in records]
    mounts = list(dict.fromkeys(mount for one in every for mount in one))[:MOST_MOUNTS]
    return {mount: _rows([one.get(mount) for one in every]) for mount in mounts}


def _numbers(array: Numbers) -> Numbers:
    """The array with NaN for what no counter says: infinite, negative or beyond float32."""
    with np.errstate(invalid="ignore"):
        array[~((array >= 0) & (array < 1e30))] = np.nan
    return array


def _plausible(batch: Batch) -> None:
    """Shares are at most all of it: 100.3 % is rounding, 5000 % no reading."""
    for share in (batch.gpu[..., lines.GPU.index("util")], batch.host[:, lines.HOST.index("cpu")]):
        share[share > 110] = np.nan
        np.minimum(share, 100, out=share)


def _time(record: Record) -> float | None:
    t: float | None = amount(record.get("t"), None)
    return t


def _words(value: Any) -> str:
    return value[:2000] if isinstance(value, str) else ""
