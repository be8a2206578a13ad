"""Values of columns as pyarrow gives them, as bytes, lengths, names and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from ..index import Int64s
from ..strings import Strings
from .arrow_columns import Column, is_bytes, number, plain
from .arrow_columns import Path as ColumnPath

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_NAME = 4096  # bytes of a key or a class name
# What pyarrow raises on damaged files, besides its own.
BROKEN = (
    *(ValueError, TypeError, KeyError, IndexError, NotImplementedError, OverflowError),
    *(MemoryError, RecursionError, OSError),
)


class Unfit(Exception):  # noqa: N818 - no error where other names can be given
    """The values of a column cannot be names of samples or classes; the message says why."""


def member(array: pa.Array, path: ColumnPath) -> pa.Array:
    """The values of a column or of a struct's member in it, in their plain form."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as t

    array = _stored(array)
    for name in path[1:]:
        array = _stored(pc.struct_field(array, [name]))
    if t.is_dictionary(array.type):
        array = array.dictionary_decode()
    if t.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    if t.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array


def _stored(array: pa.Array) -> pa.Array:
    while hasattr(array.type, "storage_type"):
        array = array.storage
    return array


def lengths(array: pa.Array, column: Column) -> tuple[Int64s, int]:
    """Bytes of each value, and how many are null: these have none.

    Raises:
        UserError: numbers are missing, for which there are no bytes.
    """
    import pyarrow.compute as pc

    if column.dtype:
        width = np.dtype(column.dtype).itemsize
        full(array, column)
        if column.shape is None:
            found = pc.list_value_length(array).to_numpy(zero_copy_only=False)
            return found.astype(np.int64) * width, 0
        each = width * int(np.prod(column.shape, dtype=np.int64))
        return np.full(len(array), each, np.int64), 0
    found = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64), array.null_count


def full(array: pa.Array, column: Column) -> None:
    """Refuse an array with nulls among its numbers."""
    while True:
        if array.null_count:
            raise missing(column)
        if not hasattr(array, "flatten"):
            return
        array = array.flatten()


def missing(column: Column) -> UserError:
    """The error where a column of numbers has nulls."""
    return UserError(
        f"column {column.name!r} has missing values (nulls) among its numbers, which an array "
        f"cannot have; fill them, or leave the column out with --fields"
    )


def value(array: pa.Array, row: int, column: Column) -> bytes | memoryview:
    """The bytes of one value."""
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
    step = 8 if str(one.type).startswith("large") else 4
    begin, end = np.frombuffer(first, f"<i{step}", 2, one.offset * step).tolist()
    return memoryview(second[0]).cast("B")[begin:end] if end > begin else b""


def strings(array: pa.Array) -> Strings:
    """Binary or string values.

    Raises:
        Unfit: some are null, or too long for a name.
    """
    import pyarrow as pa

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


def joined(parts: list[Strings]) -> Strings:
    """Several, one after another."""
    ends, at = [np.zeros(1, np.int64)], 0
    for part in parts:
        ends.append(part.ends[1:] + at)
        at += int(part.ends[-1])
    empty = np.empty(0, np.uint8)
    return Strings(np.concatenate([empty, *(part.data for part in parts)]), np.concatenate(ends))


def as_array(found: Strings) -> pa.Array:
    """As pyarrow's array, whose functions run over millions of them; shares memory."""
    import pyarrow as pa

    ends = pa.py_buffer(np.ascontiguousarray(found.ends))
    data = pa.py_buffer(np.ascontiguousarray(found.data))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(found), [None, ends, data])


class Labels:
    """Labels as they are read, part after part: numbers, or names that become numbers."""

    def __init__(self) -> None:
        self._parts: list[Int64s] = []
        self._known: dict[bytes, int] = {}

    def numbers(self, part: npt.NDArray[Any], there: npt.NDArray[np.bool_] | None = None) -> None:
        """Add whole numbers; those that are not there become -1.

        Raises:
            ValueError: they are too large, or smaller than -1, which is `no label`.
        """
        if there is not None:
            part = np.where(there, part, 0)
        if len(part) and (int(part.min()) < -1 or int(part.max()) >= 1 << 63):
            raise ValueError(
                f"has labels from {part.min()} to {part.max()}; labels are -1 (none), 0, 1, …"
            )
        found = part.astype(np.int64)
        self._parts.append(found if there is None else np.where(there, found, -1))

    def names(self, part: Strings, there: npt.NDArray[np.bool_] | None = None) -> None:
        """Add names; those that are not there become -1."""
        import pyarrow as pa
        import pyarrow.compute as pc

        array = as_array(part)
        if there is not None:
            array = pc.if_else(pa.array(there), array, None)
        coded = array.dictionary_encode()
        known = self._known
        seen = [known.setdefault(name, len(known)) for name in coded.dictionary.to_pylist()]
        codes = pc.fill_null(coded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        self._parts.append(np.array([*seen, -1], np.int64)[codes])  # -1 is the last one

    def add(self, array: pa.Array) -> None:
        """Add values of a column.

        Raises:
            Unfit, ValueError: they are no labels.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if is_bytes(array.type):
            there = pc.is_valid(array).to_numpy(zero_copy_only=False)
            self.names(strings(pc.fill_null(array.cast(pa.large_binary()), b"")), there)
            return
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        self.numbers(pc.fill_null(array.cast(pa.int64()), -1).to_numpy(zero_copy_only=False))

    def done(self) -> tuple[Int64s, tuple[bytes, ...]]:
        """The labels, and the names of classes in the order of their bytes."""
        labels = np.concatenate([np.empty(0, np.int64), *self._parts])
        names = sorted(self._known)
        if not names:
            return labels, ()
        place = {name: at for at, name in enumerate(names)}
        # One more for -1, which the last entry is.
        order = np.array([*(place[name] for name in self._known), -1], np.int64)
        return order[labels], tuple(names)


def broken() -> tuple[type[BaseException], ...]:
    """What pyarrow raises on a file that is damaged."""
    import pyarrow as pa

    return (pa.ArrowException, *BROKEN)


def width(type_: Any) -> int | None:
    """Bytes of each value of a type whose values have all the same and lie side by side."""
    import pyarrow.types as t

    type_ = plain(type_)
    if t.is_fixed_size_binary(type_):
        return int(type_.byte_width)
    if t.is_fixed_size_list(type_):
        inner = width(type_.value_type)
        return None if inner is None else inner * int(type_.list_size)
    dtype = number(type_)
    return None if dtype is None or t.is_boolean(type_) else np.dtype(dtype).itemsize
