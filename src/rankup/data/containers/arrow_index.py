"""From tables to an index: which files are which splits, and what their rows are called.

Shared by Arrow files, Hugging Face's folders and Parquet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...base.errors import UserError
from .. import images
from .. import keys as key_rules
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split
from ..roles import kind_of, split_in, split_order
from ..strings import Strings
from . import Choice
from .arrow_columns import ABOUT, Column, Roles, features_of, is_text, roles, same
from .arrow_columns import Path as ColumnPath
from .arrow_tables import Opener, Reader, pack
from .arrow_values import (
    Unfit,
    as_array,
    broken,
    check_full,
    gathered,
    labels,
    lengths,
    member,
    places,
    strings,
    value,
)

# As Hugging Face names the files of a split: `train-00000-of-00008.parquet`.
_NUMBERED = re.compile(r"^(.+?)-\d{2,6}-of-\d{2,6}$")
# What every key that is not safe has in it, see `keys.safe`, but for too many bytes.
_DOUBTFUL = r"\\|\x00|(^|/)\.{0,2}(/|$)"


class File(NamedTuple):
    """A file of a data set.

    Attributes:
        name: relative to the container, empty where it is that itself.
        split, folder: what its rows belong to.
    """

    name: str
    split: str
    folder: str = ""


@dataclass(frozen=True)
class Source:
    """The files and the reader that an index is made from.

    Attributes:
        container: the name of the format.
        root: the folder, or the file.
        files: in the order of their splits.
        opener: opens one.
        features: Hugging Face's description, where it is not in the files.
    """

    container: str
    root: Path
    files: Sequence[File]
    opener: Opener
    features: Mapping[str, Any]


def files_below(path: Path, suffix: str, split: str) -> list[File]:
    """Return the files of a folder with their splits, in order, or the one file that is given.

    Raises:
        UserError: there is none.
    """
    if not path.is_dir():
        found = split_of(path.name.removesuffix(suffix))
        return [File("", found or split, "")]
    names = sorted(
        os.path.relpath(one, path)
        for pattern in (f"*{suffix}", f"*/*{suffix}")
        for one in path.glob(pattern)
        if not one.name.startswith(".") and one.is_file()
    )
    if not names:
        raise UserError(f"{path} has no {suffix} files, neither directly nor one folder below")
    files = []
    for name in names:
        folder, _, base = name.rpartition("/")
        told = folder if kind_of(folder) else split_of(base.removesuffix(suffix))
        files.append(File(name, told or split, told))
    return in_order(files)


def in_order(files: Iterable[File]) -> list[File]:
    """By split, then as they came."""
    return sorted(files, key=lambda one: split_order(one.split))


def split_of(stem: str) -> str:
    """The split that a file's name tells: `imagenet-train`, `test-00000-of-00002`; or nothing."""
    numbered = _NUMBERED.match(stem)
    if numbered is None:
        return split_in(stem)
    last = re.split(r"[-_.]", numbered[1])[-1]
    return last if kind_of(last) else numbered[1]  # `train_extra` is not `train`


def scan(source: Source, choice: Choice) -> Index:
    """Return the index of all rows of some files, in their order.

    Raises:
        BadContainer, UserError, OSError: as `Format.scan`.
    """
    unfit: list[ColumnPath] = []
    while True:
        files, taken = _roles(source, choice, unfit)
        if taken.key is None:
            return _index(source, files, taken, None)
        try:
            names = _keys(source, files, taken.key)
        except Unfit as why:
            if taken.asked:
                raise BadContainer(
                    f"{source.root}: column {taken.key[0]!r} cannot be keys: {why}"
                ) from None
            unfit.append(taken.key)
        else:
            return _index(source, files, taken, names)


