"""Arrow IPC, file or stream: ours, the course's (one row per batch), Hugging Face's, and others'.

Values that lie as they are in the file are indexed by their place; compressed batches, booleans
(bits), views and dictionaries are read through pyarrow. A null has no bytes; `facts["nulls"]`
counts them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import BadContainer
from ..index import Index
from . import Choice
from .arrow_index import File, Source, files_below
from .arrow_index import scan as index_of
from .arrow_tables import Tables


def scan(path: Path, choice: Choice) -> Index:
    """An Arrow file, or a folder of them; see `Format.scan`.

    A folder's files are splits by their names (`train.arrow`, `test-00000-of-00002.arrow`). Labels
    are in a column of `roles.LABELS`, or in what Hugging Face calls a ClassLabel; keys in one of
    `roles.KEYS` if its values are unique paths, else they are numbers. A file that rankup has
    written is read as any other, without its hashes: what is known of it stands in its index.
    """
    return index_of(source(path, files_below(path, ".arrow", choice.split), {}), choice)


def source(
    path: Path, files: Sequence[File], features: Mapping[str, Any], name: str = "arrow"
) -> Source:
    """Return what an index of these files is made from."""
    return Source(name, path, files, RecordBatches, features)


def fallback(index: Index, root: Path) -> Tables:
    """Return what reads values with a negative offset."""
    return Tables.of(index, root, RecordBatches)


class RecordBatches:
    """The record batches of a file or stream, mapped; see `arrow_tables.Reader`."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise BadContainer(f"{path} is empty") from None
        self._buffer = pa.py_buffer(mapped)
        self.mapped = range(self._buffer.address, self._buffer.address + self._buffer.size)
        self._messages: list[pa.Message | pa.RecordBatch] | None = None
        if mapped[:6] == b"ARROW1":
            self._file = pa.ipc.open_file(self._buffer)
            self._apart: dict[tuple[str, ...], pa.RecordBatchFileReader] = {}
            self.schema, self.groups = self._file.schema, self._file.num_record_batches
            self._decoded = self.groups > 0 and not self._lies(self._file.get_batch(0))
        else:
            self.schema = pa.ipc.open_stream(self._buffer).schema
            self._messages = self._of_stream()
            self.groups = len(self._messages)

    def _of_stream(self) -> list[pa.Message | pa.RecordBatch]:
        """The batches of a stream; not decompressed, but where dictionaries stand between them."""
        _, *messages = pa.ipc.MessageReader.open_stream(self._buffer)
        if any(one.type == "dictionary" for one in messages):
            return list(pa.ipc.open_stream(self._buffer))
        return messages

    def _lies(self, batch: pa.RecordBatch) -> bool:
        """Return True where the buffers of a batch are those of the file, not decoded ones."""
        buffers = (one for column in batch.columns for one in column.buffers())
        return all(one is None or not one.size or one.address in self.mapped for one in buffers)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The batch of a number, with some columns; nothing of it is copied that needs not be."""
        if self._messages is None:
            batch = (self._only(tuple(columns)) if self._decoded else self._file).get_batch(group)
        else:
            batch = self._messages[group]
            if isinstance(batch, pa.Message):
                batch = pa.ipc.read_record_batch(batch, self.schema)
        # No type needs less than a bit per row, but for those of no width.
        if batch.num_rows > 8 * len(self.mapped):
            raise ValueError("a record batch has more rows than the file has bits")
        yield batch.select(list(columns))

    def _only(self, columns: tuple[str, ...]) -> pa.RecordBatchFileReader:
        """A reader that decodes some columns only, and copies them."""
        if columns not in self._apart:
            numbers = [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=numbers, use_threads=False)
            self._apart[columns] = pa.ipc.open_file(self._buffer, options=options)
        return self._apart[columns]

    def close(self) -> None:
        """Do nothing: the map ends with the last view of it."""
