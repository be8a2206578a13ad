"""The form of our Arrow files: an IPC file per split, all of its bytes' places known beforehand.

A row is a sample: a column per field, then `label` (where there are labels), `key`, and a `hash`
per field. A batch has up to 256 rows or 16 MiB, and a larger sample one of its own, so that a
reader maps few batches and none is too large to be held.

pyarrow writes all but the samples and hashes. Its writer gets batches in which these are memory
without content, and a sink that notes where such a buffer goes and does not read it: so each place
is known before there are bytes for it, and any process can write any batch.
"""

from __future__ import annotations

import itertools
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import UserError
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, Strings, UInt64s
from ..pack.layout import Piece, Shape, units

_ROWS, _BYTES = 256, 16 << 20  # of a batch, at most
_BEGIN = b"ARROW1\0\0"
ABOUT = b"rankup"  # key of the schema's metadata


@dataclass(frozen=True)
class ArrowLayout:
    """See `pack.layout.Layout`.

    Attributes:
        starts: int64 (b + 1,), rows at which batches begin, over all files.
        file: int64 (b,), row of `index.files`.
        offset: int64 (b,), where each batch begins in its file.
        holes: int64 (b, 2 fields), where the samples of each field stand, and their hashes.
        tails: of each file what stands behind its batches.
    """

    index: Index
    sizes: Int64s
    units: Int64s
    starts: Int64s
    file: Int64s
    offset: Int64s
    holes: Int64s
    tails: tuple[bytes, ...]
    columns: Columns

    def begin(self, root: Path) -> ArrowLayout:
        """Make a file for each split, with all but its batches."""
        for number, tail in enumerate(self.tails):
            with (root / self.index.files.text(number)).open("wb") as out:
                out.write(self.columns.head)
                out.truncate(int(self.sizes[number]))
                out.seek(-len(tail), 2)
                out.write(tail)
        return self

    def attach(self, root: Path) -> ArrowLayout:
        """All of it is known without the files.

        Raises:
            BadContainer: another version of rankup or pyarrow has begun them.
        """
        for number, size in enumerate(self.sizes.tolist()):
            path = root / self.index.files.text(number)
            if path.stat().st_size != size:
                raise BadContainer(
                    f"{path} was begun by another version of rankup or pyarrow: remove "
                    f"{root.parent} and pack anew"
                )
        return self

    def before(self, start: int, stop: int) -> Iterator[Piece]:
        """Of each batch its metadata, ends, labels, keys and the space between."""
        batches = self._batches(start, stop)
        if not batches:
            return
        file = int(self.file[batches[0]])
        writer = _Writer(self.columns, int(self.offset[batches[0]]))
        for batch in batches:
            writer.write(*self.starts[batch : batch + 2].tolist())
        yield from (Piece(file, at, bytes(data)) for at, data in writer.sink.pieces)

    def after(self, start: int, stop: int, hashes: UInt64s) -> Iterator[Piece]:
        """The columns of hashes."""
        for batch in self._batches(start, stop):
            first, last = (self.starts[batch : batch + 2] - start).tolist()
            places = self.holes[batch, len(hashes) :].tolist()
            for place, of_field in zip(places, hashes, strict=True):
                data = of_field[first:last].astype("<u8").tobytes()
                yield Piece(int(self.file[batch]), place, data)

    def _batches(self, start: int, stop: int) -> range:
        first, last = np.searchsorted(self.starts, (start, stop))
        return range(int(first), int(last))

    def finish(self, root: Path, hashes: UInt64s) -> None:
        """Nothing: pyarrow's own writer has made all but the samples and hashes."""


def plan(source: Index, shape: Shape) -> ArrowLayout:
    """Return the layout for the samples of `source`; see `pack.layout.plan`.

    Raises:
        UserError: a split's name cannot be that of a file, or an array is too large for a row.
    """
    names = [_name(split).encode("utf-8", "surrogateescape") for split in source.splits]
    sums = [np.concatenate([[0], np.cumsum(one.length)]) for one in source.fields]
    total: Int64s = np.asarray(np.sum(sums, axis=0, dtype=np.int64))
    stops = [split.stop for split in source.splits]
    bounds = units(source, stops)
    cuts = [_cut(total, *unit) for unit in itertools.pairwise(bounds.tolist())]
    starts = np.concatenate([*cuts, [len(source)]]).astype(np.int64)
    rows = np.diff(starts)
    file = np.searchsorted(stops, starts[:-1], "right")
    largest = max(int(np.diff(one[starts]).max(initial=0)) for one in sums)
    columns = Columns.of(source, max(largest, 8 * _ROWS))
    holes = np.empty((len(rows), 2 * len(source.fields)), np.int64)
    offset, sizes, tails = np.empty(len(rows), np.int64), [], []
    for number in range(len(stops)):
        writer = _Writer(columns, len(columns.head))
        for batch in np.flatnonzero(file == number).tolist():
            offset[batch] = writer.end
            holes[batch] = writer.write(*starts[batch : batch + 2].tolist())
            writer.sink.pieces.clear()  # `before` makes them again
        tails.append(writer.close())
        sizes.append(writer.end)
    fields = tuple(
        replace(
            one,
            offset=ends[:-1] + np.repeat(holes[:, number] - ends[starts[:-1]], rows),
            file=np.repeat(file, rows).astype(np.uint32) if len(stops) > 1 else None,
            hash=None,
        )
        for number, (one, ends) in enumerate(zip(source.fields, sums, strict=True))
    )
    index = Index(
        "arrow",
        Strings.of(names),
        source.splits,
        source.keys,
        fields,
        source.labels,
        source.classes,
        np.array(sizes, np.int64),
        facts={"batches": len(rows)},
    )
    return ArrowLayout(
        index, index.sizes, bounds, starts, file, offset, holes, tuple(tails), columns
    )


