"""Samples that a list names: a file each, or several as an image and its caption.

Columns, by their names in any case: a path (`path`, `file`, `filename`, … or any whose values are
files), `label` (`class`, `target`), `split` (`subset`). Relative paths begin at the list's folder,
or where the first of them is not there, at the current one. One path column: its bytes are the
field `data`, keys are the paths below the folder that all have in common. Several: a field each,
and keys are the first one's paths without extension.

The files are read as columns:

CSV, TSV   with a header; without one: path and label
JSON       a list of objects; `{path: label}`; a list of paths or of `[path, label]`;
           or any of these by split: `{"train": …, "val": …}`
JSON lines an object per line
pickle     `{path: label}`, or such dicts by split
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from ...base.errors import UserError, nearest
from .. import keys
from ..containers import Choice
from ..containers.files import refuse, shown, stats
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, Strings, ordered
from ..keys import LABELS, PATHS, SPLIT_COLUMNS, split_in, split_order

_CELLS = 4  # of a row that a message shows
SUFFIXES = {
    **{".csv": ",", ".tsv": "\t"},
    **dict.fromkeys((".json", ".jsonl", ".ndjson", ".pkl", ".pickle"), ""),
}
_PLAIN = (str, int, float, bool, type(None))  # what a label may be, or be refused by name


@dataclass(frozen=True)
class Table:
    """Rows of a list, by columns of one length.

    Attributes:
        columns: by name; a value is what JSON has, None where a row has none. From CSV: strings.
        lines: of the rows in their file; None: rows are numbered from 1.
    """

    columns: Mapping[str, list[Any]]
    lines: list[int] | None = None

    def __len__(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    def place(self, row: int) -> str:
        """Return the place of a row, for messages."""
        return f"line {self.lines[row]}" if self.lines is not None else f"entry {row + 1}"


def is_list(path: Path) -> bool:
    """Return True for a file whose name says that it is a list."""
    return path.suffix.lower() in SUFFIXES


def read(path: Path, names: Iterable[str]) -> Table:
    """The table in a list.

    Args:
        names: columns that are asked for; the first line of a CSV that has one is a header.

    Raises:
        UserError: it is not readable as what its name says; the line is named.
        BadContainer: a pickle that is damaged.
        OSError: it cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in (".pkl", ".pickle"):
        return _table(path, _pickle(path))
    try:
        if suffix in (".csv", ".tsv"):
            return _csv(path, SUFFIXES[suffix], {*keys.PATHS, *(name.lower() for name in names)})
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            if suffix != ".json":
                return _json_lines(path, file)
            return _table(path, json.load(file, object_pairs_hook=_once))
    except (csv.Error, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no {suffix[1:].upper()}, or damaged: {error}") from None


class _Restricted(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Without a function or class that a pickle could name, there is nothing that it could call.

    Python's own interpreter in Python: the one in C reserves as much memory as a pickle asks for.
    So do both for a bytearray, which is neither a path nor a label.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]
    del dispatch[pickle.BYTEARRAY8[0]]

    def find_class(self, module: str, name: str) -> NoReturn:
        advice = "write numbers as int(label), paths as str(path)"
        raise UserError(f"it holds {module}.{name}, not only dict, str and int: {advice}")


def _pickle(path: Path) -> dict[str, Any]:
    """The dict in a pickle of any protocol."""
    data = path.read_bytes()
    try:
        value = _Restricted(io.BytesIO(data), encoding="utf-8", errors="surrogateescape").load()
    except UserError as error:
        raise UserError(f"{path} is not unpickled: {error}") from None
    except Exception as error:  # an interpreter of hostile input: any kind of error may come
        raise BadContainer(f"{path} is no pickle, or a damaged one: {error!r}"[:500]) from None
    if type(value) is not dict:
        raise UserError(f"{path} holds a {type(value).__name__}, not a dict of path -> label")
    return value


def _csv(path: Path, delimiter: str, known: set[str]) -> Table:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = file.readline()
        if delimiter == ",":  # a German Excel writes `;`
            delimiter = max(",;\t", key=first.count) if first.strip() else ","
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        rows, lines = [], []
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    if not rows:
        raise UserError(f"{path} is empty: a header `path,label` and a line per sample expected")
    names = [name.strip() for name in rows[0]]
    if _is_header({name.lower() for name in names}, known):
        del rows[0], lines[0]
        if len(set(names)) < len(names):
            raise UserError(f"{path} has two columns of one name: {_some(names)}")
    elif len(names) <= 2:
        names = ["path", "label"][: len(names)]
    else:
        raise UserError(
            f"{path} has {len(names)} columns and no header (its first line is {_some(names)}): "
            "give it one, with `path`, and `label` or `split` where there are any"
        )
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            raise UserError(
                f"{path}, line {line}: {len(row)} cells, and {len(names)} expected ({_some(names)})"
            )
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return Table({name: list(column) for name, column in zip(names, columns, strict=True)}, lines)


def _is_header(cells: set[str], known: set[str]) -> bool:
    if cells & known:
        return True
    # A class may be called `y`, too: a line with a path is none.
    paths = any("." in cell or "/" in cell for cell in cells)
    return bool(cells & {*keys.LABELS, *keys.SPLIT_COLUMNS}) and not paths


def _some(names: list[str]) -> str:
    return ", ".join(names[:_CELLS]) + (", …" if len(names) > _CELLS else "")


def _json_lines(path: Path, file: Iterable[str]) -> Table:
    rows, lines = [], []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_once)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: no JSON: {error}") from None
        if type(row) is not dict:
            raise UserError(f"{path}, line {number}: an object with `path` expected, not {line!r}")
        rows.append(row)
        lines.append(number)
    return Table(_columns(rows), lines)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice!r} is there twice")
    return found


