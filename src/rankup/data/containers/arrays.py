"""`.npy` and `.npz`: arrays whose first axis counts the samples.

What numpy has stored without compression is read where it lies. A compressed member has to be
decompressed from its beginning: each process does that once, and keeps the array.
"""

from __future__ import annotations

import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...base.amounts import size
from ...base.errors import UserError, nearest
from .. import npz
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split
from ..roles import LABELS, SPLITS, split_order
from ..stage import memory
from ..strings import Strings
from . import Choice, Fallback

_MAGIC = b"\x93NUMPY"
_RATIO = 1032  # bytes that deflate can make of one, at most
_MOST = (1 << 63) - 1  # an index counts in int64
_DAMAGED = (
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    SyntaxError,
    OverflowError,
    NotImplementedError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    RecursionError,
    MemoryError,
    tokenize.TokenError,  # numpy reads headers of Python 2 with Python's tokenizer
)
_MANY = 10_000_000  # rows
_BYTES_OF_ROW = 48  # of an index while it is made: offset, length, key, and what these are made of
_KINDS = "|".join(SPLITS)
_SPLIT = re.compile(rf"({_KINDS})[_.-](.+)|(.+)[_.-]({_KINDS})", re.IGNORECASE)


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


def scan(path: Path, choice: Choice) -> Index:
    """The arrays of a file: each is a field, its rows are the samples.

    Names tell splits where all do (`x_train`, `test_images`), and labels (`y`, `labels`, `targets`:
    of one axis, whole numbers or text). A lone array beside labels is the field `data`. Keys are
    numbers of rows.

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
    label, names = _roles(path, named, choice)
    order = sorted(named, key=lambda split: split_order(split.lower()))
    splits: list[Split] = []
    for name in order:
        at = splits[-1].stop if splits else 0
        count = _count(path, [one for key, one in named[name].items() if key in (label, *names)])
        splits.append(Split(name, at, at + count, name if len(order) > 1 else ""))
    parts = {
        "data" if len(names) == 1 else name: [named[split][name] for split in order]
        for name in names
    }
    labels: Int64s | None = None
    classes: tuple[str, ...] = ()
    if label is not None:
        sizes = [split.stop - split.start for split in splits]
        found = [named[split].get(label) for split in order]
        labels, classes = _labels(path, found, sizes)
    return Index(
        "numpy",
        Strings.of([b""]),
        tuple(splits),
        Strings.numbered([one.stop - one.start for one in splits], 8),
        tuple(_field(name, of) for name, of in parts.items()),
        labels,
        classes,
        np.array([path.stat().st_size], np.int64),
        facts={"arrays": {name: [one.name for one in of] for name, of in parts.items()}},
    )


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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": {}}


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


def _roles(
    path: Path, named: Mapping[str, Mapping[str, Array]], choice: Choice
) -> tuple[str | None, list[str]]:
    """The name of the labels, and those of the fields."""
    known = {name: one for arrays in named.values() for name, one in arrays.items()}
    if choice.key:
        raise UserError(f"{path}: samples of arrays are named by their numbers, not by a column")
    for name in (choice.label, *choice.fields):
        if name and name not in known:
            raise UserError(f"{path} has no array {name!r}: {nearest(name, known)}")
    able = [name for name, one in known.items() if _can_label(one)]
    free = [name for name in able if name.lower() in LABELS and name not in choice.fields]
    label = choice.label or next(iter(free), None)
    if label is not None and label not in able:
        raise UserError(
            f"{path}: {label} is no labels: one axis of whole numbers or text expected, not "
            f"{known[label].dtype} of shape {known[label].shape}"
        )
    if label is not None and len(known) == 1 and choice.label is None:
        label = None  # a lone array is data, whatever its name
    fields = [name for name in known if (name in choice.fields or not choice.fields)]
    fields = [name for name in fields if name != label]
    for split, arrays in named.items():
        for name in fields:
            if name not in arrays:
                raise UserError(f"{path} has no {name} of the split {split}, as of others")
            if (arrays[name].dtype, arrays[name].shape[1:]) != (
                known[name].dtype,
                known[name].shape[1:],
            ):
                raise UserError(f"{path}: {name} has other types or shapes in other splits")
    if not fields:
        raise UserError(f"{path} has labels only: no array is left to be the data")
    return label, fields


def _can_label(one: Array) -> bool:
    flat = len(one.shape) == 1 or (len(one.shape) == 2 and one.shape[1] == 1)
    return flat and one.dtype.kind in "iuSU"


def _count(path: Path, arrays: Sequence[Array]) -> int:
    counts = {one.shape[0] for one in arrays}
    if len(counts) > 1:
        all_of_them = ", ".join(f"{one.name} {one.shape[0]}" for one in arrays)
        raise UserError(
            f"{path} has arrays of different lengths ({all_of_them}): the first axis of all should "
            "count the samples; `--fields` takes some of them"
        )
    return counts.pop()


def _labels(
    path: Path, found: Sequence[Array | None], counts: Sequence[int]
) -> tuple[Int64s, tuple[str, ...]]:
    """Numbers and class names; a split without labels has -1."""
    parts = []
    for one, count in zip(found, counts, strict=True):
        if one is None:
            parts.append(np.full(count, -1))
        elif one.start < 0:
            parts.append(_member(path, one.name).reshape(-1))
        else:
            parts.append(np.fromfile(path, one.dtype, count, offset=one.start))
    if any(part.dtype.kind in "SU" for part in parts):
        if not all(part.dtype.kind in "SU" or (part == -1).all() for part in parts):
            raise UserError(f"{path}: labels of one split are text, of another numbers")
        texts = [_texts(part) for part in parts]
        names = sorted({name for part in texts for name in part} - {""})
        number_of = {"": -1} | {name: number for number, name in enumerate(names)}
        numbers = [number_of[name] for part in texts for name in part]
        return np.array(numbers, np.int64), tuple(names)
    for part in parts:
        if len(part) and (int(part.min()) < -1 or int(part.max()) >= 1 << 31):
            raise UserError(
                f"{path}: labels from {part.min()} to {part.max()}; numbers of classes expected, "
                "-1 for none"
            )
    return np.concatenate(parts).astype(np.int64), ()


def _texts(labels: npt.NDArray[Any]) -> list[str]:
    """Text of labels; empty for none."""
    if labels.dtype.kind == "S":
        return [one.decode("utf-8", "surrogateescape") for one in labels.tolist()]
    return labels.tolist() if labels.dtype.kind == "U" else [""] * len(labels)


def _field(name: str, parts: Sequence[Array]) -> Field:
    offsets, at = [], 0
    for one in parts:
        rows = np.arange(one.shape[0], dtype=np.int64)
        offsets.append(one.start + rows * one.row if one.start >= 0 else ~(at + rows))
        at += one.shape[0]
    first = parts[0]
    length = np.full(at, first.row, np.int64)
    offset = np.concatenate(offsets)
    return Field(name, offset, length, dtype=first.dtype.str, shape=first.shape[1:])


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
    except _DAMAGED as error:
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
