"""Columns of pyarrow's types: what they become, where their values lie, and the bytes of these.

Values that are compressed, or packed in bits, are read one by one. Their files are groups of rows
(record batches, row groups); such a value is known by the numbers of its file, group and row, which
one integer holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from ...base.errors import UserError
from ..errors import DAMAGE, BadContainer
from ..index import Index, Int64s, Strings, data_path

_ROW_BITS, _GROUP_BITS, _FILE_BITS = 26, 21, 16
_HELD = 256 << 20  # bytes of decoded values that a process keeps
_READERS = 16  # files that it keeps open
# What pyarrow and numpy raise on a damaged file.
BROKEN = (*DAMAGE, pa.ArrowException, OSError)
_TOGETHER = 1 << 12  # batches whose labels or keys are looked at in one go


@dataclass(frozen=True)
class ColumnType:
    """The role that a column takes.

    Attributes:
        path: of the column: its name, and of a struct's member that of the member.
        dtype, shape: as in `index.Field`; the shape is None where it is that of the first list.
        text: True where its bytes are a text.
    """

    path: tuple[str, ...]
    dtype: str = ""
    shape: tuple[int, ...] | None = ()
    text: bool = False


def column_type(name: str, type_: Any) -> ColumnType:
    """Return what a column of a type becomes.

    Raises:
        UserError: it has no form as samples.
    """
    type_ = plain(type_)
    if t.is_struct(type_) and {one.name for one in type_} in ({"bytes", "path"}, {"bytes"}):
        inner = type_.field(type_.get_field_index("bytes")).type
        if is_bytes(inner):  # as Hugging Face has images and sounds
            return ColumnType((name, "bytes"), text=is_text(inner))
    value = type_.value_type if t.is_dictionary(type_) else type_
    if is_bytes(value) or t.is_fixed_size_binary(value):
        return ColumnType((name,), text=is_text(value))
    shape: tuple[int, ...] | None = ()
    if t.is_list(value) or t.is_large_list(value):
        value, shape = value.value_type, None
    while shape is not None and t.is_fixed_size_list(value):
        value, shape = value.value_type, (*shape, value.list_size)
    if min(shape or (), default=0) < 0:
        raise ValueError(f"column {name!r} has lists of a negative size")
    dtype = number(value)
    if dtype is None or t.is_dictionary(type_):
        raise UserError(
            f"column {name!r} is {type_}, which has no form as samples of their own bytes; leave "
            "it out by naming the columns to take: --fields a,b"
        )
    return ColumnType((name,), dtype, shape)


def plain(type_: Any) -> Any:
    """Return the storage type of an extension type; other types as they are."""
    while hasattr(type_, "storage_type"):
        type_ = type_.storage_type
    return type_


def is_text(type_: Any) -> bool:
    """Return True for a type of strings, of any of Arrow's kinds."""
    return t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_)


def is_bytes(type_: Any) -> bool:
    """Return True for a type of bytes or strings of various lengths."""
    return is_text(type_) or (
        t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_)
    )


def number(type_: Any) -> str | None:
    """numpy's name of a numeric type, with its byte order; None for other types."""
    if not (t.is_integer(type_) or t.is_floating(type_) or t.is_boolean(type_)):
        return None
    return np.dtype(type_.to_pandas_dtype()).newbyteorder("<").str


def member(array: pa.Array, path: Sequence[str]) -> pa.Array:
    """Return the values of a column, or of a struct's member in it, in their plain form.

    Values that lie in the file as they are stay there.
    """
    while hasattr(array.type, "storage_type"):
        array = array.storage
    if path[1:]:
        return member(pc.struct_field(array, list(path[1:])), path[:1])
    if t.is_dictionary(array.type):
        return array.dictionary_decode()
    if t.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    if t.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array


