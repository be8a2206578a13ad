"""`--extract`: the samples as files again, as they were before they were packed."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from ...base.amounts import size
from ...base.errors import UserError
from ...base.files import pwrite_all
from ..index import Field, Index, Split
from ..opened import Samples
from . import places
from .parts import Parts, parts
from .verify import Damage, Watch, name
from .workers import cores, spread

PART = ".part"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST = 1 << 62  # bytes of a sample; a damaged index may say more
# What is wrong with one name; anything else is wrong with the machine.
_OF_THE_NAME = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ}


@dataclass(frozen=True)
class Extracted:
    """What was written.

    Attributes:
        folder: where it is: with `.part` at its end where not all came out sound.
        samples: how many; of several fields each counts.
        size: their bytes.
    """

    folder: Path
    samples: int
    size: int
    damaged: tuple[Damage, ...]


def extract(samples: Samples, splits: tuple[Split, ...], out: Path, watch: Watch) -> Extracted:
    """Write the samples of splits below a new folder, on all cores, comparing hashes on the way.

    Bytes become `<folder of the split>/<key>` where they are the one field `data`, else
    `<key>.<field>`; an array field one `.npy` per split, as `numpy.save` writes it. All is written
    to `<out>.part`, which is renamed at the end; it is not where a sample is damaged. Nothing is
    synced: what was extracted may be empty after a crash of the machine soon after.

    Args:
        splits: one next to the other.

    Raises:
        UserError: `out` is not new or empty, cannot be written to or is too small, or the name of
            a sample would leave it.
        OSError: it cannot be written.
    """
    index, out = samples.index, Path(os.path.abspath(out))
    needed = places.folders(index, splits, str(samples.root))
    part = _begin(out, _needed(index, splits))
    total = count = 0
    bad: list[tuple[int, int, str]] = []
    with contextlib.ExitStack() as opened, _space(part):
        root = os.open(part, _FOLDER)
        opened.callback(os.close, root)
        for folder in needed:
            # One that differs in case alone may be there, where that makes no difference.
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=root)
        arrays: dict[tuple[str, int], _Array] = {}
        for split, number, array in _new_arrays(root, index, splits):
            opened.callback(os.close, array.descriptor)
            arrays[split.name, number] = array
        span = parts(index, splits[0].start, splits[-1].stop) if splits else parts(index, 0, 0)
        work = _Write(samples, root, arrays, span)
        for done, spans, found in spread(work, range(len(span)), cores()):
            total, count = total + done, count + spans
            bad.extend(found)
            watch(total, count)
    damaged = tuple(Damage(name(index, row, field), why) for row, field, why in sorted(bad))
    os.chmod(part, 0o777 & ~_umask())
    if damaged:
        return Extracted(part, count, total, damaged)
    part.rename(out)  # also over an empty folder
    return Extracted(out, count, total, ())


def _needed(index: Index, splits: tuple[Split, ...]) -> int:
    """Bytes of the files, as far as they are known before they are read."""
    rows = slice(splits[0].start, splits[-1].stop) if splits else slice(0, 0)
    bytes_ = sum(
        int(one.length[rows].clip(0, _MOST).sum(dtype=np.float64))
        for one in index.fields
        if not one.dtype
    )
    count = rows.stop - rows.start
    return bytes_ + sum(count * _item(one) for one in index.fields if one.dtype)


def _item(field: Field) -> int:
    return np.dtype(field.dtype).itemsize * math.prod(field.shape)


@contextlib.contextmanager
def _space(part: Path) -> Iterator[None]:
    """Says where there was no more space, which the kernel does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(
            f"{os.strerror(error.errno)} for {part}, which holds what was extracted so far: remove "
            f"it (rm -r), make space, and begin anew; or name a folder elsewhere"
        ) from None


def _begin(out: Path, needed: int) -> Path:
    part = out.with_name(out.name + PART) if out.name else out
    if not out.name or out.is_mount():
        raise UserError(f"{out} cannot be replaced as a whole: name a folder in it")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is there already, and is no folder: name a new one")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: name a new folder, or an empty one")
    if out.parent.is_dir():
        about = os.statvfs(out.parent)
        free = about.f_bavail * about.f_frsize
        if needed > free:
            raise UserError(
                f"{out} needs {size(needed)}, and {out.parent} has {size(free)} free: "
                f"{size(needed - free)} too little; name a folder elsewhere"
            )
    try:
        part.mkdir(0o700)  # nobody else can put a link into it while it is written
    except FileExistsError:
        raise UserError(
            f"{part} is there, from an extraction that was interrupted or that found damage: "
            f"remove it (rm -r), or name another folder"
        ) from None
    except FileNotFoundError:
        raise UserError(f"there is no folder {out.parent}: make it first") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{out.parent} cannot be written to ({error.strerror}): name a folder elsewhere"
        ) from None
    return part


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@dataclass(frozen=True)
class _Array:
    """A .npy of one field and split that is being written.

    Attributes:
        split: its samples.
        start: the byte at which the first of them is.
        item: bytes of each.
    """

    descriptor: int
    split: Split
    start: int
    item: int


