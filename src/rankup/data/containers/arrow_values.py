"""Values of columns as pyarrow gives them: where they lie, their bytes, names and labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from ...base.errors import UserError
from ..index import Int64s
from ..strings import Strings
from .arrow_columns import Column, is_bytes, number
from .arrow_columns import Path as ColumnPath

LONGEST_NAME = 4096  # bytes of a key or a class name
_TOGETHER = 1 << 12  # batches whose labels or keys are looked at in one go


class Unfit(Exception):  # noqa: N818 - no error where other names can be given
    """The values of a column cannot be names of samples or classes; the message says why."""


def broken() -> tuple[type[BaseException], ...]:
    """Return what pyarrow and numpy raise on a damaged file."""
    return (
        pa.ArrowException,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        NotImplementedError,
        OverflowError,
        MemoryError,
        RecursionError,
        OSError,
    )


def member(array: pa.Array, path: ColumnPath) -> pa.Array:
    """Return the values of a column, or of a struct's member in it, in their plain form.

    Values that lie in the file as they are stay there.
    """
    array = _stored(array)
    for name in path[1:]:
        array = _stored(pc.struct_field(array, [name]))
    if t.is_dictionary(array.type):
        return array.dictionary_decode()
    if t.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    if t.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array


def _stored(array: pa.Array) -> pa.Array:
    while hasattr(array.type, "storage_type"):
        array = array.storage
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


def lengths(array: pa.Array, column: Column) -> Int64s:
    """Return the bytes of each value; a null has none."""
    if not column.dtype:
        found = pc.fill_null(pc.binary_length(array), 0)
        return found.to_numpy(zero_copy_only=False).astype(np.int64)
    width = np.dtype(column.dtype).itemsize
    if column.shape is None:
        found = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        return found.astype(np.int64) * width
    return np.full(len(array), width * int(np.prod(column.shape, dtype=np.int64)), np.int64)


def check_full(array: pa.Array, column: Column) -> None:
    """Refuse an array with nulls among its numbers, for which there are no bytes."""
    while not array.null_count:
        if not hasattr(array, "flatten"):
            return
        array = array.flatten()
    raise UserError(
        f"column {column.name!r} has missing values (nulls) among its numbers, which an array "
        f"cannot have; fill them, or leave the column out with --fields"
    )


def value(array: pa.Array, row: int, column: Column) -> bytes | memoryview:
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


def strings(array: pa.Array) -> Strings:
    """Return binary or string values.

    Raises:
        Unfit: some are null, or too long for a name.
    """
    if not is_bytes(array.type):
        raise Unfit(f"its values are {array.type}")
    if array.null_count:
        raise Unfit("some of its values are missing (null)")
    array = array.cast(pa.large_binary())
    if not len(array):
        return Strings.of([])
    _, ends, data = array.buffers()
    found = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    if np.diff(found).max() > LONGEST_NAME:
        raise Unfit(f"some of its values are longer than {LONGEST_NAME} bytes")
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return Strings(held[found[0] : found[-1]].copy(), found - found[0])


def as_array(found: Strings) -> pa.Array:
    """Return pyarrow's array of them, whose functions run over millions; shares memory."""
    ends = pa.py_buffer(np.ascontiguousarray(found.ends))
    data = pa.py_buffer(np.ascontiguousarray(found.data))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(found), [None, ends, data])


def gathered(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Yield arrays of many rows made of arrays of few, since a file may have a batch per row."""
    while some := list(itertools.islice(arrays, _TOGETHER)):
        array = pa.concat_arrays(some)
        array.validate(full=True)
        yield array


def labels(arrays: Iterable[pa.Array]) -> tuple[Int64s, tuple[bytes, ...]]:
    """Return labels, and the names of classes in the order of their bytes; a null is -1.

    Raises:
        Unfit: the values are no labels.
    """
    parts: list[Int64s] = [np.empty(0, np.int64)]
    known: dict[bytes, int] = {}
    for array in arrays:
        if is_bytes(array.type):
            coded = array.cast(pa.large_binary()).dictionary_encode()
            seen = [known.setdefault(name, len(known)) for name in strings(coded.dictionary)]
            rows = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
            parts.append(np.array([*seen, -1], np.int64)[rows])  # of a null the last one
            continue
        if t.is_boolean(array.type):
            array = array.cast(pa.int8())
        found = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        if len(found) and (int(found.min()) < -1 or int(found.max()) >= 1 << 63):
            raise Unfit(
                f"they are {found.min()} to {found.max()}, and labels are -1 (none), 0, 1, …"
            )
        there = pc.is_valid(array).to_numpy(zero_copy_only=False)
        parts.append(np.where(there, found.astype(np.int64), -1))
    names = sorted(known)
    numbers = np.concatenate(parts)
    if names:
        place = {name: at for at, name in enumerate(names)}
        numbers = np.array([*(place[name] for name in known), -1], np.int64)[numbers]
    return numbers, tuple(names)
