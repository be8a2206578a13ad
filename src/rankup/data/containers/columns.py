"""Tables whose rows are samples: the same rules for the data sets of HDF5 and the arrays of numpy.

Labels and keys are in the columns named so (`roles`), all others are fields. Splits are tables of
the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...base.errors import UserError, nearest
from .. import images, keys
from ..index import Field, Index, Int64s, Split
from ..roles import KEYS, LABELS
from ..strings import Strings
from . import Choice


@dataclass(frozen=True)
class Column:
    """A column of one split.

    Attributes:
        rows: how many.
        kind: of each row: `number` (one whole number), `text` (one), or empty.
        field: gives the field that it becomes, by the number of its first row.
        values: reads all rows where it has a kind, numbers as an array, texts as a list of bytes.
        head: gives the first bytes of the first row; None where rows are arrays.
    """

    rows: int
    kind: str
    field: Callable[[int], Field]
    values: Callable[[], Any]
    head: Callable[[], bytes] | None = None


@dataclass(frozen=True)
class Table:
    """The columns of a split."""

    split: str
    folder: str
    columns: Mapping[str, Column]


def check_known(choice: Choice, known: Collection[str], word: str) -> None:
    """Refuse names that are not there.

    Args:
        word: what a column is called in the format.
    """
    for name in (*choice.fields, choice.label, choice.key):
        if name is not None and name not in known:
            raise UserError(f"there is no {word} {name!r} in it; {nearest(name, known)}")


def indexed(
    container: str,
    tables: Sequence[Table],
    choice: Choice,
    size: int,
    *,
    width: int,
    classes: tuple[str, ...] = (),
) -> Index:
    """Return the index of the rows of some tables, of a file of `size` bytes.

    Its facts have the name of each field's column.

    Args:
        width: digits of keys that are numbers, at least.
        classes: names that stand elsewhere in the file.

    Raises:
        UserError: what is chosen, or what there is, cannot be samples.
    """
    label = _label(tables, choice)
    found, fields, splits = [], [], []
    first = 0
    for table in tables:
        names, key = _keys(table, label, choice)
        taken = {
            name: one
            for name, one in table.columns.items()
            if name not in (label, key) and (name in choice.fields or not choice.fields)
        }
        used = {name: one for name, one in table.columns.items() if name in (*taken, label, key)}
        rows = _rows(table, used)
        fields.append([replace(one.field(first), name=name) for name, one in taken.items()])
        if names is None:
            heads = [one.head for one in taken.values()]
            suffix = images.suffix_of(heads[0]()) if len(heads) == 1 and heads[0] else ""
            names = Strings.numbered([rows], width, suffix)
        found.append(names)
        splits.append(Split(table.split, first, first + rows, table.folder))
        first += rows
    if not any(fields):
        raise UserError("there is nothing but labels in it: nothing is left to be the samples")
    together = _together(splits, fields)
    labels = None
    if label is not None:
        labels, named = _numbered(label, [one.columns.get(label) for one in tables], splits)
        classes = named or classes
    columns = {one.name: one.name for one in together}
    if len(together) == 1 and (container == "numpy" or not together[0].dtype):
        columns = {"data": together[0].name}
        together = (replace(together[0], name="data"),)
    return Index(
        container,
        Strings.of([b""]),
        tuple(splits),
        Strings.joined(found),
        together,
        labels,
        classes,
        np.array([size], np.int64),
        facts={"columns": columns},
    )


def _label(tables: Sequence[Table], choice: Choice) -> str | None:
    """The name of the column with the labels; where several could be, `label` before `y`."""
    kinds: dict[str, bool] = {}
    for table in tables:
        for name, one in table.columns.items():
            kinds[name] = kinds.get(name, True) and bool(one.kind)
    if choice.label is not None and not kinds[choice.label]:
        raise UserError(
            f"{choice.label!r} has no labels: they are one whole number or one text per sample; "
            "leave --label out, and it becomes a field"
        )
    if choice.label is not None or len(kinds) == 1:  # a lone column is data, whatever its name
        return choice.label
    free = [name for name in kinds if name.lower() in LABELS and name not in choice.fields]
    free.sort(key=lambda name: (LABELS.index(name.lower()), name))
    return next((name for name in free if kinds[name]), None)


def _keys(table: Table, label: str | None, choice: Choice) -> tuple[Strings | None, str | None]:
    """The keys of a split, and the name of the column that they are from."""
    free = [n for n in table.columns if n.lower() in KEYS and n not in (label, *choice.fields)]
    for name in [choice.key] if choice.key else free:
        one = table.columns.get(name)
        values = one.values() if one is not None and one.kind == "text" else None
        if values and len(set(values)) == len(values) and all(map(keys.safe, values)):
            return Strings.of(values), name
        if choice.key:
            raise UserError(
                f"{name!r} of {table.split} has no keys: they are text, different from each other, "
                "and relative paths without '..'"
            )
    return None, None


def _rows(table: Table, used: Mapping[str, Column]) -> int:
    counts = {one.rows for one in used.values()}
    if len(counts) > 1:
        listed = ", ".join(f"{name} {one.rows}" for name, one in used.items())
        raise UserError(
            f"the columns of {table.split} have different numbers of rows, so that a row is no "
            f"sample: {listed}; name those that belong together with --fields"
        )
    return next(iter(counts), 0)


def _numbered(
    name: str, columns: Sequence[Column | None], splits: Sequence[Split]
) -> tuple[Int64s, tuple[str, ...]]:
    """Labels and class names of all splits; where a split has none, and of an empty text, -1."""
    kinds = {one.kind for one in columns if one is not None}
    if len(kinds) > 1:
        raise UserError(f"{name!r} has texts in one split and numbers in another")
    values = [[] if one is None else one.values() for one in columns]
    classes: list[bytes] = []
    if kinds == {"text"}:
        classes = sorted({text for part in values for text in part} - {b""})
        number = {b"": -1} | {text: row for row, text in enumerate(classes)}
        values = [[number[text] for text in part] for part in values]
    parts = []
    for one, part, split in zip(columns, values, splits, strict=True):
        found = np.full(split.stop - split.start, -1) if one is None else np.asarray(part)
        if len(found) and (int(found.min()) < -1 or int(found.max()) >= 1 << 63):
            raise UserError(
                f"{name!r} has labels from {found.min()} to {found.max()}; numbers of classes "
                "expected, -1 for none: --fields takes it as numbers"
            )
        parts.append(found.astype(np.int64))
    return np.concatenate(parts), tuple(one.decode("utf-8", "surrogateescape") for one in classes)


def _together(splits: Sequence[Split], fields: Sequence[Sequence[Field]]) -> tuple[Field, ...]:
    """The fields of all splits, one split after another."""
    about = [
        ", ".join(f"{one.name} ({one.dtype or 'bytes'} {one.shape})" for one in here) or "none"
        for here in fields
    ]
    for split, other in zip(splits, about, strict=True):
        if other != about[0]:
            raise UserError(
                f"its splits have different columns: {about[0]} in {splits[0].name}, {other} in "
                f"{split.name}; rename them, or choose those that are in all with --fields"
            )
    return tuple(
        replace(
            same[0],
            offset=np.concatenate([one.offset for one in same]),
            length=np.concatenate([one.length for one in same]),
        )
        for same in zip(*fields, strict=True)
    )
