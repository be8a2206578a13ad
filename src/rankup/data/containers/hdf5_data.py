"""Data sets of an HDF5 file that may come from anywhere, looked at before they are read.

libhdf5 believes a file: it follows links into other files, and allocates what a shape declares.

Rows of variable length are read without it. A row is 16 bytes: its length, and the address of a
*global heap* with the number of an object in it. libhdf5 takes a lock and several copies for each,
and loops for ever in a heap whose object says to have no size. Format: HDF5 File Format
Specification, III.E, "Global Heap".
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from ..errors import BadContainer
from ..spans import Spans
from ..strings import Strings

MARK = "rankup_hdf5"  # attribute of the files that rankup writes: the version of their layout
VERSION = 2
CLASSES = "classes"

# No known writer makes chunks of this size; a row of one is read as a whole.
_CHUNK = 1 << 30
_OBJECTS = 10_000
_ROW = struct.Struct("<IQI")
_TABLE = np.dtype([("length", "<u4"), ("address", "<u8"), ("object", "<u4")])
_HEAP = struct.Struct("<4s4xQ")  # signature, version and three zeros, size of all
_OBJECT = struct.Struct("<H6xQ")  # its number, how often it is used, its size
WIDTH = _ROW.size
_WINDOW = 4096  # what libhdf5 makes of small rows; a large one has a heap of its own
_PIECE = 16 << 20


def opened(path: Path) -> h5py.File:
    """The file for reading; without locks, which hang or fail on parallel file systems."""
    return h5py.File(path, "r", locking=False)


def members(group: h5py.Group) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """Groups and data sets of a group by name; soft links, which point elsewhere in it, are not.

    Raises:
        BadContainer: a link into another file, or very many objects.
    """
    if len(group) > _OBJECTS:
        raise BadContainer(
            f"{group.name} has {len(group)} objects: rankup reads data sets whose rows are "
            "samples, not one data set per sample"
        )
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise BadContainer(
                f"{group.name} has a link {name!r} into another file, which is not followed: copy "
                "the data into one file (h5repack, or h5py's copy with expand_external=True)"
            )
        if isinstance(link, h5py.HardLink):
            found = group[name]
            if isinstance(found, h5py.Group | h5py.Dataset):
                yield name, found


def at(file: h5py.File, path: str) -> h5py.Dataset:
    """The data set of a path that somebody else has written down, looked at like any other.

    Raises:
        BadContainer: there is none, or it lies in another file.
    """
    found = file
    for name in filter(None, path.split("/")):
        link = found.get(name, getlink=True) if isinstance(found, h5py.Group) else None
        if not isinstance(link, h5py.HardLink):
            raise BadContainer(f"there is no data set {path} in the file itself")
        found = found[name]
    if not isinstance(found, h5py.Dataset):
        raise BadContainer(f"{path} is no data set")
    place(found, os.path.getsize(file.filename))
    return found


def place(data: h5py.Dataset, size: int) -> int | None:
    """Where the elements of a data set lie one after another in the file; None: in chunks.

    What comes back without an error may be read: it is no larger than the file, or its chunks
    are all there. A data set without elements lies at 0.

    Args:
        size: bytes of the file.

    Raises:
        BadContainer: it goes past the end of the file, was never written, or lies in other files.
    """
    how = data.id.get_create_plist()
    layout = how.get_layout()
    if layout == h5py.h5d.VIRTUAL or how.get_external_count():
        raise BadContainer(
            f"{data.name} lies in other files (virtual or external storage), which are not "
            "followed: copy the data into one file"
        )
    if data.shape is None:
        raise BadContainer(f"{data.name} has no shape")
    length = math.prod(data.shape) * data.id.get_type().get_size()
    if length == 0:
        return 0
    if layout == h5py.h5d.CONTIGUOUS:
        offset = data.id.get_offset()
        if offset is None:
            raise BadContainer(f"{data.name} was declared and never written")
        stored = data.id.get_storage_size()
        if stored != length and stored >= length // 2 and data.dtype.hasobject:
            length = stored  # the type's size is that in memory: of text a pointer
        if stored != length or offset + length > size:
            raise BadContainer(
                f"{data.name} should be {length} bytes at {offset} of a file of {size} bytes: the "
                "file was cut short, or is damaged"
            )
        return int(offset)
    if layout == h5py.h5d.CHUNKED:
        _check_chunks(data, how)
    return None


def _check_chunks(data: h5py.Dataset, how: h5py.h5p.PropDCID) -> None:
    chunk = math.prod(data.chunks) * data.id.get_type().get_size()
    if chunk > _CHUNK:
        raise BadContainer(f"{data.name} has chunks of {chunk} bytes; up to {_CHUNK} are read")
    declared = math.prod(
        -(-rows // step) for rows, step in zip(data.shape, data.chunks, strict=True)
    )
    written = data.id.get_num_chunks()
    if written != declared:
        raise BadContainer(f"{data.name} has {written} of {declared} chunks: not all was written")
    for number in range(how.get_nfilters()):
        code, _, _, name = how.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            shown = name.decode(errors="replace") or f"number {code}"
            raise BadContainer(
                f"{data.name} is compressed with the filter {shown}, which this h5py does not "
                "have: write it with gzip or uncompressed (h5repack -f NONE)"
            )


def column(data: h5py.Dataset, size: int) -> npt.NDArray[np.generic]:
    """All of a data set in one axis, looked at before; texts of variable length as bytes objects.

    Raises:
        BadContainer: as `place`.
    """
    at = place(data, size)
    if at is not None and data.dtype.hasobject and data.ndim == 1 and is_heap(data):
        return np.array(texts(data, at), dtype=object)
    found: npt.NDArray[np.generic] = data[()]
    return found.reshape(-1)


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
    rows = Rows(Path(data.file.filename), base(data.file))
    return [b"".join(rows.row(at + row * WIDTH)) for row in range(len(data))]


class Rows:
    """The rows of variable length of a file.

    Args:
        start: see `base`.
    """

    def __init__(self, path: Path, start: int) -> None:
        self._spans = Spans(path, Strings.of([b""]), np.empty(0, np.int64), "pread")
        self._start, self._size = start, path.stat().st_size

    def row(self, at: int) -> Iterator[bytes]:
        """The bytes of a row whose 16 bytes lie at `at`, piece by piece.

        Raises:
            BadContainer: it is not where they say.
        """
        length, address, number = _ROW.unpack(self._read(at, _ROW.size))
        if length == 0:
            return
        place, size = self._object(self._start + address, number)
        if length > size:
            raise BadContainer(f"a row of {length} bytes in {size} bytes of a heap at {address}")
        for done in range(0, length, _PIECE):
            yield self._read(place + done, min(_PIECE, length - done))

    def _object(self, heap: int, number: int) -> tuple[int, int]:
        """Where the bytes of an object of a heap lie, and how many there are."""
        window = self._read(heap, max(0, min(_WINDOW, self._size - heap)))
        if len(window) < _HEAP.size or not window.startswith(b"GCOL\x01"):
            raise BadContainer(f"there is no heap at {heap}")
        _, total = _HEAP.unpack_from(window)
        at = _HEAP.size
        while at + _OBJECT.size <= total:
            if at + _OBJECT.size <= len(window):
                found, size = _OBJECT.unpack_from(window, at)
            else:
                found, size = _OBJECT.unpack(self._read(heap + at, _OBJECT.size))
            at += _OBJECT.size
            if found == 0:  # the free rest
                break
            if found == number:
                if at + size > total:
                    break
                return heap + at, size
            at += size + -size % 8
        raise BadContainer(f"the heap at {heap} has no object {number}")

    def _read(self, at: int, length: int) -> bytes:
        return bytes(self._spans.read(0, at, length))
