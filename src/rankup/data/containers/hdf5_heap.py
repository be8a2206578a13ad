"""Rows of variable length, read from an HDF5 file without libhdf5.

A row is 16 bytes: its length, and the address of a *global heap* with the number of an object in
it. libhdf5 takes a lock and several copies for each, and loops for ever in a heap whose object
says to have no size. Format: HDF5 File Format Specification, III.E, "Global Heap".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from ..errors import BadContainer

_ROW = struct.Struct("<IQI")
_TABLE = np.dtype([("length", "<u4"), ("address", "<u8"), ("object", "<u4")])
_HEAP = struct.Struct("<4s4xQ")  # signature, version and three zeros, size of all
_OBJECT = struct.Struct("<H6xQ")  # its number, how often it is used, its size
WIDTH = _ROW.size
_WINDOW = 4096  # what libhdf5 makes of small rows; a large one has a heap of its own
_PIECE = 16 << 20


def is_heap(data: h5py.Dataset) -> bool:
    """Return True where the rows of a contiguous data set of variable length have this form."""
    sizes = data.file.id.get_create_plist().get_sizes()
    stored = data.id.get_storage_size()
    return sizes == (8, 8) and stored == len(data) * WIDTH


def base(file: h5py.File) -> int:
    """Return the origin of addresses in a file: the size of the user block in front."""
    return int(file.userblock_size)


def lengths(data: h5py.Dataset, at: int) -> npt.NDArray[np.int64]:
    """Bytes of each row of a data set whose table lies at `at`."""
    table = np.fromfile(data.file.filename, _TABLE, len(data), offset=at)
    return table["length"].astype(np.int64)


def texts(data: h5py.Dataset, at: int) -> list[bytes]:
    """All rows of a data set whose table lies at `at`.

    Raises:
        BadContainer: one is not where the table says.
    """
    start = base(data.file)
    with Path(data.file.filename).open("rb") as file:
        every = range(at, at + len(data) * WIDTH, WIDTH)
        return [b"".join(row(file.fileno(), one, start)) for one in every]


def row(descriptor: int, at: int, start: int) -> Iterator[bytes]:
    """The bytes of a row, piece by piece.

    Args:
        at: where its 16 bytes lie in the file.
        start: see `base`.

    Raises:
        BadContainer: it is not where they say.
    """
    length, address, number = _ROW.unpack(_exactly(descriptor, _ROW.size, at))
    if length == 0:
        return
    place, size = _object(descriptor, start + address, number)
    if length > size:
        raise BadContainer(f"a row of {length} bytes in {size} bytes of a heap at {address}")
    while length:
        part = _exactly(descriptor, min(length, _PIECE), place)
        yield part
        place += len(part)
        length -= len(part)


def _object(descriptor: int, heap: int, number: int) -> tuple[int, int]:
    """Where the bytes of an object of a heap lie, and how many there are."""
    window = os.pread(descriptor, _WINDOW, heap) if heap < 1 << 62 else b""
    if len(window) < _HEAP.size or not window.startswith(b"GCOL\x01"):
        raise BadContainer(f"there is no heap at {heap}")
    _, total = _HEAP.unpack_from(window)
    at = _HEAP.size
    while at + _OBJECT.size <= total:
        if at + _OBJECT.size <= len(window):
            found, size = _OBJECT.unpack_from(window, at)
        else:
            found, size = _OBJECT.unpack(_exactly(descriptor, _OBJECT.size, heap + at))
        at += _OBJECT.size
        if found == 0:  # the free rest
            break
        if found == number:
            if at + size > total:
                break
            return heap + at, size
        at += size + -size % 8
    raise BadContainer(f"the heap at {heap} has no object {number}")


def _exactly(descriptor: int, length: int, at: int) -> bytes:
    data = os.pread(descriptor, length, at) if at < 1 << 62 else b""
    if len(data) != length:
        raise BadContainer(f"it ends before {at + length} bytes")
    return data
