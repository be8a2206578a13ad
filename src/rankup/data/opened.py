"""`rankup.data.open`: the samples of any container, by their numbers, as bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from . import finding, indexes
from .containers import Choice, Fallbacks, files
from .errors import BadContainer
from .index import Index, Int64s
from .spans import How, Spans, way
from .stage import mount, place

_CHUNK = 16 << 20
_Asked = Literal["auto", "mmap", "pread"] | None


class _Column(NamedTuple):
    """The places of a field, as plain integers out of memory views."""

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
    marker = indexes.place(root)
    if (part / "published").exists() and not (marker.exists() and marker.stat().st_size):
        raise UserError(
            f"{root} has no index yet: `rankup pack` was interrupted while it gave the container "
            f"its name, or does so now. {part} is there still: run the same command with --resume"
        )
    choice = choice or Choice()
    copy = place.copy_of(root, os.environ) if staged else None
    near = None  # all bytes of the one file that the source is
    if copy is not None:
        with suppress(FileNotFoundError):  # it was removed just now
            index = copy.load()
            if index.container and choice == Choice():
                return Samples(index, root.absolute(), how, choice, copy=copy.root)
            # Formats go by names, too, and the copy of what a link leads to has another.
            if not index.container and copy.root.name == root.name:
                near = copy.root
    mounted = mount.files_of(root if near is None else near)
    if mounted not in (root, near):
        return Samples(files.scan(mounted, choice), mounted, how, staged=False)
    # Of a source that cannot be seen any more the copy tells as much.
    found = finding.found(root if near is None or root.exists() else near, choice, near)
    again = choice if found.lasting else None
    fits = copy is not None and copy.of_files(found.index)
    data = copy.root if copy is not None and fits else None
    entry = found.kept if data is None else None
    return Samples(found.index, root.absolute(), how, again, copy=data, entry=entry, staged=staged)


class Samples:
    """Samples by number, 0 to `len(samples) - 1`, each with one or more fields of bytes.

    Cheap to hand to workers: a forked child shares everything, and pickled only the path travels
    (the index too, where there was no place to keep it). Any number of threads may read.

    Attributes:
        index: where everything lies.
        root: the container.
        staged: the copy on this node that is read in its place; None without one.
        splits, fields, classes: names.
        start: row of the index that the first of these samples is.
    """

    def __init__(
        self,
        index: Index,
        root: Path,
        how: _Asked = None,
        choice: Choice | None = None,
        *,
        copy: Path | None = None,
        entry: Path | None = None,
        staged: bool = True,
    ) -> None:
        self.index, self.root, self.staged = index, root, copy
        self.classes = index.classes
        self.fields = tuple(one.name for one in index.fields)
        self.splits = tuple(one.name for one in index.splits)
        self._asked, self._may_be_staged = how, staged
        self._choice = choice  # with which the index is found again; None: it has to travel
        self._here = root if copy is None else copy
        # A file that is one sample is not read twice in a row.
        keep = index.container != "files"
        how = way(self._here, how)
        self._spans = Spans(self._here, index.files, index.sizes, how, keep=keep, entry=entry)
        self._columns: dict[str | None, _Column] = {}
        for one in reversed(index.fields):  # without a name it is the first one
            file = None if one.file is None else one.file.data
            column = _Column(one.offset.data, one.length.data, file)
            self._columns[one.name] = self._columns[None] = column
        self._labels = None if index.labels is None else index.labels.data
        self.start, self._length = 0, len(index)
        self._split: str | None = None
        self._fallbacks = Fallbacks(index, self._here)

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
        file, offset, length = self._place(row, field)
        if offset < 0:
            return b"".join(self._pieces(field, offset))
        return self._spans.read(file, offset, length)

    def span(self, row: int, field: str | None, start: int, stop: int) -> memoryview | bytes:
        """Bytes [start, stop) of a sample, as `read` gives them all; for a look at its head.

        Of a sample that does not lie in one piece all is read.
        """
        file, offset, length = self._place(row, field)
        if offset < 0:
            return self.read(row, field)[start:stop]
        start, stop = min(start, length), min(stop, length)
        return self._spans.read(file, offset + start, max(0, stop - start))

    def chunks(self, row: int, field: str | None = None) -> Iterator[memoryview | bytes]:
        """Read a sample in pieces of some megabytes, for those larger than memory."""
        file, offset, length = self._place(row, field)
        if offset < 0:
            yield from self._pieces(field, offset)
            return
        # A file that is not there is an error, also of an empty sample.
        for at in range(0, max(1, length), _CHUNK):
            yield self._spans.read(file, offset + at, min(_CHUNK, length - at))

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

    def arrays(self, rows: Int64s, field: str | None, out: npt.NDArray[Any]) -> None:
        """Read rows of an array field; those that lie one behind the other in one piece.

        Args:
            rows: int64 (k,), in any order.
            field: its name; the first one without.
            out: (k, *field.shape), to which the values are converted.

        Raises:
            IndexError: there is no such row.
            BadContainer: the bytes are not where they should be, or no array of that shape.
            OSError: they cannot be read.
        """
        if not len(rows):
            return
        if rows.min() < 0 or rows.max() >= self._length:
            raise IndexError(f"a row is outside the {self._length} that there are")
        about = self.index.field(field)
        at = rows + self.start
        offsets, lengths = about.offset[at], about.length[at]
        files = np.zeros(len(at), np.uint32) if about.file is None else about.file[at]
        size = np.dtype(about.dtype).itemsize * int(np.prod(about.shape, dtype=np.int64))
        if offsets.min() < 0 or not size or (lengths != size).any():
            for place, row in enumerate(rows.tolist()):  # compressed, or damaged: `array` says it
                out[place] = self.array(row, about.name)
            return

        def read(file: int, offset: int, count: int) -> npt.NDArray[Any]:
            data = self._spans.read(file, offset, count * size)
            return np.frombuffer(data, about.dtype).reshape(count, *about.shape)

        first, number = int(offsets.min()), int(files[0])
        places, rest = np.divmod(offsets - first, size)
        if self.how == "mmap" and not rest.any() and (files == number).all():
            # All lie on one grid of a mapped file, of which numpy takes them.
            out[...] = read(number, first, int(places.max()) + 1)[places]
            return
        breaks = np.flatnonzero((np.diff(offsets) != size) | (np.diff(files) != 0)) + 1
        for start, stop in pairwise([0, *breaks.tolist(), len(rows)]):
            out[start:stop] = read(int(files[start]), int(offsets[start]), stop - start)

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
        part.start, part._length = one.start, one.stop - one.start
        part._split, part.splits = one.name, (one.name,)
        return part

    def from_source(self) -> Samples:
        """The same samples without the copy on this node: for when that is gone."""
        source = Samples(self.index, self.root, None, self._choice, staged=False)
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
        index = self.index if self._choice is None else None
        how, choice = self._asked, self._choice or Choice()
        given = (self.root, how, choice, self._may_be_staged, index, len(self.index), self._split)
        return _again, given

    def _row(self, row: int) -> int:
        if not 0 <= row < self._length:
            raise IndexError(f"no sample {row}: there are {self._length}, from 0 on")
        return row + self.start

    def _place(self, row: int, field: str | None) -> tuple[int, int, int]:
        """Return file, offset and length of a sample."""
        row = self._row(row)
        try:
            offsets, lengths, files = self._columns[field]
        except KeyError:
            self.index.field(field)
            raise
        return (0 if files is None else files[row]), offsets[row], lengths[row]

    def _pieces(self, field: str | None, offset: int) -> Iterator[bytes | memoryview]:
        return self._fallbacks.chunks(self.index.field(field).name, offset)


def _again(
    root: Path,
    how: _Asked,
    choice: Choice,
    staged: bool,
    index: Index | None,
    count: int,
    split: str | None,
) -> Samples:
    """Open samples in another process."""
    if index is None:
        samples = open(root, how=how, choice=choice, staged=staged)
        if len(samples) != count:
            raise BadContainer(f"{root} was changed while it was in use: {len(samples)} samples")
    else:
        copy = place.copy_of(root, os.environ) if staged else None
        data = copy.root if copy is not None and copy.of_files(index) else None
        samples = Samples(index, root, how, copy=data, staged=staged)
    return samples if split is None else samples.split(split)
