"""`.npy` and `.npz`: arrays whose first axis counts the samples.

What numpy has stored without compression is read where it lies. A compressed member has to be
decompressed from its beginning: each process does that once, and keeps the array.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...base.amounts import size
from ...base.errors import UserError
from .. import npz
from ..errors import DAMAGE, BadContainer
from ..index import Field, Index, Strings
from ..keys import SPLITS, split_order
from ..stage import memory
from . import Choice, Fallback
from .columns import Column, Table, check_known, indexed

_MAGIC = b"\x93NUMPY"
_RATIO = 1032  # bytes that deflate can make of one, at most
_MOST = (1 << 63) - 1  # an index counts in int64
_MANY = 10_000_000  # rows
_BYTES_OF_ROW = 48  # of an index while it is made: offset, length, key, and what these are made of
_KINDS = "|".join(SPLITS)
_SPLIT = re.compile(rf"({_KINDS})[_.-](.+)|(.+)[_.-]({_KINDS})", re.IGNORECASE)


@dataclass(frozen=True)
class Array(Column):
    """An array in a file.

    Attributes:
        start: where its first row lies; -1: in a compressed member.
        row: bytes of a sample.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    row: int

    @property
    def kind(self) -> str:  # type: ignore[override]
        if self.shape[1:] not in ((), (1,)):
            return ""
        return {"i": "number", "u": "number", "S": "text", "U": "text"}.get(self.dtype.kind, "")

    def rows(self) -> int:
        return self.shape[0]

    def field(self, first: int) -> Field:
        rows = np.arange(self.shape[0], dtype=np.int64)
        offset = self.start + rows * self.row if self.start >= 0 else ~(first + rows)
        length = np.full(len(rows), self.row, np.int64)
        return Field("", offset, length, dtype=self.dtype.str, shape=self.shape[1:])

    def values(self) -> npt.NDArray[Any] | Strings:
        if self.start < 0:
            found = _member(self.path, self.name).reshape(-1)
        else:
            found = np.fromfile(self.path, self.dtype, self.shape[0], offset=self.start)
        if self.kind != "text":
            return found
        return Strings.of(
            value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            for value in found.tolist()
        )


def scan(path: Path, choice: Choice) -> Index:
    """The arrays of a file: each is a field, its rows are the samples.

    Names tell splits where all do (`x_train`, `test_images`), and labels and keys, see `columns`. A
    lone array beside these is the field `data`.

    Raises:
        BadContainer: it is damaged, or not what it seems to be.
        UserError: arrays of objects, in Fortran's order, or of different lengths; or `choice` names
            what is not there; or rows are more than there is memory for an index of.
        OSError: it cannot be read.
    """
    arrays = headers(path)
    rows = sum(one.shape[0] for one in arrays if one.shape)
    if rows > _MANY:  # else the kernel might end this process in the middle
        left = min((one.left for one in memory.limits(os.environ, 0)), default=1 << 62)
        if rows * _BYTES_OF_ROW > left:
            raise _too_many(path, rows, f", and {size(left)} are left")
    try:
        return _scan(path, choice, arrays)
    except BadContainer:
        raise
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except MemoryError:
        raise _too_many(path, rows) from None


def _too_many(path: Path, rows: int, left: str = "") -> UserError:
    return UserError(
        f"{path} has {rows} rows, each of them a sample, and there is no memory for an index of "
        f"them (it takes about {size(rows * _BYTES_OF_ROW)}{left}): give its array longer rows; a "
        "file of tokens is read by rankup.data.Tokens, without an index"
    )


def _scan(path: Path, choice: Choice, arrays: Sequence[Array]) -> Index:
    named = _by_split(arrays, choice)
    check_known(choice, {name for of in named.values() for name in of}, "array")
    splits = sorted(named, key=lambda split: split_order(split.lower()))
    tables = [Table(split, split if len(splits) > 1 else "", named[split]) for split in splits]
    index = indexed("numpy", tables, choice, path.stat().st_size, width=8)
    columns = index.facts["columns"].items()
    names = {field: [named[split][name].name for split in splits] for field, name in columns}
    return replace(index, facts={"arrays": names})


def fallback(index: Index, root: Path) -> Fallback:
    """Reads the rows of compressed members."""
    arrays = index.facts.get("arrays")
    if type(arrays) is not dict:
        raise BadContainer(f"the index of {root} does not say which arrays it is of: make it anew")
    return Members(root, arrays)


