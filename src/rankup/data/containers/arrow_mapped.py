"""Columns of an Arrow file whose values lie in it as they are: their places, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..index import Int64s, UInt64s
from ..strings import Strings
from . import arrow_message as message
from .arrow_columns import Column, is_bytes, number
from .arrow_columns import Path as ColumnPath
from .arrow_message import Batches, Blocks, Bytes
from .arrow_places import Place, lies, places, step_of
from .arrow_table import Spans, Table
from .arrow_tables import Reader
from .arrow_values import LONGEST_NAME, Labels, Unfit, joined, missing, width

# Rows looked at in one go; bounds memory.
_ROWS = 1 << 18
# From this mean length on, names are copied one by one instead of all bytes by their places.
_LONG = 256


class Missing(Exception):  # noqa: N818 - a finding, made a UserError where the column is known
    """There are nulls among the numbers of arrays."""


class Rows:
    """Some rows of some batches.

    Attributes:
        batch: int64 (rows,), of which batch each is.
        row: int64 (rows,), its number in it.
    """

    def __init__(self, starts: Int64s, begin: int, end: int) -> None:
        places = np.arange(begin, end)
        self.batch = np.searchsorted(starts, places, "right") - 1
        self.row = places - starts[self.batch]


class Mapped(Table):
    """A file whose batches are read where they lie, as far as they are not compressed."""

    def __init__(
        self, reader: Reader, data: Bytes, blocks: Blocks, about: Mapping[str, Any] | None
    ) -> None:
        super().__init__(reader, about)
        self._data, self._blocks = data, blocks
        self._places: dict[ColumnPath, Place] = {}
        found = places(reader.schema)
        self._counts = (0, 0)
        if found is not None and not message.compressed(data, blocks):
            self._places, *counts = found
            self._counts = (counts[0], counts[1])

    def rows(self) -> int:
        return int(message.rows(self._data, self._blocks).sum())

    def spans(self, column: Column, file: int) -> Spans:
        place = self._places.get(column.path)
        if place is None or not lies(place):
            return super().spans(column, file)
        try:
            return self._spans(column, place)
        except Missing:
            raise missing(column) from None

    def _spans(self, column: Column, place: Place) -> Spans:
        offsets, lengths, nulls = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for part, rows in self._pieces(place):
            offset, length = self._where(part, rows, place)
            there = self._there(part, rows, place)
            if there is not None and not there.all():
                if column.dtype:
                    raise Missing
                nulls += len(there) - int(there.sum())
                length = np.where(there, length, 0)
            offsets.append(offset)
            lengths.append(length)
        return Spans(np.concatenate(offsets), np.concatenate(lengths), nulls)

    def strings(self, path: ColumnPath) -> Strings:
        place = self._places.get(path)
        if place is None or not is_bytes(place.type):
            return super().strings(path)
        return joined([part for part, there in self._names(place) if _whole(there)])

    def labels(self, path: ColumnPath, into: Labels) -> None:
        place = self._places.get(path)
        if place is None or not (is_bytes(place.type) or _is_number(place.type)):
            super().labels(path, into)
        elif is_bytes(place.type):
            for names, there in self._names(place):
                into.names(names, there)
        else:
            dtype = str(number(place.type))
            for part, rows in self._pieces(place):
                found = message.values(self._data, self._where(part, rows, place)[0], dtype)
                into.numbers(found, self._there(part, rows, place))

    def hashes(self, path: ColumnPath) -> UInt64s:
        place = self._places.get(path)
        if place is None or number(place.type) != "<u8":
            return super().hashes(path)
        parts = [
            message.values(self._data, self._where(part, rows, place)[0], "<u8")
            for part, rows in self._pieces(place)
        ]
        return np.concatenate([np.empty(0, np.uint64), *parts])

    def _pieces(self, place: Place) -> Iterator[tuple[Batches, Rows]]:
        """The rows of all batches, some at a time; the batches' sizes fit the column."""
        for part in message.batches(self._data, self._blocks, *self._counts):
            self._fits(part, place)
            ends = np.cumsum(part.rows)
            total = int(ends[-1]) if len(ends) else 0
            for begin in range(0, total, _ROWS):
                yield part, Rows(ends - part.rows, begin, min(total, begin + _ROWS))

    def _fits(self, part: Batches, place: Place) -> None:
        """Check that a column's buffers have room for its rows, before these are believed."""
        rows, at, size = part.rows, place, len(self._data)
        # No type needs less than a bit per row, but for those of no width.
        if len(rows) and int(rows.max()) > 8 * size:
            raise ValueError("a record batch has more rows than the file has bits")
        for node, _ in (*place.around, (place.node, 0)):
            self._same(part, node, rows)
        while at.inner is not None and not step_of(at.type):
            at = at.inner
        held = part.buffers[:, at.buffer + 1, 1]
        step = step_of(place.type)
        each = step or width(place.type) or 0
        # Divided, not multiplied: hostile numbers would overflow.
        if each and (rows > held // each - bool(step))[rows > 0].any():
            raise ValueError("a column has fewer bytes than its rows need")
        nested, inner = 1, place
        while inner.inner is not None:
            if not step:
                nested *= int(inner.type.list_size)
                self._same(part, inner.inner.node, rows * nested)
            inner = inner.inner
            if (part.nodes[:, inner.node, 1] > 0).any():
                raise Missing

    def _same(self, part: Batches, node: int, rows: Int64s) -> None:
        if (part.nodes[:, node, 0] != rows).any():
            raise ValueError("a column has other rows than its record batch")

    def _where(self, part: Batches, rows: Rows, place: Place) -> tuple[Int64s, Int64s]:
        """Offset and length in the file of a column's values."""
        of = rows.batch
        step = step_of(place.type)
        if not step:
            each = width(place.type) or 0
            at = place
            while at.inner is not None:
                at = at.inner
            start = (part.body + part.buffers[:, at.buffer + 1, 0])[of]
            return start + rows.row * each, np.full(len(of), each, np.int64)
        if place.inner is None:
            held, item = place.buffer + 2, 1
        else:
            held, item = place.inner.buffer + 1, width(place.inner.type) or 0
        ends = (part.body + part.buffers[:, place.buffer + 1, 0])[of] + rows.row * step
        kind = f"<i{step}"
        first = message.values(self._data, ends, kind).astype(np.int64)
        last = message.values(self._data, ends + step, kind).astype(np.int64)
        room = part.buffers[:, held, 1][of] // max(item, 1)
        if ((first < 0) | (last < first) | (last > room)).any():
            raise ValueError("a value lies outside of its column")
        start = (part.body + part.buffers[:, held, 0])[of] + first * item
        return start, (last - first) * item

    def _there(self, part: Batches, rows: Rows, place: Place) -> npt.NDArray[np.bool_] | None:
        """Which values are not null; None: all."""
        found: npt.NDArray[np.bool_] | None = None
        for node, buffer in (*place.around, (place.node, place.buffer)):
            nulls, bits = part.nodes[:, node, 1], part.buffers[:, buffer]
            if ((nulls > 0) & (bits[:, 1] * 8 < part.rows)).any():
                raise ValueError("a column has missing values, and does not say which")
            some = ((nulls != 0) & (bits[:, 1] > 0))[rows.batch]
            if not some.any():
                continue
            if (bits[:, 1] * 8 < part.rows)[rows.batch[some]].any():
                raise ValueError("a column does not say of all values whether they are missing")
            at = (part.body + bits[:, 0])[rows.batch[some]] + (rows.row[some] >> 3)
            held = message.values(self._data, at, "<u1") >> (rows.row[some] & 7).astype(np.uint8)
            found = np.ones(len(rows.row), np.bool_) if found is None else found
            found[some] &= (held & 1).astype(np.bool_)
        return found

    def _names(self, place: Place) -> Iterator[tuple[Strings, npt.NDArray[np.bool_] | None]]:
        for part, rows in self._pieces(place):
            offset, length = self._where(part, rows, place)
            there = self._there(part, rows, place)
            if there is not None:
                length = np.where(there, length, 0)
            if len(length) and length.max() > LONGEST_NAME:
                raise Unfit(f"some of its values are longer than {LONGEST_NAME} bytes")
            yield _gathered(self._data, offset, length), there


def _whole(there: npt.NDArray[np.bool_] | None) -> bool:
    if there is not None and not there.all():
        raise Unfit("some of its values are missing (null)")
    return True


def _gathered(data: Bytes, offset: Int64s, length: Int64s) -> Strings:
    ends = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=ends[1:])
    if int(ends[-1]) > _LONG * len(length):
        spans = zip(offset.tolist(), length.tolist(), strict=True)
        return Strings.of(data[at : at + size].tobytes() for at, size in spans)
    at = np.arange(int(ends[-1])) + np.repeat(offset - ends[:-1], length)
    return Strings(data[at], ends)


def _is_number(type_: Any) -> bool:
    import pyarrow.types as t

    return t.is_integer(type_)
