"""The form of our Arrow files: an IPC file per split, all of its bytes' places known beforehand.

A row is a sample: a column per field, then `label` (where there are labels), `key`, and a `hash`
per field. A batch has up to 256 rows or 16 MiB, and a larger sample one of its own, so that a
reader maps few batches and none is too large to be held. Buffers begin at multiples of 64 bytes of
the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, UInt64s
from ..pack.layout import UNIT, Piece, Shape
from ..strings import Strings
from . import arrow_form
from . import arrow_message as message
from .arrow_schema import ALIGN, FileForm, OurColumn, columns_of, form_of

_ROWS, _BYTES = 256, 16 << 20  # of a batch, at most
_UNIT_ROWS = 8192  # of a unit, at most about that many
_CHECKED = 64  # batches of a file whose rows are counted again when it is done


@dataclass(frozen=True)
class ArrowLayout:
    """See `pack.layout.Layout`.

    Attributes:
        starts: int64 (b + 1,), rows at which batches begin, over all files.
        offset: int64 (b,), where each batch begins in its file.
        size: int64 (b,), bytes of its body.
        file: int64 (b,), row of `index.files`.
        places: int64 (b, buffers, 2), of each buffer its place in the body and its bytes.
        end: int64 (files,), where the batches of a file end.
    """

    index: Index
    sizes: Int64s
    units: Int64s
    starts: Int64s
    offset: Int64s
    size: Int64s
    file: Int64s
    places: Int64s
    end: Int64s
    columns: tuple[OurColumn, ...]
    files: tuple[FileForm, ...]

    def begin(self, root: Path) -> ArrowLayout:
        """Make a file for each split, with all but its batches."""
        for number, file in enumerate(self.files):
            with (root / self.index.files.text(number)).open("wb") as out:
                out.write(file.head)
                out.truncate(int(self.sizes[number]))
                out.seek(int(self.end[number]))
                out.write(self._tail(number))
        return self

    def attach(self, root: Path) -> ArrowLayout:
        """All of it is known without the files."""
        return self

    def _tail(self, number: int) -> bytes:
        mine = self.file == number
        head = np.full(int(mine.sum()), len(self.files[number].form.data), np.int64)
        blocks = message.Blocks(self.offset[mine], head, self.size[mine], False)
        made = arrow_form.footer_of(self.files[number].footer, blocks)
        return message.END + made + struct.pack("<i", len(made)) + message.MAGIC

    def before(self, start: int, stop: int) -> Iterator[Piece]:
        """Of each batch its metadata, ends, labels, keys and the space between."""
        for batch in self._batches(start, stop):
            yield from self._before(batch)

    def _batches(self, start: int, stop: int) -> range:
        first, last = np.searchsorted(self.starts, (start, stop))
        return range(int(first), int(last))

    def _before(self, batch: int) -> Iterator[Piece]:
        first, stop = int(self.starts[batch]), int(self.starts[batch + 1])
        rows, file, at = stop - first, int(self.file[batch]), int(self.offset[batch])
        places = self.places[batch]
        nodes = _nodes(self.columns, rows)
        known = [self.files[file].form.filled(rows, int(self.size[batch]), nodes, places)]
        body = done = at + len(known[0])  # bytes up to `done` are in pieces, or in `known`
        begin, buffer = at, 0
        for column in self.columns:
            if column.role == "hash":
                break
            buffer += 1 + len(column.dims)
            parts = self._known(column, first, stop)
            for part in (*parts, None)[: 2 if column.step else 1]:
                place, size = body + int(places[buffer, 0]), int(places[buffer, 1])
                known.append(bytes(place - done))
                buffer += 1
                if part is None:  # here the samples stand
                    yield Piece(file, begin, b"".join(known))
                    known, begin = [], place + size
                else:
                    known.append(part)
                done = place + size
        hashes = body + int(places[-2 * self._hashes() + 1, 0])
        known.append(bytes(hashes - done))
        yield Piece(file, begin, b"".join(known))

    def _known(self, column: OurColumn, first: int, stop: int) -> tuple[bytes, ...]:
        """The contents of a column's buffers but for samples."""
        if column.role == "label":
            labels = cast(Int64s, self.index.labels)
            return (labels[first:stop].astype("<i8").tobytes(),)
        if column.role == "key":
            ends = self.index.keys.ends[first : stop + 1]
            data = self.index.keys.data[int(ends[0]) : int(ends[-1])]
            return (ends - ends[0]).astype("<i4").tobytes(), data.tobytes()
        if not column.step:
            return ()
        length = self.index.fields[column.field].length[first:stop]
        return (np.concatenate([[0], np.cumsum(length)]).astype("<i8").tobytes(),)

    def _hashes(self) -> int:
        return sum(column.role == "hash" for column in self.columns)

    def after(self, start: int, stop: int, hashes: UInt64s) -> Iterator[Piece]:
        """The columns of hashes."""
        count = self._hashes()
        for batch in self._batches(start, stop):
            first, last = int(self.starts[batch]), int(self.starts[batch + 1])
            file = int(self.file[batch])
            places = self.places[batch]
            body = int(self.offset[batch]) + len(self.files[file].form.data)
            at = int(places[-2 * count + 1, 0])
            made = bytearray(int(self.size[batch]) - at)
            for number in range(count):
                place = int(places[2 * (number - count) + 1, 0]) - at
                data = hashes[number, first - start : last - start].astype("<u8").tobytes()
                made[place : place + len(data)] = data
            yield Piece(file, body + at, bytes(made))

    def finish(self, root: Path, hashes: UInt64s) -> None:
        """Open each file as anyone would: what it says of itself has to be what was meant.

        Raises:
            BadContainer: it is not.
        """
        import pyarrow as pa

        for number, file in enumerate(self.files):
            path = root / self.index.files.text(number)
            rows = np.diff(self.starts)[self.file == number]
            try:
                with pa.memory_map(str(path)) as mapped:
                    reader = pa.ipc.open_file(mapped)
                    if reader.num_record_batches != len(rows) or reader.schema != file.schema:
                        raise ValueError("has other batches or columns")
                    some = np.unique(np.linspace(0, len(rows) - 1, _CHECKED).astype(int))
                    for batch in some if len(rows) else ():
                        found = reader.get_batch(int(batch))
                        found.validate()
                        if found.num_rows != rows[batch]:
                            raise ValueError(f"has {found.num_rows} rows in batch {batch}")
            except (pa.ArrowException, ValueError) as error:
                raise BadContainer(
                    f"{path} was written, and cannot be read: {error}; was it changed meanwhile?"
                ) from None


