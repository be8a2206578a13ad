"""The fallback of Arrow and Parquet: values that are compressed, or packed in bits, one by one.

Such files are groups of rows (record batches, row groups); a value is known by the numbers of its
file, group and row, which one integer holds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ...base.errors import UserError
from ..errors import BadContainer
from ..index import Index, Int64s, data_path
from ..strings import Strings
from .arrow_values import ColumnType, broken, member, value

_ROW_BITS, _GROUP_BITS, _FILE_BITS = 26, 21, 16
_HELD = 256 << 20  # bytes of decoded values that a process keeps
_READERS = 16  # files that it keeps open


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
        self._mine = threading.local()

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
        except broken() as error:
            raise BadContainer(
                f"{path}: row {row} of group {group} cannot be read: {error}"
            ) from None
        yield found

    def _at(self, path: Path, group: int, row: int, field: str) -> tuple[pa.Array, int]:
        """The piece that a row is in, and the row it begins at."""
        column = self._columns[field]
        mine = self._mine.__dict__
        if mine.get("pid") != os.getpid():
            mine.clear()
            mine.update(pid=os.getpid(), readers={}, kept={})
        place = (path, group, field)
        kept = mine["kept"].pop(place, None)
        if kept is None or row < kept.first:
            kept = _Kept(self._reader(mine["readers"], path).batches(group, column.path[:1]))
        if kept.array is None or row >= kept.first + len(kept.array):
            kept.forward(row, column)
            # The oldest go, until the rest and what just came have room.
            held = kept.size + sum(one.size for one in mine["kept"].values())
            while mine["kept"] and held > _HELD:
                held -= mine["kept"].pop(next(iter(mine["kept"]))).size
        mine["kept"][place] = kept
        return kept.array, kept.first

    def _reader(self, readers: dict[Path, Reader], path: Path) -> Reader:
        found = readers.pop(path, None) or self._opener(path)
        # A reader that is let go stays open for as long as a piece comes from it.
        if len(readers) >= _READERS:
            readers.pop(next(iter(readers)))
        readers[path] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_mine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._mine = threading.local()
