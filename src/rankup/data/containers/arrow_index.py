"""From the columns of Arrow's and Parquet's files to an index: which files are which splits."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from ...base.errors import UserError
from .. import images, keys
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Strings
from ..keys import KEYS, LABELS, kind_of, split_in, split_order
from . import Choice
from .arrow_layout import ABOUT
from .arrow_values import (
    BROKEN,
    Opener,
    Reader,
    check_full,
    column_type,
    gathered,
    is_bytes,
    is_text,
    lengths,
    member,
    pack,
    places,
    plain,
    value,
)
from .columns import NO_KEYS, Column, Table, check_known, indexed

# As Hugging Face names the files of a split: `train-00000-of-00008.parquet`.
_NUMBERED = re.compile(r"^(.+?)-\d{2,6}-of-\d{2,6}$")


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


@contextmanager
def _open(source: Source, file: File) -> Iterator[tuple[Reader, Path]]:
    path = source.root / file.name if file.name else source.root
    try:
        reader = source.opener(path)
        try:
            yield reader, path
        finally:
            reader.close()
    except UserError:
        raise
    except BROKEN as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: BaseException) -> BaseException:
    if isinstance(error, OSError) and error.errno:
        return error
    first = str(error).partition("\n")[0] or type(error).__name__
    return BadContainer(f"{path} is damaged, or not what its name says: {first}")


def scan(source: Source, choice: Choice) -> Index:
    """Return the index of all rows of some files, in their order.

    Raises:
        BadContainer, UserError, OSError: as `Format.scan`.
    """
    try:
        return _scan(source, choice)
    except BadContainer as error:
        inside = str(error).startswith(str(source.root))
        raise error if inside else BadContainer(f"{source.root}: {error}") from None
    except UserError as error:
        raise UserError(f"{source.root}: {error}") from None
    except BROKEN as error:  # by what a schema says
        raise _damaged(source.root, error) from None


def _scan(source: Source, choice: Choice) -> Index:
    found = []
    for file in source.files:
        with _open(source, file) as (reader, path):
            if len(set(reader.schema.names)) < len(reader.schema.names):
                raise UserError(
                    f"{path.name} has two columns of one name, which cannot be told apart"
                )
            if ABOUT in (reader.schema.metadata or {}):  # rankup names its files after their splits
                file = file._replace(split=path.stem, folder=path.stem)
            found.append((file, reader.schema, path.stat().st_size))
    found.sort(key=lambda one: split_order(one[0].split))
    files = [file for file, _, _ in found]
    columns: list[_Column] = []
    # A split of which a column is nothing but nulls is without it, if others are not.
    valued = {name for _, schema, _ in found for name in schema.names if _has_values(schema, name)}
    tables, at = [], 0
    for split, some in itertools.groupby(found, lambda one: one[0].split):
        here = [(at + row, file, schema) for row, (file, schema, _) in enumerate(some)]
        names = dict.fromkeys(
            name
            for _, _, schema in here
            for name in schema.names
            if name not in valued or any(_has_values(one, name) for _, _, one in here)
        )
        rows: list[int] = []
        made = [
            _Column(source, name, here, rows) for name in names if not _is_hash(here[0][2], name)
        ]
        tables.append(Table(split, here[0][1].folder, {one.name: one for one in made}))
        columns += made
        at += len(here)
    check_known(choice, {one.name for one in columns}, "column")
    index = indexed(source.container, tables, choice, 0, width=6)
    by_name = {one.name: one for one in columns}
    taken = {field: list(by_name[name].type.path) for field, name in index.facts["columns"].items()}
    nulls: Counter[str] = Counter()
    for one in columns:
        nulls[one.name] += one.nulls
    facts: dict[str, Any] = {"columns": taken, "nulls": dict(+nulls)}
    alone = [replace(one, file=None) for one in index.fields]
    return replace(
        index,
        files=Strings.of(file.name.encode("utf-8", "surrogateescape") for file in files),
        sizes=np.array([size for _, _, size in found], np.int64),
        fields=index.fields if len(files) > 1 else tuple(alone),
        facts=facts if facts["nulls"] else {"columns": taken},
    )


def _has_values(schema: pa.Schema, name: str) -> bool:
    """Return True where a file has a column that is not of the type of nothing but nulls."""
    return name in schema.names and not t.is_null(schema.field(name).type)


def _is_hash(schema: pa.Schema, name: str) -> bool:
    """Return True for a column of the hashes that rankup has put into its own file."""
    ours = ABOUT in (schema.metadata or {})
    return ours and name.rstrip("_").endswith("hash") and str(schema.field(name).type) == "uint64"


class _Column(Column):
    """A column of the files of a split; each is read through for itself.

    Args:
        files: with their numbers and schemas.
        rows: of each file, shared by all columns of the split; filled when one is read.

    Attributes:
        nulls: values that are missing, of those that `field` has read; these have no bytes.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        files: Sequence[tuple[int, File, pa.Schema]],
        rows: list[int],
    ) -> None:
        self._source, self.name, self._files, self._rows = source, name, files, rows
        self._schemas = [schema for _, _, schema in files]
        self.nulls, self._head = 0, b""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return _kind(self._first)

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._classes[0]

    def rows(self) -> int:
        return sum(self._rows)

    def values(self) -> Any:
        return self._values((self.name,))

    def names(self) -> Strings:
        """The paths in a struct, as Hugging Face has them beside images and sounds."""
        type_ = plain(self._first)
        at = type_.get_field_index("path") if t.is_struct(type_) else -1
        beside = at >= 0 and is_text(type_.field(at).type)
        return self._values((self.name, "path")) if beside else NO_KEYS

    @property
    def _first(self) -> Any:
        """The type in the first file that has it, and not as nothing but nulls."""
        types = [one.field(self.name).type for one in self._schemas if self.name in one.names]
        return next((one for one in types if not t.is_null(one)), types[0])

    @cached_property
    def _classes(self) -> list[tuple[str, ...]]:
        """The names of classes that its files know: of all the same, or it cannot be labels."""
        files = (one for one in self._schemas if self.name in one.names)
        found = (self._source.features or _features(one.metadata) for one in files)
        return list(dict.fromkeys(_classes(one, self.name) for one in found))

    @cached_property
    def type(self) -> Any:
        """The type in all files of the split.

        Raises:
            UserError: they differ, or it cannot be samples.
        """
        if not keys.safe(self.name.encode("utf-8", "surrogateescape")) or "/" in self.name:
            raise UserError(
                f"a column named {keys.shown(self.name.encode())} cannot be a field, since files "
                "are named after it; choose others with --fields"
            )
        valued = sum(_has_values(one, self.name) for one in self._schemas)
        if 0 < valued < len(self._schemas):
            raise self._different()
        types = {column_type(self.name, one.field(self.name).type) for one in self._schemas}
        if len(types) > 1:
            raise self._different()
        return next(iter(types))

    def _different(self) -> UserError:
        found: dict[str, str] = {}
        for _, file, schema in self._files:
            type_ = str(schema.field(self.name).type) if self.name in schema.names else "none"
            found.setdefault(type_, file.name)
        # Names of types where these differ, not only the names of classes.
        about = ", ".join(f"{type_} in {name}" for type_, name in found.items())
        about = f" ({about})" if len(found) > 1 else ""
        first, *others = self._schemas
        shared = ",".join(
            one.name
            for one in first
            if one.name.lower() not in (*KEYS, *LABELS)
            and all(
                one.name in more.names and more.field(one.name).type == one.type for more in others
            )
        )
        share = f", or choose what they share with --fields {shared} and --label" if shared else ""
        return UserError(
            f"its files have different columns or classes, as {self.name}{about}, and cannot be "
            f"one data set; pack them apart{share}"
        )

    def field(self, first: int) -> Field:
        """Return the field that it becomes."""
        type_ = self.type
        offsets: list[Int64s] = [np.empty(0, np.int64)]
        sizes: list[Int64s] = [np.empty(0, np.int64)]
        rows, total = [], 0
        for number, file, _ in self._files:
            with _open(self._source, file) as (reader, path):
                total += path.stat().st_size
                rows.append(0)
                for group in range(reader.groups):
                    row = 0
                    for batch in reader.batches(group, type_.path[:1]):
                        batch.validate()
                        array = member(batch.column(0), type_.path)
                        offset, length = self._places(array, reader.mapped, (number, group, row))
                        offsets.append(offset)
                        sizes.append(length)
                        row += len(array)
                    rows[-1] += row
        self._rows[:] = rows
        offset, length = np.concatenate(offsets), np.concatenate(sizes)
        if int(length[offset >= 0].sum()) > total:
            raise BadContainer(
                f"the values of column {self.name!r} are longer together than the file: its "
                "record batches overlap"
            )
        shape = type_.shape
        if shape is None:
            if len(length) and (length != length[0]).any():
                raise UserError(
                    f"column {self.name!r} has lists of different lengths ({length.min()} to "
                    f"{length.max()} bytes), which are no array; leave it out by naming the "
                    "columns to take: --fields a,b"
                )
            shape = (int(length[0] if len(length) else 0) // np.dtype(type_.dtype).itemsize,)
        of_file = np.repeat(np.array([one[0] for one in self._files], np.uint32), rows)
        return Field("", offset, length, of_file, None, type_.dtype, shape)

    def _places(
        self, array: pa.Array, mapped: range, numbers: tuple[int, int, int]
    ) -> tuple[Int64s, Int64s]:
        """Offsets and lengths of the values of a batch, by its file, group and first row in it."""
        type_ = self.type
        if type_.dtype:
            check_full(array, type_)
        found = places(array, mapped)
        if found is None:
            array.validate(full=True)
            file, group, first = numbers
            offset = ~pack(file, group, np.arange(first, first + len(array)))
            length = lengths(array, type_)
        else:
            offset, length = found
        if array.null_count:
            self.nulls += array.null_count
            length = np.where(pc.is_valid(array).to_numpy(zero_copy_only=False), length, 0)
        if not self._head and not type_.dtype and length.any():
            self._head = bytes(value(array, int(np.argmax(length > 0)), type_)[:32])
        return offset, length

    def suffix(self) -> str:
        if self.type.dtype:
            return ""
        return images.suffix_of(self._head) or (".txt" if self.type.text else ".bin")

    def _values(self, path: tuple[str, ...]) -> Any:
        """All values of labels or keys, many batches at a time since one may have one row."""
        if len(self._classes) > 1 or not all(self.name in one.names for one in self._schemas):
            raise self._different()
        texts: list[Strings] = []
        numbers: list[npt.NDArray[Any]] = [np.empty(0, np.int64)]
        for _, file, _ in self._files:
            with _open(self._source, file) as (reader, _):
                groups = range(reader.groups)
                batches = (one for group in groups for one in reader.batches(group, path[:1]))
                for array in gathered(member(batch.column(0), path) for batch in batches):
                    if t.is_null(array.type):
                        array = array.cast(pa.int64() if self.kind == "number" else pa.binary())
                    if is_bytes(array.type):
                        texts.append(_strings(array))
                        continue
                    if t.is_boolean(array.type):
                        array = array.cast(pa.int8())
                    found = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.int64)
                    there = pc.is_valid(array).to_numpy(zero_copy_only=False)
                    numbers.append(np.where(there, found, -1))
        if texts and len(numbers) > 1:
            raise self._different()
        is_number = path[1:] == () and self.kind == "number"
        return np.concatenate(numbers) if is_number else Strings.joined(texts)


def _strings(array: pa.Array) -> Strings:
    """The values of an array of texts or bytes, none of them copied; a null is empty."""
    array = array.cast(pa.large_binary())
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, ends, data = array.buffers()
    found = np.frombuffer(ends, np.int64, len(array) + 1, array.offset * 8)
    part = np.frombuffer(data or b"", np.uint8)[int(found[0]) : int(found[-1])]
    return Strings(part, found - found[0])


def _kind(type_: Any) -> str:
    """The kind of a column, see `columns.Column`."""
    of = type_.value_type if t.is_dictionary(type_) else type_
    if t.is_integer(of) or t.is_boolean(of):
        return "number"
    return "text" if is_text(of) else "bytes" if is_bytes(type_) else ""


def _features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """Hugging Face's description of the columns, from a schema's metadata; empty without one."""
    try:
        about = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        found = about["info"]["features"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _classes(features: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The names of a ClassLabel of Hugging Face's; empty for other columns."""
    about = features.get(name)
    if not isinstance(about, dict) or about.get("_type") != "ClassLabel":
        return ()
    names = about.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()
