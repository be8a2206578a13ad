"""Arrow IPC, file or stream: ours, the course's (one row per batch), Hugging Face's, and others'.

Values that lie as they are in the file are indexed by their place; compressed batches, booleans
(bits) and dictionaries are read through pyarrow. A null has no bytes; `facts["nulls"]` counts them.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import keys
from ..errors import BadContainer
from ..index import Index
from . import Choice
from . import arrow_message as message
from .arrow_columns import Column, Roles, number, plain
from .arrow_files import File, files_below
from .arrow_index import Source
from .arrow_index import scan as index_of
from .arrow_mapped import Mapped
from .arrow_table import Table
from .arrow_tables import Reader, Tables
from .arrow_values import width

if TYPE_CHECKING:
    import pyarrow as pa

ABOUT = b"rankup"  # key of the schema's metadata with what we know of our own file


def scan(path: Path, choice: Choice) -> Index:
    """An Arrow file, or a folder of them; see `Format.scan`.

    A folder's files are splits by their names (`train.arrow`, `test-00000-of-00002.arrow`). Labels
    are in a column `label`, `labels`, `target`, `targets`, `y` or `cls`, or in what Hugging Face
    calls a ClassLabel; keys in one named `key`, `__key__`, `id` or `path` if its values are unique
    paths, else they are numbers.
    """
    return index_of(source(path, files_below(path, ".arrow", choice.split), {}), choice)


def source(
    path: Path, files: Sequence[File], features: Mapping[str, Any], name: str = "arrow"
) -> Source:
    """What an index of these files is made from."""
    return Source(name, path, files, opened, read, features, _ours)


def fallback(index: Index, root: Path) -> Tables:
    """Reads what has a negative offset."""
    return Tables.of(index, root, read)


def read(path: Path) -> Reader:
    """The reader of one file."""
    return _Batches(path)


@contextmanager
def opened(path: Path) -> Iterator[Table]:
    """One file, to be scanned."""
    reader = _Batches(path)
    try:
        text = (reader.schema.metadata or {}).get(ABOUT)
        about = json.loads(text) if text is not None else None
        yield Mapped(reader, reader.data, reader.blocks, about)
    finally:
        reader.close()


class _Batches:
    """The record batches of a file or stream; `groups` of a `Reader`."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        with path.open("rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise BadContainer(f"{path} is empty") from None
        self.data = np.frombuffer(mapped, np.uint8)
        self._buffer = pa.py_buffer(mapped)
        self._options = pa.ipc.IpcReadOptions(use_threads=False)
        self._file = message.is_file(self.data)
        if self._file:
            self.blocks = message.in_file(self.data)
            self.schema = pa.ipc.open_file(self._buffer).schema
        else:
            self.blocks = message.in_stream(self.data)
            self.schema = pa.ipc.open_stream(self._buffer).schema
        self._rows: list[int] | None = None

    @property
    def groups(self) -> list[int]:
        if self._rows is None:
            self._rows = message.rows(self.data, self.blocks).tolist()
        return self._rows

    def chunks(self, group: int, column: str) -> Iterator[pa.Array]:
        import pyarrow as pa

        at = self.schema.get_field_index(column)
        if self._file:
            options = pa.ipc.IpcReadOptions(included_fields=[at], use_threads=False)
            array = pa.ipc.open_file(self._buffer, options=options).get_batch(group).column(0)
        else:
            if self.blocks.dictionaries:
                raise ValueError("a stream with dictionaries cannot be read at random")
            start = int(self.blocks.offset[group])
            stop = start + int(self.blocks.head[group] + self.blocks.body[group])
            one = pa.ipc.read_message(self._buffer.slice(start, stop - start))
            array = pa.ipc.read_record_batch(one, self.schema).column(at)
        array.validate(full=True)
        yield array

    def close(self) -> None:
        """Nothing to do: the map ends with the last view of it."""


def _ours(schema: pa.Schema, about: Any, where: str) -> Roles:
    """What we wrote into our own file, believed as far as the columns bear it out.

    Raises:
        BadContainer: they do not.
    """
    try:
        fields = []
        hashes = []
        for one in about["fields"]:
            type_ = plain(schema.field(str(one["column"])).type)
            shape = tuple(map(int, one["shape"]))
            column = Column(
                str(one["name"]), (str(one["column"]),), type_, str(one["dtype"]), shape
            )
            if column.dtype:
                size = np.dtype(column.dtype).itemsize * int(np.prod(shape, dtype=np.int64))
                if np.dtype(column.dtype).hasobject or min(shape, default=0) < 0:
                    raise ValueError(f"its field {column.name} is no array")
                if width(type_) != size:
                    raise ValueError(f"its field {column.name} is not of the shape that it says")
            elif str(type_) != "large_binary":
                raise ValueError(f"its field {column.name} is {type_}")
            fields.append(column)
            hashes.append((str(one["hash"]),))
            if number(schema.field(hashes[-1][0]).type) != "<u8":
                raise ValueError("its hashes are none")
        label = (str(about["label"]),) if about["label"] is not None else None
        if not fields or (label and number(schema.field(label[0]).type) != "<i8"):
            raise ValueError("it has no fields, or labels that are none")
        classes = tuple(map(str, about["classes"]))
        split = (str(about["split"]), str(about["folder"]))
        for name in filter(None, (split[0] or "/", split[1])):
            if not keys.safe(name.encode("utf-8", "surrogateescape")):
                raise ValueError(f"its split {name!r} is no name of a folder")
        key = (str(about["key"]),)
        schema.field(key[0])
    except (KeyError, TypeError, ValueError, OverflowError, SyntaxError) as error:
        raise BadContainer(f"{where} says that rankup wrote it, and is damaged: {error}") from None
    return Roles(tuple(fields), label, key, True, classes, tuple(hashes), split)