def _table(path: Path, value: Any) -> Table:
    if type(value) is dict and value and all(type(one) in (dict, list) for one in value.values()):
        rows = [
            {**row, "split": split}
            for split, part in value.items()
            for row in _rows(path, part, f" under {split!r}")
        ]
    else:
        rows = list(_rows(path, value, ""))
    return Table(_columns(rows))


def _rows(path: Path, value: Any, where: str) -> Iterator[dict[str, Any]]:
    if type(value) is dict:
        value = list(value.items())
    if type(value) is not list:
        raise UserError(f"{path}: a list or a dict expected{where}, not {value!r}"[:300])
    for one in value:
        if type(one) is dict:
            yield one
        elif type(one) is str:
            yield {"path": one}
        elif type(one) in (list, tuple) and len(one) == 2 and type(one[0]) is str:
            yield {"path": one[0], "label": one[1]}
        else:
            raise UserError(
                f"{path}: {one!r}"[:200] + f"{where} is no sample: an object with `path`, a path, "
                "or path and label expected"
            )


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


@dataclass(frozen=True)
class _Roles:
    """Names of the columns, as the list has them."""

    paths: list[str]
    label: str | None
    split: str | None
    key: str | None


def scan(path: Path, choice: Choice) -> Index:
    """The samples of a list.

    Args:
        choice: `label` and `key` name columns, `fields` the path columns.

    Raises:
        UserError: the list is not readable; files that it names are missing (all are counted, the
            first ones named); a column is nothing that is known; two samples have one key.
        BadContainer: a damaged pickle; a key that is no safe path.
        OSError: the list cannot be read.
    """
    asked = [name for name in (choice.label, choice.key, *choice.fields) if name]
    table = read(path, asked)
    roles = _roles(path, table, choice)
    base = _base(path, table.columns[roles.paths[0]])
    names, rows_of = _files(path, table, roles.paths, base)
    sizes, times, problems = stats(b"", names)
    refuse(problems, f"of the {len(names)} files in {path}", "cannot be packed")
    split_names, split_of = _splits(path, table, roles, choice)
    split_names = keys.split_names(split_names, choice.split)
    found, folders = _keys(path, table, roles, names, rows_of, split_of, split_names)
    labels: Int64s | None = None
    classes: tuple[str, ...] = ()
    if roles.label is not None:
        labels, classes = labelled(table.columns[roles.label], _place(path, table))
    zeros = np.zeros(len(table), np.int64)
    lone = len(roles.paths) == 1
    index = Index(
        "files",
        Strings.of(names),
        (),
        Strings.of(found),
        tuple(
            Field("data" if lone else column, zeros, sizes[rows], rows.astype(np.uint32))
            for column, rows in zip(roles.paths, rows_of, strict=True)
        ),
        labels,
        classes,
        sizes,
        times=times,
    )
    order = sorted(range(len(split_names)), key=lambda one: split_order(split_names[one].lower()))
    place = np.argsort(np.array(order, np.int64))
    splits = tuple(Split(split_names[one], 0, 0, folders[one]) for one in order)
    return ordered(index, place[split_of] if len(order) else split_of, splits)


