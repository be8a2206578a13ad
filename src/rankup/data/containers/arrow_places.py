"""Where a schema's columns stand among the nodes and buffers of each record batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .arrow_columns import Path as ColumnPath
from .arrow_columns import is_bytes, plain
from .arrow_values import width

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Place:
    """Where a column stands among the nodes and buffers of each record batch.

    Attributes:
        type: pyarrow's, of an extension what it stores.
        node, buffer: its first ones.
        around: node and first buffer of the structs that it is a member of.
        inner: of a list, its values.
    """

    type: Any
    node: int
    buffer: int
    around: tuple[tuple[int, int], ...] = ()
    inner: Place | None = None


def places(schema: pa.Schema) -> tuple[dict[ColumnPath, Place], int, int] | None:
    """The place of each column and struct's member, and the number of nodes and buffers.

    None where some column has a number of buffers of its own in each batch.
    """
    found: dict[ColumnPath, Place] = {}
    node = buffer = 0
    for field in schema:
        place = _walk(field.type, (field.name,), node, buffer, (), found)
        if place is None:
            return None
        node, buffer = place
    return found, node, buffer


def _walk(
    type_: Any,
    path: ColumnPath,
    node: int,
    buffer: int,
    around: tuple[tuple[int, int], ...],
    found: dict[ColumnPath, Place],
) -> tuple[int, int] | None:
    """Note a column's place; the numbers after it."""
    import pyarrow.types as t

    type_ = plain(type_)
    at = node, buffer
    if t.is_null(type_):
        found[path] = Place(type_, *at, around)
        return node + 1, buffer
    if t.is_union(type_) or t.is_run_end_encoded(type_) or _is_view(type_):
        return None
    if t.is_struct(type_):
        found[path] = Place(type_, *at, around)
        node, buffer = node + 1, buffer + 1
        for member in type_:
            after = _walk(member.type, (*path, member.name), node, buffer, (*around, at), found)
            if after is None:
                return None
            node, buffer = after
        return node, buffer
    if t.is_nested(type_):
        own = 1 if t.is_fixed_size_list(type_) else 2
        within: dict[ColumnPath, Place] = {}
        # A map's values are a struct, which has no value type of its own here.
        value = _entries(type_) if t.is_map(type_) else type_.value_type
        after = _walk(value, ("",), node + 1, buffer + own, (), within)
        found[path] = Place(type_, *at, around, within.get(("",)))
        return after
    found[path] = Place(type_, *at, around)
    return node + 1, buffer + (3 if is_bytes(type_) else 2)


def _entries(type_: Any) -> Any:
    """The struct that a map's entries are."""
    import pyarrow as pa

    return pa.struct([("key", type_.key_type), ("value", type_.item_type)])


def _is_view(type_: Any) -> bool:
    import pyarrow.types as t

    return (
        t.is_binary_view(type_)
        or t.is_string_view(type_)
        or t.is_list_view(type_)
        or t.is_large_list_view(type_)
    )


def step_of(type_: Any) -> int:
    """Bytes of each entry of a type's list of ends; 0: it has none."""
    import pyarrow.types as t

    if t.is_binary(type_) or t.is_string(type_) or t.is_list(type_):
        return 4
    return (
        8 if t.is_large_binary(type_) or t.is_large_string(type_) or t.is_large_list(type_) else 0
    )


def lies(place: Place) -> bool:
    """Whether the values of a column lie in the file as a field has them."""
    if step_of(place.type):
        return place.inner is None or width(place.inner.type) is not None
    return width(place.type) is not None
