"""The files that people list their samples in, read as columns: CSV, TSV, JSON, JSON lines, pickle.

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
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ...base.errors import UserError
from .. import roles
from ..errors import BadContainer

_CELLS = 4  # of a row that a message shows
SUFFIXES = {
    **{".csv": ",", ".tsv": "\t"},
    **dict.fromkeys((".json", ".jsonl", ".ndjson", ".pkl", ".pickle"), ""),
}


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
            return _csv(path, SUFFIXES[suffix], {*roles.PATHS, *(name.lower() for name in names)})
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            if suffix != ".json":
                return _json_lines(path, file)
            return _table(path, json.load(file, object_pairs_hook=_once))
    except (csv.Error, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no {suffix[1:].upper()}, or damaged: {error}") from None


class _Restricted(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Without a function or class that a pickle could name, there is nothing that it could call.

    Python's own interpreter in Python: the one in C reserves as much memory as a pickle asks for.
    """

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
    return bool(cells & {*roles.LABELS, *roles.SPLIT_COLUMNS}) and not paths


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