def _name(split: Split) -> str:
    if "/" in split.name or "\0" in split.name or split.name.startswith("."):
        raise UserError(
            f"a split named {split.name!r} cannot be a file of its name; rename it, or pack into "
            f"another container"
        )
    return f"{split.name}.arrow"


def _cut(total: Int64s, start: int, stop: int) -> Int64s:
    """Rows in [start, stop) at which batches begin."""
    firsts = []
    while start < stop:
        firsts.append(start)
        limit = min(stop, start + _ROWS)
        fits = int(np.searchsorted(total[start : limit + 1], total[start] + _BYTES, "right")) - 1
        start += max(1, fits)
    return np.array(firsts, np.int64)


@dataclass(frozen=True)
class Columns:
    """The parts that the columns of our files are made of.

    Attributes:
        source: the samples.
        schema: of each file, the fields first.
        head: the bytes before the batches of a file.
        largest: bytes of a field's samples, or hashes, in a batch, at most.
    """

    source: Index
    schema: pa.Schema
    head: bytes
    largest: int

    @classmethod
    def of(cls, source: Index, largest: int) -> Columns:
        """For some samples.

        Raises:
            UserError: an array is too large for a row.
            BadContainer: samples of an array are not of its size.
        """
        taken = {one.name for one in source.fields}

        def free(name: str) -> str:
            while name in taken:
                name += "_"
            taken.add(name)
            return name

        named = [(one.name, _type(one)) for one in source.fields]
        if source.labels is not None:
            named.append((free("label"), pa.int64()))
        named.append((free("key"), _key_type(source.keys)))
        lone = len(source.fields) == 1
        hashes = [free("hash" if lone else f"{one.name}_hash") for one in source.fields]
        named += [(name, pa.uint64()) for name in hashes]
        about = {ABOUT: json.dumps({"classes": list(source.classes)}).encode()}
        schema = pa.schema(named, {**about, **_features(source, named)})
        return cls(source, schema, _BEGIN + bytes(schema.serialize()), largest)

    def batch(self, first: int, stop: int, blank: pa.Buffer) -> pa.RecordBatch:
        """The rows [first, stop); each field's samples are `largest` bytes further in `blank`."""
        source, schema, rows = self.source, self.schema, stop - first
        at = iter(range(0, blank.size, self.largest))
        arrays: list[pa.Array] = []
        for one, type_ in zip(source.fields, schema.types, strict=False):
            length = one.length[first:stop]
            data = blank.slice(next(at), int(length.sum()))
            if one.dtype:
                arrays.append(_array(type_, rows, data))
            else:
                ends = np.concatenate([[0], np.cumsum(length)]).astype("<i8")
                arrays.append(
                    pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(ends), data], 0)
                )
        if source.labels is not None:
            labels = pa.py_buffer(source.labels[first:stop].astype("<i8"))  # pa.array loads pandas
            arrays.append(_array(pa.int64(), rows, labels))
        ends = source.keys.ends[first : stop + 1]
        keys = np.ascontiguousarray(source.keys.data[int(ends[0]) : int(ends[-1])])
        ends = pa.py_buffer((ends - ends[0]).astype("<i4"))
        held = [None, ends, pa.py_buffer(keys)]
        arrays.append(pa.Array.from_buffers(schema.types[len(arrays)], rows, held, 0))
        arrays += [_array(pa.uint64(), rows, blank.slice(place, 8 * rows)) for place in at]
        return pa.record_batch(arrays, schema=schema)


def _array(type_: pa.DataType, rows: int, data: pa.Buffer) -> pa.Array:
    if not pa.types.is_fixed_size_list(type_):
        return pa.Array.from_buffers(type_, rows, [None, data], 0)
    values = _array(type_.value_type, rows * type_.list_size, data)
    return pa.Array.from_buffers(type_, rows, [None], 0, children=[values])


