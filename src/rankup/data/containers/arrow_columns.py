"""The roles of a table's columns: samples, labels and keys.

Shared by Arrow and Parquet, which have the same types.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from ...base.errors import UserError, nearest
from .. import keys
from ..roles import KEYS, LABELS
from . import Choice

ABOUT = b"rankup"  # key of the schema's metadata in a file that rankup has written

Path = tuple[str, ...]  # of a column: its name, and of a struct's member that of the member


@dataclass(frozen=True)
class Column:
    """A column that becomes a field.

    Attributes:
        name: of the field.
        path: of the column.
        type: of its values, pyarrow's; what an extension stores.
        dtype, shape: as in `index.Field`; the shape is None where it is that of the first list.
    """

    name: str
    path: Path
    type: Any
    dtype: str = ""
    shape: tuple[int, ...] | None = ()


@dataclass(frozen=True)
class Roles:
    """The columns that are taken from a table.

    Attributes:
        fields: in the order of the columns.
        label, key: where they are.
        asked: whether the user has named the key; else it is one only if its values are fit for it.
        classes: names of the labels, where the table knows them.
    """

    fields: tuple[Column, ...]
    label: Path | None = None
    key: Path | None = None
    asked: bool = False
    classes: tuple[str, ...] = ()


def roles(
    schema: pa.Schema,
    choice: Choice,
    features: Mapping[str, Any],
    where: str,
    unfit: Collection[Path] = (),
) -> Roles:
    """Return the columns that are taken from a table of this schema.

    Args:
        features: Hugging Face's description of the columns; may be empty.
        unfit: columns whose values turned out to be no keys.
        where: the file, for messages.

    Raises:
        UserError: what is chosen is not there, or a column is of a type that cannot be taken.
    """
    if len(set(schema.names)) < len(schema.names):
        raise UserError(f"{where} has two columns of one name, which cannot be told apart")
    for name in (*choice.fields, *filter(None, (choice.label, choice.key))):
        if name not in schema.names:
            raise UserError(f"{where} has no column {name!r}; {nearest(name, schema.names)}")
    label = _label(schema, choice, features, where)
    key = choice.key or _key(schema, label, unfit)
    key_path: Path | None = (key,) if key else None
    fields = []
    for name in choice.fields or schema.names:
        if not choice.fields and (name in (label, key) or _is_hash(schema, name)):
            continue
        column = _column(name, plain(schema.field(name).type), where)
        if not keys.safe(name.encode("utf-8", "surrogateescape")) or "/" in name:
            raise UserError(
                f"{where}: a column named {keys.shown(name.encode())} cannot be a field, since "
                f"files are named after it; choose others with --fields"
            )
        fields.append(column)
        if key_path is None and column.path != (name,) and (name, "path") not in unfit:
            key_path = (name, "path") if _has_path(schema.field(name).type) else None
    if not fields:
        raise UserError(
            f"{where} has no samples: its columns are {', '.join(schema.names) or 'none'}, and "
            f"of these one is the label and one the key; choose others with --label and --key"
        )
    return Roles(
        tuple(fields),
        (label,) if label else None,
        key_path,
        choice.key is not None,
        _classes(features, label),
    )


def features_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """Hugging Face's description of the columns, from a schema's metadata; empty without one."""
    try:
        about = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        found = about["info"]["features"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def plain(type_: Any) -> Any:
    """Return the storage type of an extension type; other types as they are."""
    while hasattr(type_, "storage_type"):
        type_ = type_.storage_type
    return type_


def _label(
    schema: pa.Schema, choice: Choice, features: Mapping[str, Any], where: str
) -> str | None:
    if choice.label:
        if not _is_label(schema.field(choice.label).type):
            raise UserError(
                f"{where}: column {choice.label!r} is {schema.field(choice.label).type}, and "
                f"labels are whole numbers or names"
            )
        return choice.label
    free = [n for n in schema.names if n not in choice.fields]
    for name in _named(LABELS, free):
        if _is_label(schema.field(name).type):
            return name
    classes = [n for n in free if _classes(features, n) and _is_label(schema.field(n).type)]
    if len(classes) > 1:
        raise UserError(f"{where} has several labels ({', '.join(classes)}); choose one by --label")
    return classes[0] if classes else None


def _is_label(type_: Any) -> bool:
    if t.is_dictionary(type_):
        type_ = type_.value_type
    return t.is_integer(type_) or t.is_boolean(type_) or is_text(type_)


def is_text(type_: Any) -> bool:
    """Return True for a type of strings, of any of Arrow's kinds."""
    return t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_)