class Members:
    """Rows of compressed members, which are decompressed when first read, and kept."""

    def __init__(self, path: Path, arrays: Mapping[str, Sequence[str]]) -> None:
        self._path, self._arrays = path, arrays
        self._read: dict[str, list[npt.NDArray[Any]]] = {}

    def chunks(self, field: str, number: int) -> Iterator[memoryview]:
        """The row of a number, counted through the field's arrays."""
        if field not in self._read:
            names = self._arrays.get(field)
            if type(names) is not list:  # as it comes from an index's JSON
                raise BadContainer(f"{self._path} has no field {field!r}: its index is of another")
            self._read[field] = [_member(self._path, name) for name in names]
        for array in self._read[field]:
            if number < len(array):
                yield np.ascontiguousarray(array[number]).reshape(-1).view(np.uint8).data
                return
            number -= len(array)
        raise BadContainer(f"{self._path} has fewer rows of {field} than its index says")


def _by_split(arrays: Sequence[Array], choice: Choice) -> dict[str, dict[str, Array]]:
    """Split -> name without the split -> array."""
    matches = [_SPLIT.fullmatch(one.name) for one in arrays]
    found: dict[str, dict[str, Array]] = {}
    if not all(matches):
        return {choice.split: {one.name: one for one in arrays}}
    for match, one in zip(matches, arrays, strict=True):
        assert match is not None
        split, name = match[1] or match[4], match[2] or match[3]
        found.setdefault(split, {})[name] = one
    return found


def _member(path: Path, name: str) -> npt.NDArray[Any]:
    """An array of an `.npz`, read and decompressed.

    Raises:
        BadContainer: it is damaged, or there is none of that name.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)  # type: ignore[no-untyped-call]
            if file.read(1):
                raise ValueError("longer than its shape")
    except DAMAGE as error:
        raise BadContainer(f"{path}: the array {name} is damaged: {error}") from None
    return array


def headers(path: Path) -> list[Array]:
    """The arrays of a file, by their headers.

    Raises:
        BadContainer: it is damaged, or not what it seems to be.
        UserError: arrays that cannot be cut into samples, or hold Python objects.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            file.seek(0)
            if head == _MAGIC:
                return [_array(path, path.stem, file, 0, size)]
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
                if len({info.filename for info in infos}) < len(infos):
                    raise ValueError("two arrays of one name")
                found = [_stored(path, archive, file, info, size) for info in infos]
    except DAMAGE as error:
        raise BadContainer(f"{path} is neither .npy nor .npz, or damaged: {error}") from None
    if not found:
        raise BadContainer(f"{path} has no arrays")
    return found


def _stored(
    path: Path, archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo, size: int
) -> Array:
    name = info.filename.removesuffix(".npy")
    if name == info.filename or info.flag_bits & 0x1 or info.header_offset < 0:
        raise ValueError(f"{info.filename} is no array of numpy's")
    if info.compress_type == zipfile.ZIP_STORED:
        start = npz.begin(file, info, size)
        file.seek(start)
        return _array(path, name, file, start, info.file_size)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError(f"{info.filename} is compressed as numpy does not")
    if info.file_size > info.compress_size * _RATIO + 1024:
        raise ValueError(f"{info.filename} cannot be {info.file_size} bytes: a zip bomb")
    with archive.open(info) as member:
        return _array(path, name, member, -1, info.file_size)


def _array(path: Path, name: str, file: IO[bytes], start: int, size: int) -> Array:
    """An array from its header.

    Args:
        start: of the header in the file; -1: compressed.
        size: bytes of header and array.
    """
    where = f"{path}: the array {name}"
    header = file.tell()
    _, shape, fortran, dtype = npz.header(file)
    header = file.tell() - header
    if dtype.hasobject:
        raise UserError(f"{where} holds Python objects, which are not unpickled: save numbers")
    if dtype.fields is not None:
        raise UserError(f"{where} has columns ({dtype}): save one array per column")
    if not shape:
        raise UserError(f"{where} is a single number: its first axis should count the samples")
    if fortran and len(shape) > 1:
        raise UserError(f"{where} is in Fortran's order: save np.ascontiguousarray of it")
    row = dtype.itemsize
    for length in shape[1:]:
        row *= length
    # Without rows any length of the other axes makes an array of 0 bytes.
    if max(*shape, row) > _MOST:
        raise ValueError(f"{name} has rows of the shape {shape[1:]} of {dtype}, which cannot be")
    if min(shape) < 0 or header + shape[0] * row != size:
        raise ValueError(f"{name} is not as long as its shape {shape} of {dtype}")
    if row == 0 and shape[0]:
        raise UserError(f"{where} has samples without any values: its shape is {shape}")
    return Array(path, name, shape, dtype, start + header if start >= 0 else -1, row)