def places(array: pa.Array, mapped: range) -> tuple[Int64s, Int64s] | None:
    """Return offset and length in a file of each value; None where they do not lie in it.

    Args:
        mapped: the addresses that the file is mapped at.

    Raises:
        ValueError: they would lie outside of their column.
    """
    rows, type_ = len(array), array.type
    step = step_of(type_)
    width = 1 if is_bytes(type_) else width_of(type_.value_type if step else type_)
    if width is None:
        return None
    buffers = array.buffers()
    data = buffers[-1]
    if data is None or not data.size:
        return np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    if data.address not in mapped or data.size > mapped.stop - data.address:
        return None
    begin = data.address - mapped.start
    if not step:
        return begin + np.arange(rows, dtype=np.int64) * width, np.full(rows, width, np.int64)
    ends = np.frombuffer(buffers[1], f"<i{step}", rows + 1).astype(np.int64)
    length = ends[1:] - ends[:-1]  # not np.diff, which takes four times as long for one row
    if ends[0] < 0 or (length < 0).any() or ends[-1] > data.size // max(width, 1):
        raise ValueError("a value lies outside of its column")
    return begin + ends[:-1] * width, length * width


def step_of(type_: Any) -> int:
    """Return the bytes of each entry of a type's list of ends; 0 where it has none."""
    if t.is_binary(type_) or t.is_string(type_) or t.is_list(type_):
        return 4
    large = t.is_large_binary(type_) or t.is_large_string(type_) or t.is_large_list(type_)
    return 8 if large else 0


def width_of(type_: Any) -> int | None:
    """Return the bytes of each value; None where they differ, or do not lie side by side."""
    if t.is_fixed_size_binary(type_):
        return int(type_.byte_width)
    if t.is_fixed_size_list(type_):
        inner = width_of(type_.value_type)
        return None if inner is None else inner * int(type_.list_size)
    dtype = number(type_)
    return None if dtype is None or t.is_boolean(type_) else np.dtype(dtype).itemsize


def lengths(array: pa.Array, column: ColumnType) -> Int64s:
    """Return the bytes of each value; a null has none."""
    if not column.dtype:
        found = pc.fill_null(pc.binary_length(array), 0)
        return found.to_numpy(zero_copy_only=False).astype(np.int64)
    width = np.dtype(column.dtype).itemsize
    if column.shape is None:
        found = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        return found.astype(np.int64) * width
    return np.full(len(array), width * math.prod(column.shape), np.int64)


def check_full(array: pa.Array, column: ColumnType) -> None:
    """Refuse an array with nulls among its numbers, for which there are no bytes."""
    while not array.null_count:
        if not hasattr(array, "flatten"):
            return
        array = array.flatten()
    raise UserError(
        f"column {column.path[0]!r} has missing values (nulls) among its numbers, which an array "
        f"cannot have; fill them, or leave the column out with --fields"
    )


def value(array: pa.Array, row: int, column: ColumnType) -> bytes | memoryview:
    """Return the bytes of one value."""
    one = array.slice(row, 1)
    if column.dtype:
        while hasattr(one, "flatten"):
            one = one.flatten()
        return one.to_numpy(zero_copy_only=False).astype(column.dtype, copy=False).tobytes()
    if one.null_count:
        return b""
    # By the buffers: pyarrow's own way to one value copies it, and it may be large.
    _, first, *second = one.buffers()
    if not second:
        size = int(one.type.byte_width)
        begin, end = one.offset * size, (one.offset + 1) * size
        return memoryview(first).cast("B")[begin:end]  # pyarrow's own are of signed bytes
    step = step_of(one.type)
    begin, end = np.frombuffer(first, f"<i{step}", 2, one.offset * step).tolist()
    return memoryview(second[0]).cast("B")[begin:end] if end > begin else b""