def _new_arrays(
    root: int, index: Index, splits: tuple[Split, ...]
) -> Iterator[tuple[Split, int, _Array]]:
    """A file for each array field of each split; the labels' too, but these are written here."""
    names = [one.name for one in index.fields]
    arrays = [(number, one) for number, one in enumerate(index.fields) if one.dtype]
    for split in splits:
        for number, one in arrays:
            yield split, number, _new_array(root, one, split, len(splits) == 1)
        if arrays and index.labels is not None and places.LABELS not in names:
            labels = index.labels[split.start : split.stop]
            about = Field(places.LABELS, labels, labels, dtype="<i8")
            array = _new_array(root, about, split, len(splits) == 1)
            with open(array.descriptor, "wb") as file:
                file.seek(array.start)
                file.write(labels.tobytes())


def _new_array(root: int, field: Field, split: Split, alone: bool) -> _Array:
    dtype, count = np.dtype(field.dtype), split.stop - split.start
    descriptor = os.open(places.of_array(split, field.name, alone), _NEW, 0o666, dir_fd=root)
    with open(descriptor, "wb", closefd=False) as file:
        head = {
            "descr": np.lib.format.dtype_to_descr(dtype),  # type: ignore[no-untyped-call]
            "fortran_order": False,
            "shape": (count, *field.shape),
        }
        np.lib.format.write_array_header_1_0(file, head)
        start = file.tell()
    item = _item(field)
    os.truncate(descriptor, start + count * item)
    return _Array(descriptor, split, start, item)


@dataclass(frozen=True)
class _Write:
    """Writes the spans of a part; gives bytes, count, and (row, field, why) of the bad ones."""

    samples: Samples
    root: int
    arrays: Mapping[tuple[str, int], _Array]
    parts: Parts

    def __call__(self, part: int) -> tuple[int, int, list[tuple[int, int, str]]]:
        index, spans = self.samples.index, self.parts.of(part)
        ends = [places.end(index, number) for number in range(len(index.fields))]
        done, bad = 0, []
        for number, row in spans:
            field = index.fields[number]
            split = index.split_of(row)
            data = _Pieces(self.samples.chunks(row, field.name))
            try:
                if field.dtype:
                    why = _into(data, self.arrays[split.name, number], row)
                else:
                    key = index.keys[row]
                    why = self._file(data, places.of_sample(split, key, ends[number]))
            except UserError as error:
                why = f"it cannot be read: {error}"
            if not why and field.hash is not None and data.digest() != field.hash[row]:
                why = "its bytes are not those that were packed"
            if why:
                bad.append((row, number, why))
            done += data.size
        return done, len(spans), bad

    def _file(self, data: Iterable[bytes | memoryview], path: bytes) -> str:
        """Write a new file; why not, where that is for its name."""
        try:
            descriptor = os.open(path, _NEW, 0o666, dir_fd=self.root)
        except OSError as error:
            if error.errno not in _OF_THE_NAME:
                raise
            if error.errno == errno.EEXIST:
                return "another sample has its name (or one that differs in case alone)"
            return f"it cannot have this name here: {error.strerror}"
        try:
            for piece in data:
                _write(descriptor, piece)
        finally:
            os.close(descriptor)
        return ""


class _Pieces:
    """The pieces of a sample, hashed as they pass."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self._pieces, self._state, self.size = pieces, xxhash.xxh3_64(), 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for piece in self._pieces:
            self._state.update(piece)
            self.size += len(piece)
            yield piece

    def digest(self) -> int:
        return self._state.intdigest()


def _into(data: _Pieces, array: _Array, row: int) -> str:
    at = array.start + (row - array.split.start) * array.item
    end = at + array.item
    for piece in data:
        if at + len(piece) > end:
            return f"it has more than the {array.item} bytes of its array"
        pwrite_all(array.descriptor, piece, at)
        at += len(piece)
    return "" if at == end else f"it has less than the {array.item} bytes of its array"


def _write(descriptor: int, data: bytes | memoryview) -> None:
    """All of `data`, which the system may take in parts (2 GiB at most)."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
