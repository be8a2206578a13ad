"""Tables whose rows are samples: the same rules for HDF5, numpy's arrays, Arrow and Parquet.

Labels and keys are in the columns named so (`keys`), all others are fields. Splits are tables of
the same columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...base.errors import UserError, nearest
from .. import keys
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, Strings
from ..keys import KEYS, LABELS
from . import Choice

NO_KEYS = Strings.of([b""])


class Column:
    """A column of one split, as a format has it.

    Attributes:
        kind: of each row: `number` (one whole number), `text` (one), `bytes`, or empty; the first
            two may be labels, the others but `number` keys.
        classes: names of its numbers, where it is labels.
    """

    kind = ""
    classes: tuple[str, ...] = ()

    def field(self, first: int) -> Field:
        """The field that it becomes, by the number of its first row."""
        raise NotImplementedError

    def rows(self) -> int:
        """Return the number of rows; asked for when its field has been made."""
        raise NotImplementedError

    def values(self) -> Any:
        """All rows where it has a kind: an array of numbers, or `Strings`, empty for none."""
        raise NotImplementedError

    def suffix(self) -> str:
        """Return the ends of the rows' file names; asked for when its field has been made."""
        return ""

    def names(self) -> Strings:
        """The names that stand beside its rows; what cannot be keys where there are none."""
        return NO_KEYS


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
    names, key = _keys(tables, label, choice)
    found, fields, splits = [], [], []
    first = 0
    for number, table in enumerate(tables):
        taken = {
            name: table.columns[name]
            for name in choice.fields or table.columns
            if name in table.columns and name not in (label, key)
        }
        fields.append([replace(one.field(first), name=name) for name, one in taken.items()])
        beside = [one for one in (label, key) if one and one in table.columns]
        rows = _rows(table, [*taken, *beside], container)
        suffix = next(iter(taken.values())).suffix() if len(taken) == 1 else ""
        found.append(names[number] if names else Strings.numbered([rows], width, suffix))
        splits.append(Split(table.split, first, first + rows, table.folder))
        first += rows
    if not any(fields):
        raise UserError("there is nothing but labels in it: nothing is left to be the samples")
    together = _together(splits, fields)
    labels = None
    if label is not None:
        columns = [one.columns.get(label) for one in tables]
        labels, named = _numbered(label, columns, splits)
        known = {one.classes for one in columns if one}
        if len(known) > 1:
            raise UserError(f"{label!r} has other names of classes in one split than in another")
        classes = named or next(iter(known)) or classes
        if len(labels) and classes and (largest := int(labels.max())) >= len(classes):
            raise BadContainer(f"it has label {largest}, and {len(classes)} classes")
    facts = {one.name: one.name for one in together}
    if len(together) == 1 and (container == "numpy" or not together[0].dtype):
        facts = {"data": together[0].name}
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
        facts={"columns": facts},
    )


def _label(tables: Sequence[Table], choice: Choice) -> str | None:
    """The name of the column with the labels; where several could be, `label` before `y`."""
    kinds: dict[str, bool] = {}
    for table in tables:
        for name, one in table.columns.items():
            kinds[name] = kinds.get(name, True) and one.kind in ("number", "text")
    if choice.label is not None and not kinds.get(choice.label):
        raise UserError(
            f"{choice.label!r} has no labels: they are one whole number or one text per sample; "
            "leave --label out, and it becomes a field"
        )
    if choice.label is not None or len(kinds) == 1:  # a lone column is data, whatever its name
        return choice.label
    free = [name for name in kinds if name not in choice.fields and kinds[name]]
    known = [name for name in free if name.lower() in LABELS]
    if known:
        return min(known, key=lambda name: (LABELS.index(name.lower()), name))
    named = {
        name for one in tables for name in free if name in one.columns and one.columns[name].classes
    }
    if len(named) > 1:
        raise UserError(f"it has several labels ({', '.join(sorted(named))}): choose by --label")
    return next(iter(named), None)


def _keys(
    tables: Sequence[Table], label: str | None, choice: Choice
) -> tuple[list[Strings] | None, str | None]:
    """The keys of each split, and the name of the column that they are."""
    every = [name for name in tables[0].columns if name not in (label, *choice.fields)]
    free = sorted(
        (name for name in every if name.lower() in KEYS), key=lambda name: KEYS.index(name.lower())
    )
    for name in [choice.key] if choice.key else free:
        columns = [one.columns.get(name) for one in tables]
        try:
            found = [
                one.values() if one and one.kind in ("text", "bytes") else NO_KEYS
                for one in columns
            ]
        except UserError as error:
            if choice.key or isinstance(error, BadContainer):
                raise
            continue  # it differs from file to file
        if all(map(_are_keys, found)):
            return found, name
        if choice.key:
            raise UserError(
                f"{name!r} cannot be keys: keys are texts, each once in its split, and relative "
                "paths without '..'"
            )
    for name in choice.fields or every:
        found = [one.columns[name].names() for one in tables if name in one.columns]
        if all(map(_are_keys, found)):
            return found, None
    return None, None


def _are_keys(values: Strings) -> bool:
    return keys.unsafe(values) is None and values.distinct()


def _rows(table: Table, names: Sequence[str], container: str) -> int:
    counts = {name: table.columns[name].rows() for name in names}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        advice = ", or put each split into a group of its own" if container == "hdf5" else ""
        raise UserError(
            f"the columns of {table.split} have different numbers of rows, so that a row is no "
            f"sample: {listed}; name those that belong together with --fields{advice}"
        )
    return next(iter(counts.values()), 0)


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
        classes = sorted({text for part in values for text in part if text})
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
            file=None if same[0].file is None else np.concatenate([one.file for one in same]),
        )
        for same in zip(*fields, strict=True)
    )