def is_bytes(type_: Any) -> bool:
    """Return True for a type of bytes or strings of various lengths."""
    return is_text(type_) or (
        t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_)
    )


def _is_hash(schema: pa.Schema, name: str) -> bool:
    """Return True for a column of the hashes that rankup has put into its own file."""
    ours = ABOUT in (schema.metadata or {})
    return ours and name.rstrip("_").endswith("hash") and str(schema.field(name).type) == "uint64"


def _has_path(type_: Any) -> bool:
    type_ = plain(type_)
    at = type_.get_field_index("path")
    return at >= 0 and is_text(type_.field(at).type)


def _key(schema: pa.Schema, label: str | None, unfit: Collection[Path]) -> str | None:
    for name in _named(KEYS, schema.names):
        if name != label and (name,) not in unfit and is_bytes(schema.field(name).type):
            return name
    return None


def _named(known: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that are known ones, in the order of these."""
    found = [name for name in names if name.lower() in known]
    return sorted(found, key=lambda name: known.index(name.lower()))


def _classes(features: Mapping[str, Any], name: str | None) -> tuple[str, ...]:
    """The names of a ClassLabel of Hugging Face's; empty for other columns."""
    about = features.get(name or "")
    if not isinstance(about, dict) or about.get("_type") != "ClassLabel":
        return ()
    names = about.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _column(name: str, type_: Any, where: str) -> Column:
    if t.is_struct(type_) and {f.name for f in type_} in ({"bytes", "path"}, {"bytes"}):
        inner = type_.field(type_.get_field_index("bytes")).type
        if is_bytes(inner):
            return Column(name, (name, "bytes"), inner)
    value = type_.value_type if t.is_dictionary(type_) else type_
    if is_bytes(value) or t.is_fixed_size_binary(value):
        return Column(name, (name,), type_)
    shape: tuple[int, ...] | None = ()
    if t.is_list(value) or t.is_large_list(value):
        value, shape = value.value_type, None
    while shape is not None and t.is_fixed_size_list(value):
        value, shape = value.value_type, (*shape, value.list_size)
    if min(shape or (), default=0) < 0:
        raise ValueError(f"column {name!r} has lists of a negative size")
    dtype = number(value)
    if dtype is None or t.is_dictionary(type_):
        raise UserError(
            f"{where}: column {name!r} is {type_}, which has no form as samples of their own "
            f"bytes; leave it out by naming the columns to take: --fields a,b"
        )
    return Column(name, (name,), type_, dtype, shape)


def number(type_: Any) -> str | None:
    """numpy's name of a numeric type, with its byte order; None for other types."""
    if not (t.is_integer(type_) or t.is_floating(type_) or t.is_boolean(type_)):
        return None
    return np.dtype(type_.to_pandas_dtype()).newbyteorder("<").str


def same(tables: Sequence[tuple[str, Roles]]) -> Roles:
    """The one thing that all files of a data set hold.

    Raises:
        UserError: they differ; the first two that do are named.
    """
    (first, roles_), *others = tables
    for name, other in others:
        mine = [(c.name, c.dtype, c.shape, is_bytes(c.type)) for c in roles_.fields]
        its = [(c.name, c.dtype, c.shape, is_bytes(c.type)) for c in other.fields]
        if mine != its or roles_.label != other.label or roles_.classes != other.classes:
            raise UserError(
                f"{first} and {name} have different columns or classes, and cannot be one data "
                f"set; pack them apart, or choose what they share with --fields and --label"
            )
    return roles_