@contextmanager
def _open(source: Source, file: File) -> Iterator[tuple[Reader, Path]]:
    path = source.root / file.name if file.name else source.root
    try:
        reader = source.opener(path)
        try:
            yield reader, path
        finally:
            reader.close()
    except (UserError, Unfit):
        raise
    except broken() as error:
        if isinstance(error, OSError) and error.errno:
            raise
        first = str(error).partition("\n")[0] or type(error).__name__
        raise BadContainer(f"{path} is damaged, or not what its name says: {first}") from None


def _roles(source: Source, choice: Choice, unfit: Sequence[ColumnPath]) -> tuple[list[File], Roles]:
    """Return what all files have in common, and these with the splits that our own ones are."""
    found, files = [], []
    for file in source.files:
        with _open(source, file) as (reader, path):
            metadata = reader.schema.metadata
            features = source.features or features_of(metadata)
            found.append((str(path), roles(reader.schema, choice, features, str(path), unfit)))
        if metadata and ABOUT in metadata:  # rankup names its files after their splits
            file = file._replace(split=path.stem, folder=path.stem)
        files.append(file)
    return in_order(files), same(found)


def _column(source: Source, file: File, path: ColumnPath) -> Iterator[pa.Array]:
    """The values of a column of one file, many at a time."""
    with _open(source, file) as (reader, _):
        batches = (
            batch for group in range(reader.groups) for batch in reader.batches(group, path[:1])
        )
        yield from gathered(member(batch.column(0), path) for batch in batches)


def _keys(source: Source, files: Sequence[File], path: ColumnPath) -> Strings:
    parts = [Strings.joined(list(map(strings, _column(source, file, path)))) for file in files]
    found = Strings.joined(parts)
    array = as_array(found)
    # One search over all of them: the rule in Python would take a second per million.
    for row in np.flatnonzero(pc.match_substring_regex(array, _DOUBTFUL).to_numpy(False)):
        if not key_rules.safe(found[int(row)]):
            shown = key_rules.shown(found[int(row)])
            raise Unfit(f"{shown} cannot be a path below a folder")
    for split in _splits(files, [len(one) for one in parts]):
        some = array.slice(split.start, split.stop - split.start)
        ascend = pc.all(pc.less(some[:-1], some[1:])).as_py()  # ours do, and so are all different
        if ascend is False and pc.count_distinct(some).as_py() != len(some):
            raise Unfit("some of its values occur twice")
    return found