def labelled(values: Sequence[Any], place: Callable[[int], str]) -> tuple[Int64s, tuple[str, ...]]:
    """Numbers and class names of a column of labels.

    Args:
        values: ints, or strings of ints: as they are, -1 for none. Other strings: names of classes,
            numbered in their order. None and empty: no label.

    Raises:
        UserError: something else, or both; the place is named.
    """
    given = {value for value in values if type(value) in _PLAIN} - {None, ""}
    if all(type(value) is str for value in given) and not all(map(_is_number, given)):
        texts = (value for value in values if type(value) is str and value)
        decimal = next((text for text in texts if not text.strip("-+ ").isdigit()), "")
        if decimal and all(map(_is_decimal, given)):
            row = list(values).index(decimal)
            raise UserError(
                f"{place(row)}: the label {decimal!r} is a number with decimals, and a label is a "
                "class: a name, or a whole number from 0. Name another column by --label, or "
                "leave it away; numbers to be learnt are a column of a Parquet or Arrow table, "
                "beside the bytes of the files"
            )
        classes = sorted(given)
        for name in classes:
            if re.search("[\ud800-\udfff]", name):
                where = place(list(values).index(name))
                raise UserError(
                    f"{where}: the class {name!a} is not UTF-8, which names of classes have to be: "
                    "save the list as UTF-8"
                )
        number_of: dict[Any, int] = {name: number for number, name in enumerate(classes)}
    else:
        classes = []
        number_of = {value: int(value) for value in given if _is_number(value)}
    number_of |= {None: -1, "": -1}
    for row, value in enumerate(values):
        number = number_of.get(value) if type(value) in _PLAIN else None
        if number is None or not -1 <= number < 1 << 31:
            raise UserError(
                f"{place(row)}: {value!r} is no label: whole numbers from 0 (-1: none) expected, "
                "or names in every row"
            )
    labels = np.fromiter(map(number_of.__getitem__, values), np.int64, len(values))
    return labels, tuple(classes)


def _is_number(value: Any) -> bool:
    if type(value) is str:
        return re.fullmatch(r"-?[0-9]{1,10}", value.strip()) is not None
    return type(value) is int


def _is_decimal(text: str) -> bool:
    return (
        re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text.strip()) is not None
    )


def _place(path: Path, table: Table) -> Callable[[int], str]:
    return lambda row: f"{path}, {table.place(row)}"


def _roles(path: Path, table: Table, choice: Choice) -> _Roles:
    columns = table.columns
    lower = {name.lower(): name for name in columns}

    def named(asked: str | None, known: Iterable[str]) -> str | None:
        if asked is None:
            return next((lower[name] for name in known if name in lower), None)
        if asked not in columns and asked.lower() not in lower:
            raise UserError(f"{path} has no column {asked!r}: {nearest(asked, columns)}")
        return asked if asked in columns else lower[asked.lower()]

    label = named(choice.label, LABELS)
    key = named(choice.key, ())
    split = named(None, SPLIT_COLUMNS)
    chosen = [one for name in choice.fields if (one := named(name, ())) is not None]
    if chosen:
        return _Roles(chosen, label, split, key)
    paths: list[str] = []
    others: list[str] = []
    for name, values in columns.items():
        if name in (label, key, split) or name == "" or name.startswith("Unnamed:"):
            continue  # the last two: the row numbers that pandas writes
        first = next((value for value in values if value), None)
        is_path = name.lower() in PATHS or (
            type(first) is str and (os.path.isfile(path.parent / first) or os.path.isfile(first))
        )
        (paths if is_path else others).append(name)
    if not paths:
        raise UserError(
            f"{path} has no column with paths of files: one named `path` expected, found "
            f"{', '.join(columns) or 'nothing'}"
        )
    if others:
        raise UserError(
            f"{path}: the column{'s' * (len(others) > 1)} {', '.join(others)} hold neither files "
            f"nor labels, and text is packed from files only: `--fields {','.join(paths)}` leaves "
            "them out"
        )
    return _Roles(paths, label, split, key)


