"""`rankup.data.open`: the samples of any container, by their numbers, as bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from . import finding, indexes
from .containers import Choice, Fallback, files, module, squashfs
from .errors import BadContainer
from .index import Field, Index
from .spans import How, Spans, way
from .stage import find

_CHUNK = 16 << 20
_Asked = Literal["auto", "mmap", "pread"] | None


class _Column(NamedTuple):
    """A field, as the reader wants it: plain integers out of memory views."""

    field: Field
    offset: memoryview
    length: memoryview
    file: memoryview | None


def open(
    path: str | os.PathLike[str],
    *,
    how: _Asked = None,
    choice: Choice | None = None,
    staged: bool = True,
) -> Samples:
    """Open what `rankup pack` has made, or data of others in a format that is known.

    A pack has its index. Other data is scanned for one, by a C library only in a child process;
    it is kept in rankup's cache until the data changes.

    Where `rankup stage` has made a copy on this node, that is read.

    Args:
        path: a file, or a folder.
        how: `mmap` for memory and local disks, `pread` for network file systems; by default the
            type of the file system decides, or `$RANKUP_READ`.
        choice: what of data of others is taken for what.
        staged: whether a copy on this node is read in its place.

    Raises:
        BadContainer: it is damaged, hostile, or not what its index says.
        UserError: there is nothing at `path`, or nothing that is known.
        OSError: it cannot be read.
    """
    root = Path(path)
    part = root.with_name(f"{root.name}.part")
    place = indexes.place(root)
    if (part / "published").exists() and not (place.exists() and place.stat().st_size):
        raise UserError(
            f"{root} has no index yet: `rankup pack` was interrupted while it gave the container "
            f"its name, or does so now. {part} is there still: run the same command with --resume"
        )
    choice = choice or Choice()
    copy = find.copy_of(root, os.environ) if staged else None
    near = None  # all bytes of the one file that the source is
    if copy is not None:
        with suppress(FileNotFoundError):  # it was removed just now
            index = copy.load()
            if index.container and choice == Choice():
                return _of_copy(copy, index, root, how, choice)
            # Formats go by names, too, and the copy of what a link leads to has another.
            alike = not index.container and copy.root.name == root.name
            near = copy.root if alike else None
    mounted = squashfs.files_of(root if near is None else near)
    if mounted not in (root, near):
        index = files.scan(mounted, choice)
        return Samples(index, mounted, way(mounted, how), staged=False)
    read = way(root, how)
    # Of a source that cannot be seen any more the copy tells as much.
    there = root if near is None or root.exists() else near
    found = finding.found(there, choice, near)
    again = choice if found.lasting else None
    if copy is not None and copy.of_files(found.index):
        return _of_copy(copy, found.index, root, how, again)
    return Samples(found.index, root.absolute(), read, again, entry=found.kept, staged=staged)


def _of_copy(
    copy: find.Copy, index: Index, root: Path, how: _Asked, again: Choice | None
) -> Samples:
    samples = Samples(index, root.absolute(), way(copy.root, how), again, data=copy.root)
    samples._asked = how  # the copy may be gone when they are opened again
    return samples


class Samples:
    """Samples by number, 0 to `len(samples) - 1`, each with one or more fields of bytes.

    Cheap to hand to workers: a forked child shares everything, and pickled only the path travels
    (the index too, where there was no place to keep it). No locks: reading moves nothing.

    Attributes:
        index: where everything lies.
        root: the container.
        staged: the copy on this node that is read in its place; None without one.
        splits, fields, classes: names.
    """

    def __init__(
        self,
        index: Index,
        root: Path,
        how: How,
        choice: Choice | None = None,
        *,
        entry: Path | None = None,
        data: Path | None = None,
        staged: bool = True,
    ) -> None:
        self.index, self.root, self.staged = index, root, data
        self.classes = index.classes
        self.fields = tuple(one.name for one in index.fields)
        self.splits = tuple(one.name for one in index.splits)
        self._asked: _Asked = how
        self._may_be_staged = staged
        self._choice = choice  # with which the index is found again; None: it has to travel
        # A file that is one sample is not read twice in a row.
        keep = index.container != "files"
        here = root if data is None else data
        self._spans = Spans(here, index.files, index.sizes, how, keep=keep, entry=entry)
        self._here = here
        self._read = self._spans.read
        # Without a name it is the first one.
        columns = [(one.name, _column(one)) for one in index.fields]
        self._columns: dict[str | None, _Column] = dict(columns)
        self._columns.update((None, column) for _, column in columns[:1])
        self._labels = None if index.labels is None else index.labels.data
        self._start, self._length = 0, len(index)
        self._split: str | None = None
        self._fallback: list[Fallback] = []  # one, once it is needed; shared by the splits

    def __len__(self) -> int:
        return self._length

    @property
    def how(self) -> How:
        """The way in which bytes are read, `mmap` or `pread`."""
        return self._spans.how

    def file(self, number: int) -> Path:
        """Return the path of a file of the index."""
        return self._spans.path(number)

    def read(self, row: int, field: str | None = None) -> memoryview | bytes:
        """The bytes of a sample: where they are mapped a view, which costs no copy.

        Args:
            row: of the samples, not negative.
            field: its name; the first one without.

        Raises:
            IndexError: there is no such sample.
            UserError: there is no such field.
            BadContainer: the bytes are not where they should be.
            OSError: they cannot be read.
        """
        if not 0 <= row < self._length:
            raise IndexError(f"no sample {row}: there are {self._length}, from 0 on")
        row += self._start
        try:
            _, offsets, lengths, files = self._columns[field]
        except KeyError:
            self.index.field(field)
            raise
        offset = offsets[row]
        if offset < 0:
            parts = list(self._pieces(field, offset))
            return parts[0] if len(parts) == 1 else b"".join(parts)
        return self._read(files[row] if files is not None else 0, offset, lengths[row])

    def span(self, row: int, field: str | None, start: int, stop: int) -> memoryview | bytes:
        """Bytes [start, stop) of a sample, as `read` gives them all; for a look at its head.

        Of a sample that does not lie in one piece all is read.
        """
        at = self._row(row)
        column = self._columns.get(field) or _column(self.index.field(field))
        offset, length = column.offset[at], column.length[at]
        if offset < 0:
            return self.read(row, field)[start:stop]
        stop = min(stop, length)
        start = min(start, stop)
        file = column.file[at] if column.file is not None else 0
        return self._read(file, offset + start, stop - start)

    def chunks(self, row: int, field: str | None = None) -> Iterator[memoryview | bytes]:
        """Read a sample in pieces of some megabytes, for those larger than memory."""
        if not 0 <= row < self._length:
            raise IndexError(f"no sample {row}: there are {self._length}, from 0 on")
        row += self._start
        column = self._columns.get(field) or _column(self.index.field(field))
        offset, length = column.offset[row], column.length[row]
        if offset < 0:
            yield from self._pieces(field, offset)
            return
        file = column.file[row] if column.file is not None else 0
        if not length:  # a file that is not there is an error, also of an empty sample
            yield self._read(file, offset, length)
        for at in range(0, length, _CHUNK):
            yield self._read(file, offset + at, min(_CHUNK, length - at))

    def array(self, row: int, field: str | None = None) -> npt.NDArray[Any]:
        """A sample of an array field, of the field's dtype and shape, read-only.

        Raises:
            UserError: the field is bytes.
            BadContainer: its bytes are more or less than the array has.
        """
        about = self.index.field(field)
        if not about.dtype:
            raise UserError(f"field {about.name!r} is bytes and no array: use read()")
        data = self.read(row, field)
        try:
            return np.frombuffer(data, about.dtype).reshape(about.shape)
        except ValueError:
            raise BadContainer(
                f"{self.path(row)} in {self.root} has {len(data)} bytes, no {about.dtype} of shape "
                f"{about.shape}: its index is damaged"
            ) from None

    def key(self, row: int) -> str:
        """The name of a sample within its split, as `n01440764/x.JPEG`."""
        return self.index.keys.text(self._row(row))

    def path(self, row: int) -> str:
        """Split and key of a sample, as it is named to people: `train/n01440764/x.JPEG`."""
        return self.index.path(self._row(row))

    def label(self, row: int) -> int | None:
        """The class of a sample as a number; None where it has none."""
        label = self._labels[self._row(row)] if self._labels is not None else -1
        return label if label >= 0 else None

    def class_name(self, label: int) -> str:
        """The name of a class, or its number where classes have no names.

        Raises:
            IndexError: there is no such class.
        """
        if label < 0 or (self.classes and label >= len(self.classes)):
            raise IndexError(f"no class {label}: there are {len(self.classes)}, from 0 on")
        return self.classes[label] if self.classes else str(label)

    def split(self, name: str) -> Samples:
        """The samples of one split, from 0 on; files that are open are shared.

        Raises:
            UserError: there is none of that name.
        """
        one = self.index.split(name)
        if self._split is not None:
            raise UserError(f"these are the samples of {self._split!r} alone; take {name!r} of all")
        part = Samples.__new__(Samples)
        part.__dict__.update(self.__dict__)
        part._start, part._length = one.start, one.stop - one.start
        part._split, part.splits = one.name, (one.name,)
        return part

    def apart(self) -> Samples:
        """The same samples for another thread: what reads compressed ones keeps what it is at."""
        part = Samples.__new__(Samples)
        part.__dict__.update(self.__dict__)
        part._fallback = []
        return part

    def from_source(self) -> Samples:
        """The same samples without the copy on this node: for when that is gone."""
        read = way(self.root)
        source = Samples(self.index, self.root, read, self._choice, staged=False)
        return source if self._split is None else source.split(self._split)

    def close(self) -> None:
        """Close the files, also of the splits; views that were handed out stay valid."""
        self._spans.close()

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        whole = f" of split {self._split!r}" if self._split is not None else ""
        what = ", ".join(f"{one.name} {one.stop - one.start}" for one in self.index.splits)
        counts = f": {what}" if not whole and len(self.index.splits) > 1 else ""
        return (
            f"<{len(self)} samples{whole} in {str(self.root)!r} ({self.index.container}){counts}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._choice is not None:
            again = (self.root, self._asked, self._choice, self._may_be_staged)
            return _again, (*again, len(self.index), self._split)
        return _with, (self.index, self.root, self._asked, self._may_be_staged, self._split)

    def _row(self, row: int) -> int:
        if not 0 <= row < self._length:
            raise IndexError(f"no sample {row}: there are {self._length}, from 0 on")
        return row + self._start

    def _pieces(self, field: str | None, offset: int) -> Iterator[bytes | memoryview]:
        if not self._fallback:
            format = module(self.index.container)
            if not hasattr(format, "fallback"):  # there, each sample lies in one piece
                raise BadContainer(
                    f"{self.root}: a sample begins at {offset}: its index is damaged"
                )
            self._fallback.append(format.fallback(self.index, self._here))
        return self._fallback[0].chunks(self.index.field(field).name, ~offset)


def _column(field: Field) -> _Column:
    file = None if field.file is None else field.file.data
    return _Column(field, field.offset.data, field.length.data, file)


def _again(
    root: Path, how: _Asked, choice: Choice, staged: bool, count: int, part: str | None
) -> Samples:
    samples = open(root, how=how, choice=choice, staged=staged)
    if len(samples) != count:
        raise BadContainer(f"{root} was changed while it was in use: {len(samples)} samples")
    return samples if part is None else samples.split(part)


def _with(index: Index, root: Path, how: _Asked, staged: bool, part: str | None) -> Samples:
    copy = find.copy_of(root, os.environ) if staged else None
    if copy is not None and copy.of_files(index):
        samples = _of_copy(copy, index, root, how, None)
    else:
        samples = Samples(index, root, way(root, how), staged=staged)
    return samples if part is None else samples.split(part)