def plan(source: Index, shape: Shape) -> ArrowLayout:
    """The layout for the samples of `source`; see `pack.layout.plan`.

    Raises:
        UserError: a split's name cannot be that of a file, or an array is too large for a row.
    """
    columns = columns_of(source)
    forms = [form_of(source, split, columns) for split in source.splits]
    sums = [np.concatenate([[0], np.cumsum(one.length)]) for one in source.fields]
    total: Int64s = np.asarray(np.sum(sums, axis=0, dtype=np.int64))
    starts = np.concatenate(
        [*(_cut(total, s.start, s.stop) for s in source.splits), [len(source)]]
    ).astype(np.int64)
    rows = np.diff(starts)
    file = np.searchsorted([s.stop for s in source.splits], starts[:-1], "right").astype(np.int64)
    places, size = _places(columns, rows, starts, sums, source.keys.ends)
    heads = np.array([len(form.form.data) for form in forms], np.int64)
    before = np.cumsum(heads[file] + size) - heads[file] - size  # of all files' batches
    firsts = np.searchsorted(file, np.arange(len(forms)))
    bounds = np.concatenate([before, [int((heads[file] + size).sum())]]).astype(np.int64)
    begins = np.array([len(form.head) for form in forms], np.int64)
    offset = before - bounds[firsts][file] + begins[file]
    end = begins + bounds[np.append(firsts[1:], len(file)).astype(np.int64)] - bounds[firsts]
    fields = tuple(
        Field(
            one.name,
            _offsets(columns, number, one, sums[number], starts, offset + heads[file], places),
            one.length.astype(np.int64),
            np.repeat(file, rows).astype(np.uint32) if len(forms) > 1 else None,
            None,
            one.dtype,
            one.shape,
        )
        for number, one in enumerate(source.fields)
    )
    index = Index(
        "arrow",
        Strings.of(_name(split).encode("utf-8", "surrogateescape") for split in source.splits),
        source.splits,
        source.keys,
        fields,
        source.labels,
        source.classes,
        facts={"batches": len(rows)},
    )
    units = _units(total, starts, source.splits)
    draft = ArrowLayout(
        index, end, units, starts, offset, size, file, places, end, columns, tuple(forms)
    )
    sizes = end + np.array([len(draft._tail(n)) for n in range(len(forms))], np.int64)
    whole = Index(**{**index.__dict__, "sizes": sizes})
    return ArrowLayout(**{**draft.__dict__, "index": whole, "sizes": sizes})


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


