"""One Arrow or Parquet file as it is scanned: its columns as places, keys and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..index import Int64s, UInt64s
from ..strings import Strings
from .arrow_columns import Column
from .arrow_columns import Path as ColumnPath
from .arrow_tables import Reader, pack
from .arrow_values import Labels, joined, member
from .arrow_values import lengths as lengths_of
from .arrow_values import strings as strings_of

if TYPE_CHECKING:
    import pyarrow as pa


class Spans(NamedTuple):
    """Where the values of a column lie in one file.

    Attributes:
        offset, length: int64 (rows,), as in `index.Field`.
        nulls: how many are missing; these have no bytes.
    """

    offset: Int64s
    length: Int64s
    nulls: int


class Table:
    """One file, read through pyarrow."""

    def __init__(self, reader: Reader, about: Mapping[str, Any] | None = None) -> None:
        self.reader = reader
        self.about = about  # what we wrote into it, where we did

    @property
    def schema(self) -> pa.Schema:
        """Of its columns."""
        return self.reader.schema

    def rows(self) -> int:
        """How many it has."""
        return sum(self.reader.groups)

    def _parts(self, path: ColumnPath) -> Iterator[tuple[int, pa.Array]]:
        """The values of a column, group by group, each with its number."""
        for group, rows in enumerate(self.reader.groups):
            seen = 0
            for array in self.reader.chunks(group, path[0]):
                seen += len(array)
                yield group, member(array, path)
            if seen != rows:
                raise ValueError(f"group {group} has {seen} of the {rows} rows that it should have")

    def spans(self, column: Column, file: int) -> Spans:
        """Of the values of a column; here they are known by numbers."""
        length, nulls = [np.empty(0, np.int64)], 0
        for _, array in self._parts(column.path):
            part, missing = lengths_of(array, column)
            length.append(part)
            nulls += missing
        numbers = [
            pack(file, group, np.arange(rows)) for group, rows in enumerate(self.reader.groups)
        ]
        return Spans(~np.concatenate([length[0], *numbers]), np.concatenate(length), nulls)

    def strings(self, path: ColumnPath) -> Strings:
        """The values of a column that may be keys.

        Raises:
            Unfit: they may not.
        """
        return joined([strings_of(array) for _, array in self._parts(path)])

    def labels(self, path: ColumnPath, into: Labels) -> None:
        """Add the values of a column.

        Raises:
            Unfit, ValueError: they are no labels.
        """
        for _, array in self._parts(path):
            into.add(array)

    def hashes(self, path: ColumnPath) -> UInt64s:
        """The values of a column of hashes."""
        parts = [array.to_numpy() for _, array in self._parts(path)]
        return np.concatenate([np.empty(0, np.uint64), *parts])

    def close(self) -> None:
        """Close the file."""
        self.reader.close()
