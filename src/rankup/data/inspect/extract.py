"""`--extract`: the samples as files again, as they were before they were packed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ...base.amounts import size
from ...base.errors import UserError
from ...base.files import pwrite_all
from ...base.progress import Progress
from .. import npz
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Split, folders
from ..pack.source import unsound
from ..pool import cores, spread
from ..verified import Reader, Span
from .verify import Damage, check_names, compared, end_of, name, parts

PART = ".part"
LABELS = "labels"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# What is wrong with one name; anything else is wrong with the machine.
_OF_THE_NAME = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ}


@dataclass(frozen=True)
class Extracted:
    """The files and samples that were written.

    Attributes:
        folder: where it is: with `.part` at its end where not all came out sound.
        samples: how many; of several fields each counts.
        size: their bytes.
    """

    folder: Path
    samples: int
    size: int
    damaged: tuple[Damage, ...]


def extract(
    index: Index, root: Path, splits: tuple[Split, ...], out: Path, watch: Progress
) -> Extracted:
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
    wrong = unsound(index)
    if wrong:
        raise BadContainer(f"{root} is damaged, or not what it seems: {wrong}")
    out = Path(os.path.abspath(out))
    needed = _folders(index, splits, str(root))
    start, stop = (splits[0].start, splits[-1].stop) if splits else (0, 0)
    part = _begin(out, sum(_bytes(one, start, stop) for one in index.fields))
    base = os.path.join(os.fsencode(part), b"")
    total = count = 0
    bad: list[tuple[int, int, str]] = []
    arrays: dict[tuple[str, int], _Array] = {}
    with _space(part):
        for folder in needed:
            os.makedirs(base + folder, exist_ok=True)
        try:
            _make_arrays(arrays, base, index, splits)
            names = (one.name for one in splits)
            folder_of = dict(zip(names, folders(splits), strict=True))
            write = _Write(Reader(index, root), base, arrays, folder_of)
            for done, spans, found in spread(write, parts(index, start, stop), cores()):
                total, count = total + done, count + spans
                bad += found
                watch(total, samples=count)
        finally:
            for array in arrays.values():
                os.close(array.descriptor)
    damaged = tuple(Damage(name(index, row, field), why) for row, field, why in sorted(bad))
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(part, 0o777 & ~mask)
    if damaged:
        return Extracted(part, count, total, damaged)
    part.rename(out)  # also over an empty folder
    return Extracted(out, count, total, ())


def _bytes(field: Field, start: int, stop: int) -> int:
    """Return the bytes of the files of a field, as far as they are known before they are read."""
    if field.dtype:
        return (stop - start) * field.width
    return int(field.length[start:stop].clip(0).sum())


@contextlib.contextmanager
def _space(part: Path) -> Iterator[None]:
    """Say where there was no more space, which the kernel does not."""
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
    if os.path.lexists(out) and (not out.is_dir() or out.is_symlink() or any(out.iterdir())):
        raise UserError(f"{out} is there, and is no empty folder: name a new one")
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


def _folders(index: Index, splits: tuple[Split, ...], where: str) -> set[bytes]:
    """Return all folders that are needed; every name is checked on the way.

    Args:
        where: the container, for messages.

    Raises:
        BadContainer: a name would not stay below the folder that all is written to.
    """
    needed = set()
    check_names(index, splits, where)
    for split, folder in zip(splits, folders(splits), strict=True):
        needed.add(folder)
        for row in range(split.start, split.stop) if any(not f.dtype for f in index.fields) else ():
            needed.add(os.path.dirname(folder + index.keys[row]))
    return needed


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

    def write(self, data: Iterable[bytes | memoryview], row: int) -> str:
        """Write a sample; return why not, where its length is another."""
        at = self.start + (row - self.split.start) * self.item
        end = at + self.item
        for piece in data:
            if at + len(piece) > end:
                return f"it has more than the {self.item} bytes of its array"
            pwrite_all(self.descriptor, piece, at)
            at += len(piece)
        return "" if at == end else f"it has less than the {self.item} bytes of its array"


def _make_arrays(
    arrays: dict[tuple[str, int], _Array], base: bytes, index: Index, splits: tuple[Split, ...]
) -> None:
    """Make a file for each array field of each split; the labels' too, which are written here."""
    fields = [(number, one) for number, one in enumerate(index.fields) if one.dtype]
    labels = index.labels
    if fields and labels is not None and LABELS not in [one.name for one in index.fields]:
        fields.append((-1, Field(LABELS, labels, labels, dtype="<i8")))
    for split, folder in zip(splits, folders(splits), strict=True):
        for number, field in fields:
            count = split.stop - split.start
            head = npz.array_header(field.dtype, (count, *field.shape))
            path = base + folder + os.fsencode(field.name) + b".npy"
            descriptor = os.open(path, _NEW, 0o666)
            arrays[split.name, number] = _Array(descriptor, split, len(head), field.width)
            pwrite_all(descriptor, head, 0)
            os.truncate(descriptor, len(head) + count * field.width)
            if number < 0 and labels is not None:
                rows = labels[split.start : split.stop]
                pwrite_all(descriptor, rows.tobytes(), len(head))


@dataclass(frozen=True)
class _Write:
    """Writes the samples of some rows; gives bytes, count, and (row, field, why) of bad ones."""

    reader: Reader
    base: bytes
    arrays: Mapping[tuple[str, int], _Array]
    folders: Mapping[str, bytes]

    def __call__(self, rows: Int64s) -> tuple[int, int, list[tuple[int, int, str]]]:
        return compared(self.reader, rows, self._sample)

    def _sample(self, span: Span) -> tuple[int, int, str]:
        index, state, size = self.reader.index, xxhash.xxh3_64(), 0

        def pieces() -> Iterator[bytes | memoryview]:
            nonlocal size
            for piece in self.reader.chunks(span):
                state.update(piece)
                size += len(piece)
                yield piece

        split = index.split_of(span.row).name
        if index.fields[span.field].dtype:
            why = self.arrays[split, span.field].write(pieces(), span.row)
        else:
            end = end_of(index, span.field)
            key = self.folders[split] + index.keys[span.row]
            why = self._file(pieces(), key + b"." + os.fsencode(end) if end else key)
        return state.intdigest(), size, why

    def _file(self, data: Iterable[bytes | memoryview], path: bytes) -> str:
        """Write a new file; return why not, where that is for its name."""
        try:
            descriptor = os.open(self.base + path, _NEW, 0o666)
        except OSError as error:
            if error.errno not in _OF_THE_NAME:
                raise
            if error.errno == errno.EEXIST:
                return "another sample has its name (or one that differs in case alone)"
            return f"it cannot have this name here: {error.strerror}"
        at = 0
        try:
            for piece in data:
                pwrite_all(descriptor, piece, at)
                at += len(piece)
        finally:
            os.close(descriptor)
        return ""
