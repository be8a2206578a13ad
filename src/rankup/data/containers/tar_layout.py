"""Tar shards in WebDataset's naming, with every byte's place known before they are written.

train-000000.tar    n01/x.JPEG, n01/x.cls, n01/y.JPEG, n01/y.cls, …
train-000000.idx    where its members lie, for DALI
classnames.txt      one class per line; `tar.scan` reads it
info.json           shards, samples and classes, as timm reads them
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from ...base.files import write_atomic
from .. import keys as safe_keys
from .. import npz
from ..index import Field, Index, Int64s, Split, Strings, UInt64s
from ..pack.layout import Piece, Shape, units
from . import tar
from .grouping import LABEL, LONE, cut
from .tar import BLOCK, CLASSES, END, RECORD

INFO = "info.json"
_SPACE = re.compile(r"\s")


@dataclass(frozen=True)
class TarLayout:
    """See `pack.layout.Layout`.

    Attributes:
        changed: row -> name (of a lone field) or stem under which a sample is written.
        heads: of each field what stands before its bytes behind the headers: an .npy header.
        ends: int64 (n,), where all of each sample ends, its label too.
    """

    index: Index
    sizes: Int64s
    units: Int64s
    changed: Mapping[int, bytes]
    heads: tuple[bytes, ...]
    ends: Int64s

    def begin(self, root: Path) -> TarLayout:
        """Make the shards; what is no sample is zeros at their end."""
        for name, size in zip(self.index.files, self.sizes.tolist(), strict=True):
            with (root / name.decode()).open("wb") as file:
                file.truncate(size)
        return self

    def attach(self, root: Path) -> TarLayout:
        """The same: nothing depends on the files."""
        return self

    def before(self, start: int, stop: int) -> Iterator[Piece]:
        """Headers, padding and labels of the samples [start, stop)."""
        index = self.index
        stems, names = self._names(start, stop)
        heads = []
        changed = (row for row in range(start, stop) if row in self.changed)
        true = {row - start: index.keys[row] for row in changed}
        for field, of, npy in zip(index.fields, names, self.heads, strict=True):
            sizes = field.length[start:stop] + len(npy)
            found = tar.headers(of, sizes, true)
            heads.append([one + npy for one in found] if npy else found)
            true = {}  # it stands in the first member of a sample
        labels = self._labels(stems, start, stop)
        files = _files(index)[start:stop].tolist()
        columns = [
            (field.offset[start:stop].tolist(), field.length[start:stop].tolist())
            for field in index.fields
        ]
        last, tail, tail_at = -1, b"", 0
        for row, file in enumerate(files):
            if file != last:
                if tail:
                    yield Piece(last, tail_at, tail)
                last, tail = file, b""
            for (offsets, lengths), head in zip(columns, heads, strict=True):
                at, size = offsets[row], lengths[row]
                piece = tail + head[row]
                yield Piece(file, at - len(piece), piece)
                tail_at = at + size
                tail = bytes(-tail_at % BLOCK)
            tail += labels[row]
        if tail:
            yield Piece(last, tail_at, tail)

    def after(self, start: int, stop: int, hashes: UInt64s) -> Iterator[Piece]:
        """Nothing: a tar has no place for hashes."""
        return iter(())

    def finish(self, root: Path, hashes: UInt64s) -> None:
        """DALI's indexes, and what the data set is."""
        index = self.index
        files = _files(index)
        counts = np.bincount(files, minlength=len(index.files)).tolist()
        start = 0
        for name, count in zip(index.files, counts, strict=True):
            path = root / name.decode()
            write_atomic(path.with_suffix(".idx"), self._dali_index(start, start + count))
            start += count
        if index.classes:
            lines = (name.replace("\n", " ") + "\n" for name in index.classes)
            text = "".join(lines).encode("utf-8", "surrogateescape")
            write_atomic(root / CLASSES, text)
        about = json.dumps(_info(index, counts), indent=1)
        write_atomic(root / INFO, about + "\n")

    def _dali_index(self, start: int, stop: int) -> str:
        """The index of a shard's samples: extension, offset, size and name of each member."""
        index = self.index
        stems, names = self._names(start, stop)
        columns = []
        for of, field, npy in zip(names, index.fields, self.heads, strict=True):
            offsets = (field.offset[start:stop] - len(npy)).tolist()
            sizes = (field.length[start:stop] + len(npy)).tolist()
            extensions = [cut(name)[1] for name in of]
            columns.append(_index_words(of, extensions, offsets, sizes))
        if index.labels is not None:
            labels = index.labels[start:stop].tolist()
            offsets = (self.ends[start:stop] - BLOCK).tolist()
            of = [stem + b"." + LABEL.encode() for stem in stems]
            extensions = [LABEL.encode()] * len(of)
            found = _index_words(of, extensions, offsets, [len(str(label)) for label in labels])
            columns.append(
                [word if label >= 0 else "" for word, label in zip(found, labels, strict=True)]
            )
        lines = [" ".join(filter(None, members)) for members in zip(*columns, strict=True)]
        return "\n".join([f"v1.2 {len(lines)}", *lines, ""])

    def _names(self, start: int, stop: int) -> tuple[list[bytes], list[list[bytes]]]:
        """Stems of the samples, and the names of the members of each field."""
        keys = self.index.keys
        written = [self.changed.get(row) or keys[row] for row in range(start, stop)]
        if _is_lone(self.index):
            return [cut(name)[0] for name in written], [written]
        suffixes = [_suffix(field) for field in self.index.fields]
        return written, [[name + suffix for name in written] for suffix in suffixes]

    def _labels(self, stems: Sequence[bytes], start: int, stop: int) -> list[bytes]:
        """The member with the label of each sample, whole; empty for those without."""
        result = [b""] * len(stems)
        if self.index.labels is None:
            return result
        labels = self.index.labels[start:stop]
        rows = np.flatnonzero(labels >= 0).tolist()
        texts = [b"%d" % label for label in labels[rows].tolist()]
        names = [stems[row] + b"." + LABEL.encode() for row in rows]
        found = tar.headers(names, np.array([len(t) for t in texts], np.int64), {})
        for row, header, text in zip(rows, found, texts, strict=True):
            result[row] = header + text.ljust(BLOCK, b"\0")
        return result


