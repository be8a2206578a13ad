"""Arrow IPC, file or stream: ours, the course's (one row per batch), Hugging Face's, and others'.

Values that lie as they are in the file are indexed by their place; compressed batches, booleans
(bits), views and dictionaries are read through pyarrow. A null has no bytes; `facts["nulls"]`
counts them.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...base.errors import UserError
from .. import keys
from ..errors import BadContainer
from ..index import Index
from . import Choice
from .arrow_index import File, Source, files_below, in_order
from .arrow_index import scan as index_of
from .arrow_values import Tables
from .detect import HUGGING_FACE


def scan(path: Path, choice: Choice) -> Index:
    """An Arrow file, or a folder of them, also as `save_to_disk` makes it; see `Format.scan`.

    A folder's files are splits by their names (`train.arrow`, `test-00000-of-00002.arrow`), or as
    Hugging Face's JSON beside them says. Labels are in a column of `roles.LABELS`, or in what it
    calls a ClassLabel; keys in one of `roles.KEYS` if its values are unique paths, else they are
    numbers. A file that rankup has written is read as any other, without its hashes: what is known
    of it stands in its index.
    """
    if path.is_dir() and any((path / name).exists() for name in HUGGING_FACE):
        files, features = _saved(path, choice)
        return index_of(Source("hf", path, in_order(files), RecordBatches, features), choice)
    files = files_below(path, ".arrow", choice.split)
    return index_of(Source("arrow", path, files, RecordBatches, {}), choice)


def _saved(path: Path, choice: Choice) -> tuple[list[File], dict[str, Any]]:
    """The files of `save_to_disk`, of one data set or several splits, and what they hold."""
    if (path / "dataset_dict.json").is_file():
        splits = _json(path / "dataset_dict.json").get("splits")
        if not isinstance(splits, list) or not splits:
            raise BadContainer(f"{path / 'dataset_dict.json'} lists no splits")
        folders = [(str(split), str(split)) for split in splits]
    else:
        folders = [("", choice.split)]
    files: list[File] = []
    features: dict[str, Any] = {}
    for folder, split in folders:
        if folder and (not keys.safe(folder.encode("utf-8", "replace")) or "/" in folder):
            raise BadContainer(f"{path / 'dataset_dict.json'} has a split {folder!r}")
        files += _files(path, folder, split)
        info = path / folder / "dataset_info.json"
        found = _json(info).get("features") if info.is_file() else None
        if isinstance(found, dict):
            if features and found != features:
                raise UserError(
                    f"the splits of {path} have different columns or classes; pack them apart"
                )
            features = found
    return files, features


def _files(path: Path, folder: str, split: str) -> list[File]:
    state = path / folder / "state.json"
    if not state.is_file():
        raise BadContainer(
            f"{path / folder} has no state.json, so it was not saved by save_to_disk, or not wholly"
        )
    about = _json(state)
    if about.get("_indices_files"):
        raise UserError(
            f"{state} selects rows through a list of indices; save the data set anew after "
            f"flatten_indices()"
        )
    listed = about.get("_data_files")
    try:
        names = [str(one["filename"]) for one in listed or []]
    except (TypeError, KeyError):
        raise BadContainer(f"{state} does not list its files") from None
    if not names:
        raise BadContainer(f"{state} lists no files")
    for name in names:
        if not keys.safe(name.encode("utf-8", "replace")) or "/" in name:
            raise BadContainer(f"{state} lists {name!r}, which is no file of this folder")
        if not (path / folder / name).is_file():
            raise BadContainer(f"{state} lists {name}, which is missing in {path / folder}")
    return [File(f"{folder}/{name}" if folder else name, split, folder) for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadContainer(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadContainer(f"{path} should hold a JSON object, and holds {type(found).__name__}")
    return found


def fallback(index: Index, root: Path) -> Tables:
    """Return what reads values with a negative offset."""
    return Tables.of(index, root, RecordBatches)


class RecordBatches:
    """The record batches of a file or stream, mapped; see `arrow_values.Reader`."""

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
