"""`--verify`: the samples of a container against the hashes that were written with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ...base.progress import Progress
from .. import finding, indexes, keys, stamp
from ..containers.grouping import LONE
from ..errors import BadContainer
from ..index import Index, Int64s, Split, folders
from ..pack.source import unsound
from ..pool import cores, spread
from ..verified import Reader, SourceProblem, Span

# Of a part of the work: few enough for a bar that moves, enough to be worth a message.
_BYTES = 64 << 20
_ROWS = 4096
CHANGED = "its bytes are not those that were packed"


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was packed.

    Attributes:
        what: a sample as `train/n01440764/x.JPEG`, or a file.
        why: what is wrong with it.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Verified:
    """The result of a comparison with the hashes.

    Attributes:
        samples: that were read.
        size: their bytes.
        hashed: True where there were hashes to compare them with.
    """

    samples: int
    size: int
    hashed: bool
    damaged: tuple[Damage, ...]


def verify(index: Index, root: Path, start: int, stop: int, watch: Progress) -> Verified:
    """Read the samples [start, stop) on all cores and compare their hashes.

    Of a pack that is asked for as a whole its index is looked at, too, and which files there are.

    Raises:
        UserError, OSError: this machine cannot read it at all.
    """
    hashed = bool(index.fields) and all(one.hash is not None for one in index.fields)
    wrong = unsound(index)
    if wrong:
        return Verified(0, 0, hashed, (Damage(str(indexes.place(root)), wrong),))
    damaged: list[Damage] = []
    if (start, stop) == (0, len(index)):
        damaged = [*index_damage(root), *_strangers(index, root)]
    damaged += _unsafe(index, root, start, stop)
    # Of what was cut short as much is read as there is.
    reader = Reader(replace(index, sizes=index.sizes[:0]), root)

    def check(rows: Int64s) -> tuple[int, int, list[tuple[int, int, str]]]:
        return compared(reader, rows, lambda span: (*reader.hashed(span), ""))

    bad: list[tuple[int, int, str]] = []
    size = count = 0
    for more, samples, bad_samples in spread(check, parts(index, start, stop), cores()):
        bad += bad_samples
        size, count = size + more, count + samples
        watch(size, samples=count)
    damaged += [Damage(name(index, row, field), why) for row, field, why in sorted(bad)]
    return Verified(stop - start, size, hashed, tuple(damaged))


def _unsafe(index: Index, root: Path, start: int, stop: int) -> list[Damage]:
    """Return a name that `--extract` and `rankup pack` refuse: it leaves a folder, or is there
    twice."""
    splits = tuple(one for one in index.splits if start <= one.start and one.stop <= stop)
    try:
        check_names(index, splits, str(root))
    except BadContainer as error:
        return [Damage(str(indexes.place(root)), str(error))]
    ends = index.keys.ends
    return [
        Damage(str(indexes.place(root)), f"two samples of {one.name} have one name")
        for one in splits
        if not replace(index.keys, ends=ends[one.start : one.stop + 1]).distinct()
    ]


def check_names(index: Index, splits: Sequence[Split], where: str) -> None:
    """Refuse names that would not stay below a folder that they are files in.

    Args:
        where: the container, for messages.

    Raises:
        BadContainer: the name of a field, of a split, or of a sample of one of the splits.
    """
    for one in index.fields:
        keys.check(b"x." + os.fsencode(one.name), f"{where} (as a field)")
    for split, folder in zip(splits, folders(splits), strict=True):
        keys.check(folder + b"x", f"{where} (as a split)")
        ends = index.keys.ends[split.start : split.stop + 1]
        keys.check_all(replace(index.keys, ends=ends), where)


def parts(index: Index, start: int, stop: int) -> list[Int64s]:
    """Return the samples [start, stop) in the order in which they lie, cut into parts of the work.

    A fallback reads best in the order of its own numbers.
    """
    if not index.fields or start == stop:
        return []
    one = index.fields[0]
    offset = one.offset[start:stop]
    file = np.zeros(stop - start) if one.file is None else one.file[start:stop]
    order = np.lexsort((np.where(offset < 0, ~offset, offset), file))
    size = np.zeros(stop - start, np.int64)
    for field in index.fields:
        size += np.maximum(field.length[start:stop], 0)
    cost = np.cumsum(size[order] + _BYTES // _ROWS)
    return np.split(order + start, np.flatnonzero(np.diff(cost // _BYTES)) + 1)


def index_damage(root: Path) -> list[Damage]:
    """Return what is wrong with a container's index, and how its files differ from what it says."""
    try:
        index = finding.packed(root)
    except BadContainer as error:
        return [Damage(str(indexes.place(root)), str(error))]
    if index is None:
        return []
    try:
        unfit = stamp.unfit(index, root)
    except UserError as error:
        unfit = str(error)
    return [Damage(str(root), unfit)] if unfit else []


def name(index: Index, row: int, field: int) -> str:
    """Return how a sample is named to people; with the field, as the file that it would be."""
    path, end = index.path(row), end_of(index, field)
    return f"{path}.{end}" if end else path


def end_of(index: Index, field: int) -> str:
    """Return what the file of a field has behind the key of its sample: "" for a lone `data`."""
    name = index.fields[field].name
    return "" if len(index.fields) == 1 and name == LONE else name


def compared(
    reader: Reader, rows: Int64s, read: Callable[[Span], tuple[int, int, str]]
) -> tuple[int, int, list[tuple[int, int, str]]]:
    """Read samples; return their bytes, how many they are, and (row, field, why) of bad ones.

    Args:
        read: gives xxh3 and bytes of one, and what else is wrong with it.
    """
    total, bad = 0, []
    for column in reader.spans(rows):
        for span in column:
            hashes = reader.index.fields[span.field].hash
            try:
                digest, size, why = read(span)
            except SourceProblem as error:
                bad.append((span.row, span.field, f"it cannot be read: {error}"))
                continue
            total += size
            if not why and hashes is not None and digest != int(hashes[span.row]):
                why = CHANGED
            if why:
                bad.append((span.row, span.field, why))
    return total, len(rows) * len(reader.index.fields), bad


def _strangers(index: Index, root: Path) -> list[Damage]:
    """Return files of others that readers of the folder take for the container's, by their ends."""
    if not root.is_dir() or not indexes.place(root).is_file():
        return []
    known = {os.fsdecode(name) for name in index.files}
    ends = {os.path.splitext(name)[1] for name in known} - {""}
    here = {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in ends}
    why = "it is none of this container's files, and other readers would take it for one: remove it"
    return [Damage(str(root / name), why) for name in sorted(here - known)]