def _type(one: Field) -> pa.DataType:
    """Lists of fixed sizes around Arrow's number; bytes where it has none (complex, big-endian)."""
    if not one.dtype:
        return pa.large_binary()
    dtype = np.dtype(one.dtype)
    width = one.width
    if len(one.length) and (one.length != width).any():
        raise BadContainer(
            f"field {one.name} should have {width} bytes per sample, as {one.dtype} of shape "
            f"{one.shape}, and some have {int(one.length.min())} to {int(one.length.max())}"
        )
    if width > 2**31 - 1:
        raise UserError(
            f"field {one.name} has {width} bytes per sample, and a fixed-size value of an Arrow "
            f"file at most 2 GiB; pack into HDF5"
        )
    if dtype.kind == "b":
        dtype = np.dtype("|u1")  # Arrow's own are bits
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or dtype.newbyteorder("<") != dtype:
        return pa.binary(width)
    type_ = pa.from_numpy_dtype(dtype)
    for size in reversed(one.shape):
        type_ = pa.list_(type_, size)
    return type_


def _key_type(keys: Strings) -> pa.DataType:
    # Without pyarrow.compute, whose import takes longer than a small pack.
    held = [None, *(pa.py_buffer(np.ascontiguousarray(one)) for one in (keys.ends, keys.data))]
    try:
        pa.Array.from_buffers(pa.large_string(), len(keys), held).validate(full=True)
    except pa.ArrowInvalid:  # names of files that are no UTF-8
        return pa.binary()
    return pa.string()


def _features(source: Index, named: list[tuple[str, pa.DataType]]) -> dict[bytes, bytes]:
    """Return what Hugging Face's datasets reads the names of classes from."""
    if not source.classes or any(one.dtype for one in source.fields):
        return {}
    found: dict[str, Any] = {name: {"dtype": str(type_), "_type": "Value"} for name, type_ in named}
    if source.labels is not None:
        label = named[len(source.fields)][0]
        found[label] = {"names": list(source.classes), "_type": "ClassLabel"}
    return {b"huggingface": json.dumps({"info": {"features": found}}).encode()}


class _Writer:
    """pyarrow's writer of a file from some place on, without samples and hashes.

    Attributes:
        sink: has what was written.
    """

    def __init__(self, columns: Columns, begin: int) -> None:
        self._columns = columns
        self._count = 2 * len(columns.source.fields)
        # Never read, so no memory: what is read-only counts for no limit either.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        blank = mmap.mmap(-1, self._count * columns.largest, flags=flags, prot=mmap.PROT_READ)
        self._blank = pa.py_buffer(blank)
        # pyarrow writes the beginning of a file first, which is there already.
        self.sink = _Sink(self._blank, begin - len(columns.head), begin)
        self._writer = pa.ipc.new_file(pa.PythonFile(self.sink, "w"), columns.schema)

    @property
    def end(self) -> int:
        """Where the file goes on."""
        return max(self.sink.at, self.sink.begin)

    def write(self, first: int, stop: int) -> Int64s:
        """Write a batch; return where its samples stand, field by field, and then their hashes."""
        holes = np.full(self._count, self.end, np.int64)  # what is empty stands anywhere
        self._writer.write(self._columns.batch(first, stop, self._blank))
        for address, at in self.sink.holes:
            holes[(address - self._blank.address) // self._columns.largest] = at
        self.sink.holes.clear()
        return holes

    def close(self) -> bytes:
        """Write what stands behind the batches, and return it."""
        self._writer.close()
        ((_, tail),) = self.sink.pieces
        return bytes(tail)


class _Sink:
    """A file for pyarrow to write into, that keeps what comes from a place on.

    Attributes:
        at: where it is.
        pieces: what was written, and where.
        holes: addresses of blank memory that was written, and where.
    """

    closed = False

    def __init__(self, blank: pa.Buffer, at: int, begin: int) -> None:
        self._blank = range(blank.address, blank.address + blank.size)
        self.at, self.begin = at, begin
        self.pieces: list[tuple[int, bytearray]] = []
        self.holes: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        """Take bytes, or one of pyarrow's buffers."""
        if isinstance(data, pa.Buffer) and data.address in self._blank:
            self.holes.append((data.address, self.at))
        elif self.at >= self.begin:
            if not self.pieces or self.pieces[-1][0] + len(self.pieces[-1][1]) != self.at:
                self.pieces.append((self.at, bytearray()))
            self.pieces[-1][1].extend(memoryview(data).cast("B"))
        self.at += len(data)
        return len(data)

    def tell(self) -> int:
        """Where it is."""
        return self.at

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