def _units(total: Int64s, starts: Int64s, splits: tuple[Split, ...]) -> Int64s:
    """Whole batches of a split, until they have enough bytes or rows."""
    ends = {split.stop for split in splits}
    units = [0]
    bytes_at = total[starts].tolist()
    for row, done in zip(starts[1:].tolist(), bytes_at[1:], strict=True):
        enough = done - int(total[units[-1]]) >= UNIT or row - units[-1] >= _UNIT_ROWS
        if (enough or row in ends) and row > units[-1]:
            units.append(row)
    return np.array(units, np.int64)


def _nodes(columns: tuple[OurColumn, ...], rows: int) -> Int64s:
    """Length and nulls of each node: a column, and each list's values in it."""
    found = []
    for column in columns:
        found.append((rows, 0))
        count = rows
        for size in column.dims:
            count *= size
            found.append((count, 0))
    return np.array(found, np.int64)


def _places(
    columns: tuple[OurColumn, ...],
    rows: Int64s,
    starts: Int64s,
    sums: list[npt.NDArray[Any]],
    key_ends: Int64s,
) -> tuple[Int64s, Int64s]:
    """Of each batch the places and bytes of its buffers, (b, buffers, 2), and of its body, (b,)."""
    none = np.zeros(len(rows), np.int64)
    held: list[Int64s] = []
    for column in columns:
        # Of each node first which values are there, which is empty: all are.
        held += [none] * (1 + len(column.dims))
        if not column.step:
            held.append(rows * column.width)
            continue
        ends = key_ends if column.role == "key" else sums[column.field]
        held += [(rows + 1) * column.step, ends[starts[1:]] - ends[starts[:-1]]]
    size = np.stack(held, axis=1)
    room = -(-size // ALIGN) * ALIGN
    at = np.cumsum(room, axis=1) - room
    return np.stack([at, size], axis=2).astype(np.int64), room.sum(axis=1).astype(np.int64)


def _offsets(
    columns: tuple[OurColumn, ...],
    number: int,
    field: Field,
    sums: Int64s,
    starts: Int64s,
    body: Int64s,
    places: Int64s,
) -> Int64s:
    """Where the samples of a field will stand in their file."""
    buffer = 0
    for column in columns[:number]:
        buffer += 1 + len(column.dims) + (2 if column.step else 1)
    mine = columns[number]
    buffer += len(mine.dims) + (2 if mine.step else 1)
    first = body + places[:, buffer, 0] - sums[starts[:-1]]
    return (sums[:-1] + np.repeat(first, np.diff(starts))).astype(np.int64)
