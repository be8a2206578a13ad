"""`--verify`: every byte of a container against the hashes that were written with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from ...base.errors import UserError
from ...base.progress import Progress
from .. import finding, indexes, keys, stamp
from ..containers.grouping import LONE
from ..errors import BadContainer
from ..index import Index, Int64s, Split, folders
from ..pack.source import unsound
from ..pool import cores, spread
from ..verified import Blocks, Reader, SourceProblem, Span, blocks_of

# Of a part of the work: few enough for a bar that moves, enough to be worth a message.
_BYTES = 64 << 20
_ROWS = 4096
_BLOCKS = 16
CHANGED = "its bytes are not those that were packed"


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was packed.

    Attributes:
        what: a sample as `train/n01440764/x.JPEG`, a file, or the bytes between samples.
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
        around: True where the bytes between the samples were compared, too.
    """

    samples: int
    size: int
    hashed: bool
    around: bool
    damaged: tuple[Damage, ...]


def verify(index: Index, root: Path, start: int, stop: int, watch: Progress) -> Verified:
    """Read the samples [start, stop) on all cores and compare their hashes.

    Of a pack that is asked for as a whole, the bytes around the samples are compared too, and the
    index with its checksums.

    Raises:
        UserError, OSError: this machine cannot read it at all.
    """
    hashed = bool(index.fields) and all(one.hash is not None for one in index.fields)
    wrong = unsound(index)
    if wrong:
        return Verified(0, 0, hashed, False, (Damage(str(indexes.place(root)), wrong),))
    damaged: list[Damage] = []
    blocks = None
    if (start, stop) == (0, len(index)):
        damaged = [*index_damage(root), *_beside(index, root), *_strangers(index, root)]
    if index.blocks is not None and (start, stop) == (0, len(index)):
        if len(index.blocks) == blocks_of(index):
            blocks = Blocks(index, root)
        else:
            why = f"it has hashes of {len(index.blocks)} blocks, its files have {blocks_of(index)}"
            damaged.append(Damage(str(indexes.place(root)), why))
    damaged += _unsafe(index, root, start, stop)
    check = _Check(index, root, blocks)
    tasks: list[Int64s | int] = [*parts(index, start, stop)]
    tasks += range(0, len(blocks), _BLOCKS) if blocks is not None else ()
    bad: list[tuple[int, int, str]] = []
    around: list[tuple[int, str]] = []
    size = count = 0
    for more, samples, bad_samples, bad_blocks in spread(check, tasks, cores()):
        bad += bad_samples
        around += bad_blocks
        size, count = size + more, count + samples
        watch(size, samples=count)
    damaged += [Damage(name(index, row, field), why) for row, field, why in sorted(bad)]
    if blocks is not None:
        damaged += [Damage(blocks.name(block), why) for block, why in sorted(around)]
    return Verified(stop - start, size, hashed, blocks is not None, tuple(damaged))


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


class _Check:
    """Compares the samples of some rows, or a few blocks.

    Gives the bytes and number of the samples, bad ones (row, field, why), bad blocks (block, why).
    """

    def __init__(self, index: Index, root: Path, blocks: Blocks | None) -> None:
        self._index, self._blocks = index, blocks
        # Of what was cut short as much is read as there is.
        self._reader = Reader(replace(index, sizes=index.sizes[:0]), root)

    def __call__(
        self, task: Int64s | int
    ) -> tuple[int, int, list[tuple[int, int, str]], list[tuple[int, str]]]:
        if isinstance(task, int):
            blocks = range(task, min(task + _BLOCKS, len(self._blocks or ())))
            return 0, 0, [], [(one, why) for one in blocks if (why := self._block(one))]
        return (*compared(self._reader, task, lambda span: (*self._reader.hashed(span), "")), [])

    def _block(self, block: int) -> str:
        assert self._blocks is not None
        assert self._index.blocks is not None
        try:
            same = self._blocks.hashes(block, block + 1)[0] == self._index.blocks[block]
        except (UserError, OSError) as error:
            return f"they cannot be read: {error}"
        return "" if same else "they are not those that were packed"


def _beside(index: Index, root: Path) -> list[Damage]:
    """Return what has changed of the small files that a format keeps beside its data."""
    written = index.facts.get("beside")
    if not isinstance(written, dict):
        return []
    names = {str(file): digest for file, digest in written.items()}
    hostile = [file for file in names if not keys.safe(os.fsencode(file))]
    if hostile:
        why = f"it names {hostile[0]!r}, which is no file of a pack"
        return [Damage(str(indexes.place(root)), why)]
    found = ((root / file, _differs(root / file, digest)) for file, digest in names.items())
    return [Damage(str(path), why) for path, why in found if why]


def _strangers(index: Index, root: Path) -> list[Damage]:
    """Return files of others that readers of the folder take for the container's, by their ends."""
    if not root.is_dir() or not indexes.place(root).is_file():
        return []
    known = {os.fsdecode(name) for name in index.files}
    ends = {os.path.splitext(name)[1] for name in known} - {""}
    here = {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in ends}
    why = "it is none of this container's files, and other readers would take it for one: remove it"
    return [Damage(str(root / name), why) for name in sorted(here - known)]


def _differs(path: Path, digest: object) -> str:
    try:
        if not path.is_file():
            return "it is not there"
        same = xxhash.xxh3_64_hexdigest(path.read_bytes()) == digest
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return "" if same else CHANGED