def plan(source: Index, shape: Shape) -> TarLayout:
    """Return the places of all of `source` in tar shards of `shape.shard` bytes.

    Raises:
        UserError: a split or field has a name that no file can have.
        BadContainer: a key is no relative path.
    """
    _check(source)
    lone = _is_lone(source)
    spans = [(split.start, split.stop) for split in source.splits]
    changed = tar.lone_names(source.keys, spans) if lone else tar.stem_names(source.keys)
    # A row of an array field is an .npy file.
    heads = tuple(
        npz.array_header(one.dtype, one.shape) if one.dtype else b"" for one in source.fields
    )
    before, total = _lengths(source, changed, heads, lone)
    starts, files, names, sizes = _shards(source.splits, total, shape.shard)
    at = starts.copy()
    fields = []
    for field, head in zip(source.fields, before, strict=True):
        at += head
        fields.append(replace(field, offset=at.copy(), file=files, hash=None))
        at += field.length
        at += -at % BLOCK
    index = replace(
        source,
        container="tar",
        files=Strings.of(names),
        fields=tuple(fields),
        sizes=sizes,
        times=None,
        facts={},
    )
    stops = [*(np.flatnonzero(np.diff(files)) + 1).tolist(), len(source)]
    return TarLayout(index, sizes, units(source, stops), changed, heads, starts + total)


def _check(source: Index) -> None:
    for split in source.splits:
        if not split.name or split.name.startswith(".") or {"/", "\0", "\n"} & set(split.name):
            raise UserError(f"a split is named {split.name!r}, which cannot begin a file's name")
    known: set[str] = {LABEL} if source.labels is not None else set()
    for name in [] if _is_lone(source) else [one.name for one in source.fields]:
        if name.lower() in known:
            raise UserError(
                f"field {name!r} would be the second .{name.lower()} of each sample (case does not "
                f"count, and .{LABEL} is the label): leave it out with --fields, or rename it"
            )
        known.add(name.lower())
        safe = safe_keys.safe(name.encode("utf-8", "surrogateescape")) and "/" not in name
        if not safe or name.startswith("__"):
            raise UserError(
                f"a field is named {name!r}, which cannot end a file's name, or is one of "
                f"WebDataset's own: leave it out with --fields, or rename it"
            )
    safe_keys.check_all(source.keys, "the source")


def _is_lone(index: Index) -> bool:
    return len(index.fields) == 1 and index.fields[0].name == LONE and not index.fields[0].dtype


def _suffix(field: Field) -> bytes:
    name = f".{field.name}.npy" if field.dtype else f".{field.name}"
    return name.encode("utf-8", "surrogateescape")


