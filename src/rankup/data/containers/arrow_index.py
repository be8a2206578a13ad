"""From tables to an index: which files are which splits, and what their rows are called.

Shared by Arrow files, Hugging Face's folders and Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import keys as key_rules
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, UInt64s, data_path
from ..strings import Strings
from . import Choice
from .arrow_columns import Column, Roles, features_of, roles, same
from .arrow_columns import Path as ColumnPath
from .arrow_files import File, in_order
from .arrow_table import Spans, Table
from .arrow_tables import Reader, Tables
from .arrow_values import Labels, Unfit, as_array, broken, joined

if TYPE_CHECKING:
    import pyarrow as pa

# What every key that is not safe has in it, see `keys.safe`, but for too many bytes.
_DOUBTFUL = r"\\|\x00|(^|/)\.{0,2}(/|$)"
_BEGINS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"RIFF": ".webp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"fLaC": ".flac",
    b"OggS": ".ogg",
}


Opener = Callable[[Path], AbstractContextManager[Table]]
# Of the columns of one file: what is taken.
Ours = Callable[["pa.Schema", Mapping[str, Any], str], Roles]


@dataclass(frozen=True)
class Source:
    """What an index is made from.

    Attributes:
        container: the name of the format.
        root: the folder, or the file.
        files: in the order of their splits.
        opener: opens one.
        fallback: makes what reads values that do not lie in one piece.
        features: Hugging Face's description, where it is not in the files.
        ours: what is taken from a file that rankup wrote.
    """

    container: str
    root: Path
    files: Sequence[File]
    opener: Opener
    reader: Callable[[Path], Reader]
    features: Mapping[str, Any]
    ours: Ours | None = None


def scan(source: Source, choice: Choice) -> Index:
    """The index of all rows of some files, in their order.

    Raises:
        BadContainer, UserError, OSError: as `Format.scan`.
    """
    unfit: list[ColumnPath] = []
    while True:
        files, taken = _roles(source, choice, unfit)
        if taken.key is None:
            names = None
            break
        try:
            names = _keys(source, files, taken.key)
            break
        except Unfit as why:
            if taken.asked or taken.split:
                raise BadContainer(
                    f"{source.root}: column {taken.key[0]!r} cannot be keys: {why}"
                ) from None
            unfit.append(taken.key)
    return _index(source, files, taken, names)


@contextmanager
def _open(source: Source, file: File) -> Iterator[tuple[Table, Path]]:
    path = source.root / file.name if file.name else source.root
    try:
        with source.opener(path) as table:
            yield table, path
    except (UserError, Unfit):
        raise
    except broken() as error:
        if isinstance(error, OSError) and error.errno:
            raise
        first = str(error).partition("\n")[0] or type(error).__name__
        raise BadContainer(f"{path} is damaged, or not what its name says: {first}") from None


def _roles(source: Source, choice: Choice, unfit: Sequence[ColumnPath]) -> tuple[list[File], Roles]:
    """Of all files, and these with the splits that our own ones know."""
    found, files = [], []
    for file in source.files:
        with _open(source, file) as (table, path):
            features = source.features or features_of(table.schema.metadata)
            if table.about is not None and source.ours and not (choice.label or choice.key):
                taken = source.ours(table.schema, table.about, str(path))
            else:
                taken = roles(table.schema, choice, features, str(path), unfit)
        found.append((str(path), taken))
        files.append(File(file.name, *taken.split) if taken.split else file)
    order = in_order(files)
    taken = same(found)
    if choice.fields and taken.split:
        wanted = [n for n in range(len(taken.fields)) if taken.fields[n].name in choice.fields]
        known = {one.name for one in taken.fields}
        for name in choice.fields:
            if name not in known:
                raise UserError(
                    f"no field {name!r} in {source.root}; it has {', '.join(sorted(known))}"
                )
        taken = Roles(
            tuple(taken.fields[n] for n in wanted),
            taken.label,
            taken.key,
            taken.asked,
            taken.classes,
            tuple(taken.hashes[n] for n in wanted),
            taken.split,
        )
    return order, taken


def _keys(source: Source, files: Sequence[File], path: ColumnPath) -> Strings:
    import pyarrow.compute as pc

    parts: list[Strings] = []
    for file in files:
        with _open(source, file) as (table, _):
            parts.append(table.strings(path))
    found = joined(parts)
    array = as_array(found)
    # One search over all of them: the rule in Python would take a second per million.
    for row in np.flatnonzero(pc.match_substring_regex(array, _DOUBTFUL).to_numpy(False)):
        if not key_rules.safe(found[int(row)]):
            shown = key_rules.shown(found[int(row)])
            raise Unfit(f"{shown} cannot be a path below a folder")
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    for split in dict.fromkeys(file.split for file in files):
        mine = [n for n, file in enumerate(files) if file.split == split]
        some = array.slice(ends[mine[0]], ends[mine[-1] + 1] - ends[mine[0]])
        ascend = pc.all(pc.less(some[:-1], some[1:])).as_py()  # ours do, and so are all different
        if ascend is False and pc.count_distinct(some).as_py() != len(some):
            raise Unfit("some of its values occur twice")
    return found


def _index(source: Source, files: Sequence[File], taken: Roles, keys: Strings | None) -> Index:
    labels = Labels()
    spans: list[list[Spans]] = [[] for _ in taken.fields]
    hashes: list[list[UInt64s]] = [[] for _ in taken.hashes]
    rows = []
    sizes = []
    for number, file in enumerate(files):
        with _open(source, file) as (table, path):
            rows.append(table.rows())
            sizes.append(path.stat().st_size)
            for place, column in zip(spans, taken.fields, strict=True):
                place.append(table.spans(column, number))
            for held, column_path in zip(hashes, taken.hashes, strict=True):
                held.append(table.hashes(column_path))
            if taken.label is not None:
                _labels(table, taken.label, labels, path)
    of_file = np.repeat(np.arange(len(files), dtype=np.uint32), rows) if len(files) > 1 else None
    fields, nulls = [], {}
    for number, column in enumerate(taken.fields):
        missing = sum(part.nulls for part in spans[number])
        if missing:
            nulls[column.name] = missing
        hashed = np.concatenate(hashes[number]) if taken.hashes else None
        fields.append(_field(source, column, spans[number], of_file, hashed))
    if len(fields) == 1 and not fields[0].dtype and taken.split is None:
        fields = [_renamed(fields[0])]
    paths = {one.name: list(c.path) for one, c in zip(fields, taken.fields, strict=True)}
    facts: dict[str, Any] = {"columns": paths}
    if nulls:
        facts["nulls"] = nulls
    splits = _splits(files, rows)
    numbers, classes = _classes(source, taken, labels)
    index = Index(
        source.container,
        Strings.of(file.name.encode("utf-8", "surrogateescape") for file in files),
        splits,
        keys if keys is not None else Strings.of([]),
        tuple(fields),
        numbers,
        classes,
        np.array(sizes, np.int64),
        facts=facts,
    )
    if keys is None:
        suffix = _suffix(source, index, taken.fields[0]) if len(fields) == 1 else ""
        index = Index(**{**index.__dict__, "keys": numbered(splits, suffix)})
    return index


def _labels(table: Table, column: ColumnPath, into: Labels, path: Path) -> None:
    try:
        table.labels(column, into)
    except Unfit as why:
        raise UserError(f"{path}: column {column[0]!r} cannot be labels: {why}") from None


def _classes(source: Source, taken: Roles, labels: Labels) -> tuple[Int64s | None, tuple[str, ...]]:
    if taken.label is None:
        return None, taken.classes
    numbers, names = labels.done()
    if names:
        return numbers, tuple(name.decode("utf-8", "surrogateescape") for name in names)
    if taken.classes and len(numbers) and int(numbers.max()) >= len(taken.classes):
        raise BadContainer(
            f"{source.root} has label {numbers.max()}, and {len(taken.classes)} classes"
        )
    return numbers, taken.classes


def _field(
    source: Source,
    column: Column,
    parts: Sequence[Spans],
    of_file: npt.NDArray[np.uint32] | None,
    hashes: UInt64s | None,
) -> Field:
    offset = np.concatenate([part.offset for part in parts])
    length = np.concatenate([part.length for part in parts])
    shape = column.shape
    if shape is None:
        if len(length) and (length != length[0]).any():
            raise UserError(
                f"{source.root}: column {column.name!r} has lists of different lengths "
                f"({length.min()} to {length.max()} bytes), which are no array; leave it out by "
                f"naming the columns to take: --fields a,b"
            )
        first = int(length[0]) if len(length) else 0
        shape = (first // np.dtype(column.dtype).itemsize,)
    return Field(column.name, offset, length, of_file, hashes, column.dtype, shape)


def _renamed(one: Field) -> Field:
    return Field("data", one.offset, one.length, one.file, one.hash, one.dtype, one.shape)


def _splits(files: Sequence[File], rows: Sequence[int]) -> tuple[Split, ...]:
    splits: list[Split] = []
    at = 0
    for file, count in zip(files, rows, strict=True):
        if splits and splits[-1].name == file.split:
            last = splits.pop()
            splits.append(Split(last.name, last.start, at + count, last.folder))
        else:
            splits.append(Split(file.split, at, at + count, file.folder))
        at += count
    return tuple(splits)


def numbered(splits: Sequence[Split], suffix: str) -> Strings:
    """Keys of samples that have no names: their numbers in the split, in the order of bytes too."""
    largest = max((split.stop - split.start for split in splits), default=0)
    width = max(6, len(str(largest)))
    rows = np.concatenate([np.empty(0, np.int64), *(np.arange(s.stop - s.start) for s in splits)])
    cells = np.empty((len(rows), width + len(suffix)), np.uint8)
    for place in range(width):
        cells[:, place] = rows // 10 ** (width - 1 - place) % 10 + ord("0")
    cells[:, width:] = np.frombuffer(suffix.encode(), np.uint8)
    return Strings(cells.reshape(-1), np.arange(len(rows) + 1) * cells.shape[1])


def _suffix(source: Source, index: Index, column: Column) -> str:
    """What files of the samples would end with, by the first one that has bytes."""
    one = index.fields[0]
    if one.dtype:
        return ""
    some = np.flatnonzero(one.length)
    head = b""
    if len(some):
        row = int(some[0])
        if one.offset[row] >= 0:
            number = 0 if one.file is None else int(one.file[row])
            with data_path(source.root, index.files, number).open("rb") as file:
                file.seek(int(one.offset[row]))
                head = file.read(min(16, int(one.length[row])))
        else:
            tables = Tables.of(index, source.root, source.reader)
            head = bytes(next(tables.chunks(one.name, ~int(one.offset[row])))[:16])
    for begin, suffix in _BEGINS.items():
        if head.startswith(begin):
            return suffix
    from .arrow_columns import is_text

    return ".txt" if is_text(column.type) else ".bin"
