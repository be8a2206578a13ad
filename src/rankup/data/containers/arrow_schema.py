"""The columns of our Arrow files, and what of a file pyarrow makes: the schema's message, and a
batch's metadata and a footer as forms that are filled in.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import UserError
from ..errors import BadContainer
from ..index import Index, Split
from ..strings import Strings
from . import arrow_form
from . import arrow_message as message
from .arrow import ABOUT

ALIGN = 64  # what every buffer's place in the file is a multiple of


@dataclass(frozen=True)
class OurColumn:
    """One column of the file.

    Attributes:
        role: `field`, `label`, `key` or `hash`.
        field: number of the field, of a field or hash.
        type: pyarrow's.
        dims: of an array, the lists around its numbers.
        width: bytes of each value; 0: they are strings, which have ends.
        step: bytes of each of these ends.
    """

    name: str
    role: str
    field: int
    type: Any
    dims: tuple[int, ...]
    width: int
    step: int


@dataclass(frozen=True)
class FileForm:
    """What of a split's file belongs to no unit, and the form of its batches."""

    head: bytes
    form: arrow_form.Form
    schema: Any
    footer: bytes  # a form too


def columns_of(source: Index) -> tuple[OurColumn, ...]:
    import pyarrow as pa

    taken = {one.name for one in source.fields}

    def free(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    columns = []
    for number, one in enumerate(source.fields):
        if not one.dtype:
            columns.append(OurColumn(one.name, "field", number, pa.large_binary(), (), 0, 8))
            continue
        dtype = np.dtype(one.dtype)
        width = dtype.itemsize * int(np.prod(one.shape, dtype=np.int64))
        if len(one.length) and (one.length != width).any():
            raise BadContainer(
                f"field {one.name} should have {width} bytes per sample, as {one.dtype} of shape "
                f"{one.shape}, and some have {int(one.length.min())} to {int(one.length.max())}"
            )
        if width > 2**31 - 1:
            raise UserError(
                f"field {one.name} has {width} bytes per sample, and a fixed-size value of an "
                f"Arrow file at most 2 GiB; pack into HDF5"
            )
        type_, dims = _array_type(dtype, one.shape, width)
        columns.append(OurColumn(one.name, "field", number, type_, dims, width, 0))
    if source.labels is not None:
        columns.append(OurColumn(free("label"), "label", 0, pa.int64(), (), 8, 0))
    text = pa.string() if _is_utf8(source.keys) else pa.binary()
    columns.append(OurColumn(free("key"), "key", 0, text, (), 0, 4))
    for number, one in enumerate(source.fields):
        name = "hash" if len(source.fields) == 1 else f"{one.name}_hash"
        columns.append(OurColumn(free(name), "hash", number, pa.uint64(), (), 8, 0))
    return tuple(columns)


def _array_type(
    dtype: np.dtype[Any], shape: tuple[int, ...], width: int
) -> tuple[Any, tuple[int, ...]]:
    """Lists of fixed sizes around Arrow's number; bytes where it has none (complex, big-endian)."""
    import pyarrow as pa

    if dtype.kind == "b":
        dtype = np.dtype("|u1")  # Arrow's own are bits
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or dtype.newbyteorder("<") != dtype:
        return pa.binary(width), ()
    type_ = pa.from_numpy_dtype(dtype)
    for size in reversed(shape):
        type_ = pa.list_(type_, size)
    return type_, shape


def _is_utf8(keys: Strings) -> bool:
    """Whether each is; together they can be without that, where one ends inside a letter."""
    data = keys.data[int(keys.ends[0]) : int(keys.ends[-1])]
    if not len(data) or int(data.max()) < 0x80:
        return True
    firsts = (keys.ends[:-1] - keys.ends[0])[np.diff(keys.ends) > 0]
    if (data[firsts] & 0xC0 == 0x80).any():
        return False
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def form_of(source: Index, split: Split, columns: tuple[OurColumn, ...]) -> FileForm:
    """The schema's message, and the forms of a batch and of the footer, from pyarrow itself."""
    import pyarrow as pa

    about = {
        "version": 1,
        "split": split.name,
        "folder": split.folder,
        "classes": list(source.classes),
        "fields": [
            {
                "name": one.name,
                "column": one.name,
                "hash": columns[number - len(source.fields)].name,
                "dtype": one.dtype,
                "shape": list(one.shape),
            }
            for number, one in enumerate(source.fields)
        ],
        "label": next((c.name for c in columns if c.role == "label"), None),
        "key": next(c.name for c in columns if c.role == "key"),
    }
    metadata = {ABOUT: json.dumps(about).encode()}
    features = _features(source, columns)
    if features:
        metadata[b"huggingface"] = json.dumps({"info": {"features": features}}).encode()
    schema = pa.schema([(c.name, c.type) for c in columns], metadata)
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5)
    held = io.BytesIO()
    with pa.ipc.new_file(held, schema, options=options):
        pass
    data = np.frombuffer(held.getvalue(), np.uint8)
    start, stop = message.footer(data)
    begin = message.MAGIC + b"\0\0"
    described = schema.serialize().to_pybytes()
    head = begin + arrow_form.padded(described, ALIGN, len(begin))
    # A batch's metadata does not depend on how long its lists are: one of short ones will do.
    short = pa.schema([(c.name, _short(c.type)) for c in columns])
    batch = pa.record_batch([pa.nulls(1, type_) for type_ in short.types], schema=short)
    form = arrow_form.form(batch.serialize().to_pybytes(), ALIGN)
    return FileForm(head, form, schema, data[start:stop].tobytes())


def _short(type_: Any) -> Any:
    """A type of as many nodes and buffers, of which a value is small."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_short(type_.value_type), 1)
    return pa.binary(1) if pa.types.is_fixed_size_binary(type_) else type_


def _features(source: Index, columns: tuple[OurColumn, ...]) -> dict[str, Any]:
    """What Hugging Face's datasets needs to know the classes' names; arrays it does not need to."""
    if not source.classes or any(one.dtype for one in source.fields):
        return {}
    kinds = {"large_binary": "large_binary", "string": "string", "binary": "binary"}
    kinds |= {"int64": "int64", "uint64": "uint64"}
    found: dict[str, Any] = {
        c.name: {"dtype": kinds[str(c.type)], "_type": "Value"} for c in columns
    }
    for column in columns:
        if column.role == "label":
            found[column.name] = {"names": list(source.classes), "_type": "ClassLabel"}
    return found
