"""The HDF5 files that rankup writes: one process makes the file, any number fill it in.

    /                     attribute `rankup_hdf5`: 2, or 0 while it is being written
    /classes              names of the classes, where there are any
    /train                a group per split
    /train/labels         int64 (n,), -1: none; where there are labels
    /train/keys           uint8, the names of all samples one after another
    /train/key_offsets    int64 (n + 1,): the name of sample i is keys[key_offsets[i]:…[i + 1]]
    /train/data           uint8, all samples one after another
    /train/offsets        int64 (n + 1,): sample i is data[offsets[i]:offsets[i + 1]]
    /train/hashes         uint64 (n,), xxh3 of the bytes of each sample

A lone field is called `data`. Of several each has its own name: `/train/jpg/data`, `…/offsets` and
`…/hashes`. An array field is an ordinary data set (n, …), `/train/data` or `/train/<field>`, with
its hashes in `/train/hashes` or `/train/hashes/<field>`.

All data sets are contiguous, allocated early and never filled, so that each has its place in the
file before it has content. libhdf5 then has no part in the writing, nor has MPI.

Data sets of a file that may come from anywhere are looked at before they are read (`opened`):
libhdf5 believes a file, follows links into other files, and allocates what a shape declares.

Rows of variable length are read without it. A row is 16 bytes: its length, and the address of a
*global heap* with the number of an object in it. libhdf5 takes a lock and several copies for each,
and loops for ever in a heap whose object says to have no size. Format: HDF5 File Format
Specification, III.E, "Global Heap".
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from h5py import h5d, h5p, h5s, h5t

from ...base.errors import UserError
from ...base.files import pwrite_all
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, Strings, UInt64s
from ..pack.layout import Piece, Shape, units
from ..spans import Spans

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
_RESERVED = {"labels", "keys", "key_offsets", "hashes", "offsets", CLASSES}


def opened(path: Path) -> h5py.File:
    """The file for reading; without locks, which hang or fail on parallel file systems."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if "locking flag" not in str(error):
            raise
        # This process has it open with locks, and libhdf5 wants them alike in all of its handles.
        return h5py.File(path, "r")


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
    """Return where the elements of a data set lie one after another in the file; None: in chunks.

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
        """Return where the bytes of an object of a heap lie, and how many there are."""
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


@dataclass(frozen=True)
class Column:
    """A data set to be; its content, where that does not wait for the samples."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    content: Callable[[], npt.NDArray[np.generic]] | None = None


@dataclass(frozen=True)
class Hdf5Layout:
    """A `Layout`; until `begin` made the file, places in it are estimates.

    Attributes:
        places: offset in the file of each data set, by its path.
    """

    index: Index
    sizes: Int64s
    units: Int64s
    places: Mapping[str, int]

    def begin(self, root: Path) -> Hdf5Layout:
        """Make the file with all its columns but those of hashes."""
        columns = _columns(self.index)
        with h5py.File(root, "w", libver="earliest", locking=False) as file:
            file.attrs[MARK] = np.int64(0)
            for path, column in columns.items():
                _make(file, path, column)
        layout = self.attach(root)
        with root.open("r+b", buffering=0) as raw:
            for path, column in columns.items():
                if column.content is not None:
                    data = np.ascontiguousarray(column.content()).reshape(-1).view(np.uint8).data
                    pwrite_all(raw.fileno(), data, layout.places[path])
        return layout

    def attach(self, root: Path) -> Hdf5Layout:
        """The layout with the places that the file has."""
        with opened(root) as file:
            # What is empty has no place; the samples in it, of no bytes, are at the beginning.
            places = {path: file[path].id.get_offset() or 0 for path in _columns(self.index)}
        return _placed(self.index, self.units, places, root.stat().st_size)

    def before(self, start: int, stop: int) -> Iterator[Piece]:
        """Nothing: samples stand one after another."""
        return iter(())

    def after(self, start: int, stop: int, hashes: UInt64s) -> Iterator[Piece]:
        """The rows of the columns of hashes; a unit lies in one split."""
        if start == stop:
            return
        split = self.index.split_of(start)
        for field, values in zip(self.index.fields, hashes, strict=True):
            at = self.places[_paths(self.index, split, field)[1]]
            data = values.astype("<u8").tobytes()
            yield Piece(0, at + (start - split.start) * 8, data)

    def finish(self, root: Path, hashes: UInt64s) -> None:
        """Say in the file that it is whole."""
        with h5py.File(root, "r+", libver="earliest", locking=False) as file:
            file.attrs.modify(MARK, np.int64(VERSION))


def plan(source: Index, shape: Shape) -> Hdf5Layout:
    """Return the layout of the file for the samples of `source`, in their order. Pure.

    Raises:
        UserError: a name or an array type that HDF5 cannot have, or an array of another size.
    """
    _check_names(source)
    for field in source.fields:
        _check_field(field)
    index = Index(
        "hdf5",
        Strings.of([b""]),
        source.splits,
        source.keys,
        tuple(replace(one, file=None, hash=None) for one in source.fields),
        source.labels,
        source.classes,
    )
    places, end = {}, 4096
    for path, column in _columns(index).items():
        places[path] = end
        end += math.prod(column.shape) * column.dtype.itemsize
    return _placed(index, units(index, (one.stop for one in index.splits)), places, end)


