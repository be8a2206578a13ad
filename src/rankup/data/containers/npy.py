"""Headers of numpy's files: where an array lies in an `.npy` or `.npz`."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import npz
from ..errors import BadContainer

_MAGIC = b"\x93NUMPY"
_RATIO = 1032  # bytes that deflate can make of one, at most
_MOST = (1 << 63) - 1  # an index counts in int64
_DAMAGED = (
    *(ValueError, EOFError, KeyError, TypeError, SyntaxError, OverflowError, NotImplementedError),
    *(struct.error, zlib.error, zipfile.BadZipFile, RecursionError, MemoryError),
    tokenize.TokenError,  # numpy reads headers of Python 2 with Python's tokenizer
)


@dataclass(frozen=True)
class Array:
    """An array in a file.

    Attributes:
        start: where its first row lies; -1: in a compressed member.
        row: bytes of a sample.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    row: int


def member(path: Path, name: str) -> npt.NDArray[Any]:
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
    except _DAMAGED as error:
        raise BadContainer(f"{path}: the array {name} is damaged: {error}") from None
    return array


def arrays(path: Path) -> list[Array]:
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
    except _DAMAGED as error:
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
    return Array(name, shape, dtype, start + header if start >= 0 else -1, row)