def _lengths(
    source: Index, changed: Mapping[int, bytes], heads: Sequence[bytes], lone: bool
) -> tuple[list[Int64s], Int64s]:
    """Return the bytes before the data of each field, and all bytes of each sample."""
    n = len(source)
    before = [np.full(n, BLOCK + len(npy), np.int64) for npy in heads]
    label = np.zeros(n, np.int64)
    if source.labels is not None:
        label[source.labels >= 0] = 2 * BLOCK
    suffixes = [b""] if lone else [_suffix(field) for field in source.fields]
    for row in _odd(source, changed, max(len(LABEL) + 1, *map(len, suffixes))):
        key = source.keys[row]
        name = changed.get(row, key)
        for number, (field, suffix) in enumerate(zip(source.fields, suffixes, strict=True)):
            size = int(field.length[row]) + len(heads[number])
            true = key if number == 0 and row in changed else None
            header = tar.length(name + suffix, size, true)
            before[number][row] = header + len(heads[number])
        if label[row]:
            stem = cut(name)[0] if lone else name
            label[row] = tar.length(stem + b"." + LABEL.encode(), 1) + BLOCK
    total = label
    for field, head in zip(source.fields, before, strict=True):
        total = total + head + field.length
        total += -total % BLOCK
    return before, total


def _odd(source: Index, changed: Mapping[int, bytes], longest: int) -> list[int]:
    """Rows of which a member may need a PAX header."""
    keys = source.keys
    odd = np.diff(keys.ends) + longest > 100
    beyond = np.flatnonzero(keys.data[: int(keys.ends[-1])] >= 128)
    odd[np.searchsorted(keys.ends, beyond, side="right") - 1] = True
    for field in source.fields:
        odd |= field.length >= 8**11 - 4096
        if not field.name.isascii():
            odd[:] = True
    odd[list(changed)] = True
    return np.flatnonzero(odd).tolist()


def _files(index: Index) -> Int64s:
    field = index.fields[0]
    return np.zeros(len(index), np.int64) if field.file is None else field.file.astype(np.int64)


def _shards(
    splits: Sequence[Split], total: Int64s, shard: int
) -> tuple[Int64s, npt.NDArray[np.uint32], list[bytes], Int64s]:
    """Return the place and the file of each sample; names and sizes of the files."""
    starts = np.empty(len(total), np.int64)
    files = np.empty(len(total), np.uint32)
    names: list[bytes] = []
    sizes: list[int] = []
    for split in splits:
        ends = np.cumsum(total[split.start : split.stop])
        row, done, number = 0, 0, 0
        while row < len(ends) or not number:  # a split without samples has an empty shard
            fit = int(np.searchsorted(ends, done + shard - END, side="right"))
            stop = min(max(fit, row + 1), len(ends))
            begins = np.concatenate([[done], ends[row : stop - 1]]) if stop > row else ends[:0]
            starts[split.start + row : split.start + stop] = begins - done
            files[split.start + row : split.start + stop] = len(names)
            size = (int(ends[stop - 1]) - done if stop > row else 0) + END
            names.append(f"{split.name}-{number:06d}.tar".encode("utf-8", "surrogateescape"))
            sizes.append(-(-size // RECORD) * RECORD)
            done = int(ends[stop - 1]) if stop else 0
            row, number = stop, number + 1
    return starts, files, names, np.array(sizes, np.int64)


def _index_words(
    names: Sequence[bytes], extensions: Sequence[bytes], offsets: list[int], sizes: list[int]
) -> list[str]:
    """Return what DALI's index says of members; their names, which it only shows, without spaces"""
    words = zip(_unspaced(extensions), offsets, sizes, _unspaced(names), strict=True)
    return [f"{extension} {offset} {size} {name}" for extension, offset, size, name in words]


def _unspaced(words: Sequence[bytes]) -> list[str]:
    joined = b"".join(word + b"\0" for word in words).decode("utf-8", "backslashreplace")
    return _SPACE.sub("%20", joined).split("\0")[:-1]


def _info(index: Index, counts: Sequence[int]) -> dict[str, Any]:
    """Return the content of `info.json`, by the samples of each shard."""
    names = [name.decode("utf-8", "surrogateescape") for name in index.files]
    splits = {}
    for split in index.splits:
        rows = [row for row, name in enumerate(names) if name.rpartition("-")[0] == split.name]
        splits[split.name] = {
            "name": split.name,
            "num_samples": split.stop - split.start,
            "filenames": [names[row] for row in rows],
            "shard_lengths": [counts[row] for row in rows],
        }
    return {"splits": splits}
