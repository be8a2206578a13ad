"""Parquet, a file or a folder of them as Hugging Face has them: read row group by row group.

Values are encoded and mostly compressed, so that none of them lies in the file as it is: all are
read through pyarrow, in order without decoding anything twice. What is taken for what: see `arrow`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..index import Index
from . import Choice
from .arrow_index import Source, files_below
from .arrow_index import scan as index_of
from .arrow_values import Tables

_WHOLE = 64 << 20  # bytes of a row group that are decoded at once
_PIECE = 16 << 20  # bytes of the pieces that a larger one is decoded in


def scan(path: Path, choice: Choice) -> Index:
    """A Parquet file, or a folder of them or with them in folders; see `Format.scan`.

    Files named `train-00000-of-00002.parquet` are split `train`, others by the last word of their
    name where that is a split's. All lengths are read, and with them each chosen column once.
    """
    files = files_below(path, ".parquet", choice.split)
    return index_of(Source("parquet", path, files, RowGroups, {}), choice)


def fallback(index: Index, root: Path) -> Tables:
    """Return what reads the values."""
    return Tables.of(index, root, RowGroups)


class RowGroups:
    """The row groups of a file; see `arrow_values.Reader`."""

    mapped = range(0)

    def __init__(self, path: Path) -> None:
        # A file read by position: a forked process may share it.
        self._source = pa.OSFile(os.fsencode(path))
        try:
            self._file = pq.ParquetFile(self._source, pre_buffer=False, buffer_size=1 << 20)
            self.schema: pa.Schema = self._file.schema_arrow
            self.groups: int = self._file.metadata.num_row_groups
        except BaseException:
            self._source.close()
            raise

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a row group, in pieces where it is large."""
        about = self._file.metadata.row_group(group)
        rows = max(1, about.num_rows)
        inside = [about.column(number) for number in range(about.num_columns)]
        names = tuple(f"{name}." for name in columns)
        bytes_ = sum(
            one.total_uncompressed_size
            for one in inside
            if f"{one.path_in_schema}.".startswith(names)  # a struct's members have names behind it
        )
        # Of small values many, of large ones few: a piece has about the same bytes.
        size = rows if bytes_ <= _WHOLE else max(1, rows * _PIECE // bytes_)
        yield from self._file.iter_batches(
            size, row_groups=[group], columns=list(columns), use_threads=False
        )

    def close(self) -> None:
        """Close the file."""
        self._source.close()