def gathered(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Yield arrays of many rows made of arrays of few, since a file may have a batch per row."""
    while some := list(itertools.islice(arrays, _TOGETHER)):
        array = pa.concat_arrays(some)
        array.validate(full=True)
        yield array


class Reader(Protocol):
    """Reads one file group by group.

    Attributes:
        schema: of its columns.
        groups: how many there are.
        mapped: the addresses that the file is mapped at; empty where it is not.
    """

    schema: pa.Schema
    groups: int
    mapped: range

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a group, with some columns, in one or more pieces."""

    def close(self) -> None: ...


Opener = Callable[[Path], Reader]


def pack(file: int, group: int, row: Int64s) -> Int64s:
    """The numbers of rows of one group, as `~offset` has them.

    Raises:
        UserError: there are more files, groups or rows than that has room for.
    """
    largest = int(row[-1]) if len(row) else 0
    if largest >> _ROW_BITS or group >> _GROUP_BITS or file >> _FILE_BITS:
        raise UserError(
            f"row {largest} of group {group} of file {file}: at most {1 << _FILE_BITS} files of "
            f"{1 << _GROUP_BITS} groups of {1 << _ROW_BITS} rows can be read; write it with "
            f"smaller groups"
        )
    return row + ((file << _GROUP_BITS | group) << _ROW_BITS)


def unpack(value: int) -> tuple[int, int, int]:
    """File, group and row of a number."""
    row = value & ((1 << _ROW_BITS) - 1)
    group = value >> _ROW_BITS & ((1 << _GROUP_BITS) - 1)
    return value >> (_ROW_BITS + _GROUP_BITS), group, row


class _Kept:
    """The piece of a column that was decoded last, and the ones after it.

    Attributes:
        first: its first row in the group.
        size: bytes that it holds.
    """

    def __init__(self, pieces: Iterator[pa.RecordBatch]) -> None:
        self._pieces = pieces
        self.first, self.size = 0, 0
        self.array: Any = None

    def forward(self, row: int, column: ColumnType) -> None:
        """Go on to the piece that a row is in."""
        while self.array is None or row >= self.first + len(self.array):
            self.first += 0 if self.array is None else len(self.array)
            self.array = None  # before the next one is made
            batch = next(self._pieces, None)
            if batch is None:
                raise ValueError(f"the group ends before, at row {self.first}")
            batch.validate(full=True)
            self.array = member(batch.column(0), column.path)
            self.size = self.array.nbytes


class Tables:
    """The fallback of a data set in Arrow or Parquet files; see `containers.Fallback`.

    Of each field it keeps what was read last, so that reading in order decodes nothing twice.
    """

    def __init__(
        self, root: Path, files: Strings, columns: Mapping[str, ColumnType], opener: Opener
    ) -> None:
        self._root, self._files, self._columns, self._opener = root, files, columns, opener
        self._readers: dict[Path, Reader] = {}
        self._kept: dict[tuple[Path, int, str], _Kept] = {}

    @classmethod
    def of(cls, index: Index, root: Path, opener: Opener) -> Tables:
        """From what `facts` says of an index's fields."""
        try:
            paths = {name: tuple(map(str, path)) for name, path in index.facts["columns"].items()}
            columns = {
                one.name: ColumnType(paths[one.name], one.dtype, one.shape) for one in index.fields
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise BadContainer(
                f"the index of {root} does not name its columns: {error!r}"
            ) from None
        return cls(root, index.files, columns, opener)

    def chunks(self, field: str, number: int) -> Iterator[bytes | memoryview]:
        """The bytes of one value, in one piece."""
        file, group, row = unpack(number)
        column = self._columns[field]
        path = data_path(self._root, self._files, file)
        try:
            array, first = self._at(path, group, row, field)
            found = value(array, row - first, column)
        except BROKEN as error:
            raise BadContainer(
                f"{path}: row {row} of group {group} cannot be read: {error}"
            ) from None
        yield found

    def _at(self, path: Path, group: int, row: int, field: str) -> tuple[pa.Array, int]:
        """The piece that a row is in, and the row it begins at."""
        column = self._columns[field]
        place = (path, group, field)
        kept = self._kept.pop(place, None)
        if kept is None or row < kept.first:
            kept = _Kept(self._reader(path).batches(group, column.path[:1]))
        if kept.array is None or row >= kept.first + len(kept.array):
            kept.forward(row, column)
            # The oldest go, until the rest and what just came have room.
            held = kept.size + sum(one.size for one in self._kept.values())
            while self._kept and held > _HELD:
                held -= self._kept.pop(next(iter(self._kept))).size
        self._kept[place] = kept
        return kept.array, kept.first

    def _reader(self, path: Path) -> Reader:
        found = self._readers.pop(path, None) or self._opener(path)
        # A reader that is let go stays open for as long as a piece comes from it.
        if len(self._readers) >= _READERS:
            self._readers.pop(next(iter(self._readers)))
        self._readers[path] = found
        return found
