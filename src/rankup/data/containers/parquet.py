"""Parquet, a file or a folder of them as Hugging Face has them: read row group by row group.

Values are encoded and mostly compressed, so that none of them lies in the file as it is: all are
read through pyarrow, in order without decoding anything twice. What is taken for what: see `arrow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..index import Index
from . import Choice
from .arrow_files import files_below
from .arrow_index import Source
from .arrow_index import scan as index_of
from .arrow_table import Table
from .arrow_tables import Reader, Tables

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = 64 << 20  # bytes of a column of a row group that is decoded at once
_PIECE = 16 << 20  # bytes of the pieces that a larger one is decoded in


def scan(path: Path, choice: Choice) -> Index:
    """A Parquet file, or a folder of them or with them in `data/`; see `Format.scan`.

    Files named `train-00000-of-00002.parquet` are split `train`, others by the last word of their
    name where that is a split's. All lengths are read, and with them each chosen column once.
    """
    files = files_below(path, ".parquet", choice.split)
    return index_of(Source("parquet", path, files, _opened, read, {}), choice)


def fallback(index: Index, root: Path) -> Tables:
    """Reads the values."""
    return Tables.of(index, root, read)


def read(path: Path) -> Reader:
    """The reader of one file."""
    return _RowGroups(path)


@contextmanager
def _opened(path: Path) -> Iterator[Table]:
    reader = _RowGroups(path)
    try:
        yield Table(reader)
    finally:
        reader.close()


class _RowGroups:
    """The row groups of a file."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # A file read by position: a forked process may share it.
        self._source = pa.OSFile(str(path))
        try:
            self._file = pq.ParquetFile(self._source, pre_buffer=False, buffer_size=1 << 20)
            self.schema: pa.Schema = self._file.schema_arrow
            metadata = self._file.metadata
            self.groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        except BaseException:
            self._source.close()
            raise
        if any(rows < 0 for rows in self.groups):
            raise ValueError("a row group has a negative number of rows")

    def chunks(self, group: int, column: str) -> Iterator[pa.Array]:
        rows = max(1, self.groups[group])
        about = self._file.metadata.row_group(group)
        inside = [about.column(number) for number in range(about.num_columns)]
        bytes_ = sum(
            one.total_uncompressed_size
            for one in inside
            if one.path_in_schema == column or one.path_in_schema.startswith(f"{column}.")
        )
        # Of small values many, of large ones few: a piece has about the same bytes.
        size = rows if bytes_ <= _WHOLE else max(1, rows * _PIECE // bytes_)
        for batch in self._file.iter_batches(
            size, row_groups=[group], columns=[column], use_threads=False
        ):
            array = batch.column(0)
            array.validate(full=True)
            yield array

    def close(self) -> None:
        """Close the file."""
        self._source.close()