def _base(path: Path, values: Sequence[Any]) -> bytes:
    """Return the folder that relative paths begin at; the first one decides for all."""
    folder = os.fsencode(path.parent.absolute())
    first = next((value for value in values if type(value) is str and value), "")
    if os.path.isabs(first) or os.path.exists(os.path.join(folder, os.fsencode(first))):
        return folder
    here = os.fsencode(Path.cwd())
    return here if os.path.exists(os.path.join(here, os.fsencode(first))) else folder


def _files(
    path: Path, table: Table, columns: Sequence[str], base: bytes
) -> tuple[list[bytes], list[Int64s]]:
    """The files, each once, and of each column the row of each sample's file."""
    number_of: dict[bytes, int] = {}
    rows_of = []
    for column in columns:
        rows = np.empty(len(table), np.int64)
        for row, value in enumerate(table.columns[column]):
            if type(value) is not str or not value or "\0" in value:
                raise UserError(f"{_place(path, table)(row)}: {column} is {value!r}, not a path")
            name = os.path.join(base, os.fsencode(value))
            rows[row] = number_of.setdefault(name, len(number_of))
        rows_of.append(rows)
    return list(number_of), rows_of


def _splits(path: Path, table: Table, roles: _Roles, choice: Choice) -> tuple[list[str], Int64s]:
    """Names of splits, and which each row belongs to."""
    if roles.split is None:
        # Only where nothing else was asked for: `imagenet_val.pkl` holds the split `val`.
        own = split_in(path.stem.lower()) if choice.split == Choice.split else ""
        name = own or choice.split
        return [name], np.zeros(len(table), np.int64)
    number_of: dict[str, int] = {}
    rows = np.empty(len(table), np.int64)
    for row, value in enumerate(table.columns[roles.split]):
        name = str(value).strip() if type(value) in (str, int) else ""
        name = choice.split if value is None or value == "" else name
        if not keys.safe(os.fsencode(name)) or "/" in name:
            raise UserError(f"{_place(path, table)(row)}: {value!r} is no name of a split")
        rows[row] = number_of.setdefault(name, len(number_of))
    return list(number_of), rows


def _keys(
    path: Path,
    table: Table,
    roles: _Roles,
    names: Sequence[bytes],
    rows_of: Sequence[Int64s],
    split_of: Int64s,
    split_names: Sequence[str],
) -> tuple[list[bytes], list[str]]:
    """Keys of the rows, and folders of the splits."""
    folders = split_names if len(split_names) > 1 or roles.split else [""]
    if roles.key is not None:
        values = table.columns[roles.key]
        found = [os.fsencode(str(value)) if value is not None else b"" for value in values]
    else:
        found, folders = _below([names[row] for row in rows_of[0]], split_of, list(folders))
        if len(roles.paths) > 1:
            found = [os.path.splitext(name)[0] for name in found]
    seen: dict[tuple[int, bytes], int] = {}
    for row, (split, key) in enumerate(zip(split_of.tolist(), found, strict=True)):
        keys.check(key, f"{path}, {table.place(row)}:")
        before = seen.setdefault((split, key), row)
        if before != row:
            raise UserError(
                f"{path}: {table.place(before)} and {table.place(row)} are both "
                f"{shown(key)} of the split {split_names[split]}: remove one, or name a column "
                "of keys (`--key`)"
            )
    return found, list(folders)


def _below(
    names: Sequence[bytes], split_of: Int64s, folders: list[str]
) -> tuple[list[bytes], list[str]]:
    """Paths below the folder that all have in common, or where each split has one, that of its own.

    Args:
        folders: of the splits, where they do not have their own.
    """
    if not names:
        return [], folders
    names = [os.path.normpath(name) for name in names]
    common = os.path.commonpath({os.path.dirname(name) for name in names})
    start = len(common.rstrip(b"/")) + 1
    found = [name[start:] for name in names]
    tops: list[set[bytes]] = [set() for _ in folders]
    for split, name in zip(split_of.tolist(), found, strict=True):
        tops[split].add(name[: name.find(b"/") + 1])
    own = [next(iter(top)) for top in tops if len(top) == 1]
    if len(folders) > 1 and len(set(own)) == len(folders) and b"" not in own:
        return [name[name.find(b"/") + 1 :] for name in found], [os.fsdecode(o[:-1]) for o in own]
    return found, folders