def _check_names(source: Index) -> None:
    for what, names in (
        ("split", [one.name for one in source.splits]),
        ("field", [one.name for one in source.fields]),
    ):
        for name in names:
            if not name or not _encodable(name):
                raise UserError(f"{name!r} is no name for a {what} in HDF5: rename it")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"there are two {what}s named {twice!r}: rename one of them")
    for name in source.classes:
        if "\0" in name or not _encodable(name):
            raise UserError(f"{name!r} is no name for a class in HDF5: rename it")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _check_field(field: Field) -> None:
    if np.any(field.length < 0):
        raise UserError(f"how long the samples of {field.name!r} are is not known yet")
    if not field.dtype:
        return
    dtype = np.dtype(field.dtype)
    if dtype.hasobject or dtype.kind == "V":
        raise UserError(
            f"the field {field.name!r} is {dtype}, which rankup does not write to HDF5: leave it "
            "out (--fields), or turn it into numbers"
        )
    wrong = np.flatnonzero(field.length != field.width)
    if len(wrong):
        raise UserError(
            f"sample {wrong[0]} of the field {field.name!r} has {field.length[wrong[0]]} bytes, "
            f"not the {field.width} of {dtype} of shape {field.shape}"
        )


def _columns(index: Index) -> dict[str, Column]:
    """Every data set of the file by its path, in the order in which they are made."""
    columns: dict[str, Column] = {}
    int64, uint8 = np.dtype("<i8"), np.dtype("u1")
    if index.classes:
        names = [name.encode("utf-8", "surrogateescape") for name in index.classes]
        text: np.dtype[np.generic] = h5py.string_dtype("utf-8", max(1, *map(len, names)))
        columns[f"/{CLASSES}"] = Column(text, (len(names),), partial(np.array, names, text))
    for split in index.splits:
        n = split.stop - split.start
        group = f"/{link(split.name)}"
        if index.labels is not None:
            labels = index.labels[split.start : split.stop]
            columns[f"{group}/labels"] = Column(int64, (n,), partial(labels.astype, int64))
        ends = index.keys.ends[split.start : split.stop + 1]
        keys = index.keys.data[int(ends[0]) : int(ends[-1])]
        columns[f"{group}/keys"] = Column(uint8, keys.shape, partial(np.asarray, keys))
        offsets = Column(int64, (n + 1,), partial(np.subtract, ends, ends[0]))
        columns[f"{group}/key_offsets"] = offsets
        for field in index.fields:
            data, hashes, ends_at = _paths(index, split, field)
            columns[hashes] = Column(np.dtype("<u8"), (n,))
            if field.dtype:
                columns[data] = Column(np.dtype(field.dtype), (n, *field.shape))
            else:
                length = field.length[split.start : split.stop]
                columns[ends_at] = Column(int64, (n + 1,), partial(_ends, length))
                columns[data] = Column(uint8, (int(length.sum()),))
    return columns


def _ends(sizes: Int64s) -> Int64s:
    """Where each of several begins, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _paths(index: Index, split: Split, field: Field) -> tuple[str, str, str]:
    """Where the data, the hashes and the offsets of a field of a split stand."""
    group, name = f"/{link(split.name)}", link(field.name)
    lone = len(index.fields) == 1 and field.name == "data"
    if field.dtype:
        return (
            (f"{group}/data", f"{group}/hashes", "")
            if lone
            else (f"{group}/{name}", f"{group}/hashes/{name}", "")
        )
    base = group if lone else f"{group}/{name}"
    return f"{base}/data", f"{base}/hashes", f"{base}/offsets"


def link(name: str) -> str:
    """The name of a split or field in the file: `%XX` for what HDF5 or this layout cannot have."""
    text = "".join(_coded(c) if c in "%/\0" or "\udc80" <= c <= "\udcff" else c for c in name)
    if text in _RESERVED or not text.strip("."):
        text = _coded(text[0]) + text[1:]
    return text


def _coded(character: str) -> str:
    return f"%{ord(character) & 0xFF:02X}"


def _make(file: h5py.File, path: str, column: Column) -> None:
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_layout(h5d.CONTIGUOUS)
    how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    if column.dtype.kind in "UMm":  # HDF5 has no such types; h5py knows these by their tag
        kind = h5t.py_create(h5py.opaque_dtype(column.dtype), logical=True)
    else:
        kind = h5t.py_create(column.dtype, logical=True)
    folder, _, name = path.rpartition("/")
    group = file.require_group(folder or "/")
    h5d.create(group.id, name.encode(), kind, h5s.create_simple(column.shape), how)


def _placed(index: Index, units: Int64s, places: Mapping[str, int], size: int) -> Hdf5Layout:
    fields = []
    for field in index.fields:
        offset = np.empty(len(index), np.int64)
        for split in index.splits:
            lengths = field.length[split.start : split.stop]
            at = places[_paths(index, split, field)[0]]
            offset[split.start : split.stop] = _ends(lengths)[:-1] + at
        fields.append(replace(field, offset=offset))
    sizes = np.array([size], np.int64)
    return Hdf5Layout(replace(index, fields=tuple(fields), sizes=sizes), sizes, units, places)