class _Spans:
    """Where the values of a column lie, in all files.

    Attributes:
        nulls: how many are missing; these have no bytes.
        head: the first bytes of the first value that has any.
    """

    def __init__(self, column: Column) -> None:
        self.column = column
        self.nulls, self.head = 0, b""
        self._offsets: list[Int64s] = [np.empty(0, np.int64)]
        self._lengths: list[Int64s] = [np.empty(0, np.int64)]

    def add(self, array: pa.Array, mapped: range, numbers: tuple[int, int, int]) -> None:
        """Add the values of a batch.

        Args:
            numbers: of its file, its group, and of its first row in that.
        """
        if self.column.dtype:
            check_full(array, self.column)
        found = places(array, mapped)
        if found is None:
            array.validate(full=True)
            file, group, first = numbers
            offset = ~pack(file, group, np.arange(first, first + len(array)))
            length = lengths(array, self.column)
        else:
            offset, length = found
        if array.null_count:
            self.nulls += array.null_count
            length = np.where(pc.is_valid(array).to_numpy(zero_copy_only=False), length, 0)
        if not self.head and not self.column.dtype and length.any():
            self.head = bytes(value(array, int(np.argmax(length > 0)), self.column)[:32])
        self._offsets.append(offset)
        self._lengths.append(length)

    def field(self, root: Path, sizes: Int64s, of_file: npt.NDArray[np.uint32] | None) -> Field:
        """Return the field that the column becomes."""
        column, shape = self.column, self.column.shape
        offset, length = np.concatenate(self._offsets), np.concatenate(self._lengths)
        if int(length[offset >= 0].sum()) > int(sizes.sum()):
            raise BadContainer(
                f"{root}: the values of column {column.name!r} are longer together than the file: "
                "its record batches overlap"
            )
        if shape is None:
            if len(length) and (length != length[0]).any():
                raise UserError(
                    f"{root}: column {column.name!r} has lists of different lengths "
                    f"({length.min()} to {length.max()} bytes), which are no array; leave it out "
                    f"by naming the columns to take: --fields a,b"
                )
            first = int(length[0]) if len(length) else 0
            shape = (first // np.dtype(column.dtype).itemsize,)
        return Field(column.name, offset, length, of_file, None, column.dtype, shape)


def _index(source: Source, files: Sequence[File], taken: Roles, keys: Strings | None) -> Index:
    spans = [_Spans(column) for column in taken.fields]
    names = list(dict.fromkeys(one.path[0] for one in taken.fields))
    rows, sizes = [], np.zeros(len(files), np.int64)
    for number, file in enumerate(files):
        with _open(source, file) as (reader, path):
            sizes[number] = path.stat().st_size
            rows.append(0)
            for group in range(reader.groups):
                first = 0
                for batch in reader.batches(group, names):
                    batch.validate()
                    for one in spans:
                        array = batch.column(names.index(one.column.path[0]))
                        array = member(array, one.column.path)
                        one.add(array, reader.mapped, (number, group, first))
                    first += batch.num_rows
                rows[number] += first
    of_file = np.repeat(np.arange(len(files), dtype=np.uint32), rows) if len(files) > 1 else None
    fields = [one.field(source.root, sizes, of_file) for one in spans]
    if len(fields) == 1 and not fields[0].dtype:
        fields = [replace(fields[0], name="data")]
    facts: dict[str, Any] = {
        "columns": {one.name: list(c.path) for one, c in zip(fields, taken.fields, strict=True)}
    }
    nulls = {one.column.name: one.nulls for one in spans if one.nulls}
    if nulls:
        facts["nulls"] = nulls
    splits = _splits(files, rows)
    if keys is None:
        counts = [split.stop - split.start for split in splits]
        keys = Strings.numbered(counts, 6, _suffix(spans[0]) if len(spans) == 1 else "")
    numbers, classes = _labels(source, files, taken)
    return Index(
        source.container,
        Strings.of(file.name.encode("utf-8", "surrogateescape") for file in files),
        splits,
        keys,
        tuple(fields),
        numbers,
        classes,
        sizes,
        facts=facts,
    )


def _labels(
    source: Source, files: Sequence[File], taken: Roles
) -> tuple[Int64s | None, tuple[str, ...]]:
    if taken.label is None:
        return None, taken.classes
    path = taken.label
    try:
        numbers, names = labels(one for file in files for one in _column(source, file, path))
    except Unfit as why:
        raise UserError(f"{source.root}: column {path[0]!r} cannot be labels: {why}") from None
    if names:
        return numbers, tuple(name.decode("utf-8", "surrogateescape") for name in names)
    if taken.classes and len(numbers) and int(numbers.max()) >= len(taken.classes):
        raise BadContainer(
            f"{source.root} has label {numbers.max()}, and {len(taken.classes)} classes"
        )
    return numbers, taken.classes


def _splits(files: Sequence[File], rows: Sequence[int]) -> tuple[Split, ...]:
    splits: list[Split] = []
    at = 0
    for file, count in zip(files, rows, strict=True):
        if splits and splits[-1].name == file.split:
            splits[-1] = replace(splits[-1], stop=at + count)
        else:
            splits.append(Split(file.split, at, at + count, file.folder))
        at += count
    return tuple(splits)


def _suffix(of: _Spans) -> str:
    """Return what files of the samples would end with, by the first one that has bytes."""
    if of.column.dtype:
        return ""
    return images.suffix_of(of.head) or (".txt" if is_text(of.column.type) else ".bin")
