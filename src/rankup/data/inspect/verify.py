"""`--verify`: every byte of a container against the hashes that were written with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ...base.errors import UserError
from .. import frames as around
from .. import indexes, keys, stamp
from ..errors import BadContainer
from ..frames import Frames
from ..index import Index
from ..opened import Samples
from . import places
from .parts import Parts, parts
from .workers import cores, spread

# Longer ones are hashed piece by piece.
_WHOLE = 16 << 20
_GROUPS = 16  # of frames in one piece of work

# Gets the bytes and samples that are done.
Watch = Callable[[int, int], None]


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
    """What was found.

    Attributes:
        samples: that were read.
        size: their bytes.
        hashed: whether there were hashes to compare them with.
        around: whether the bytes between the samples were compared, too.
    """

    samples: int
    size: int
    hashed: bool
    around: bool
    damaged: tuple[Damage, ...]


def verify(samples: Samples, start: int, stop: int, watch: Watch) -> Verified:
    """Read the samples [start, stop) on all cores and compare their hashes.

    Of a pack that is asked for as a whole, the bytes around the samples are compared too, and the
    index with its checksums.

    Args:
        samples: read by position, since what is mapped ends this process where a disk fails.

    Raises:
        UserError, OSError: this machine cannot read it at all.
    """
    index, root = samples.index, samples.root
    whole = (start, stop) == (0, len(index))
    damaged: list[Damage] = []
    if whole:
        damaged = [*index_damage(root), *_beside(index, root), *_strangers(index, root)]
    frames = around.frames(index) if whole and index.frames is not None else None
    if any(not samples.file(row).is_file() for row in range(len(index.files) if frames else 0)):
        frames = None  # which `index_damage` or a sample of it names
    if frames is not None and index.frames is not None and len(frames) != len(index.frames):
        why = f"{len(index.frames)} hashes of the bytes between samples, for {len(frames)} places"
        damaged.append(Damage(str(indexes.place(root)), why))
        frames = None
    work = _Check(samples, parts(index, start, stop), frames)
    bad: list[tuple[int, int, str]] = []
    between: list[tuple[int, str]] = []
    size = count = 0
    for found in spread(work, work.tasks(), cores()):
        bad.extend(found.samples)
        between.extend(found.between)
        size, count = size + found.size, count + found.count
        watch(size, count)
    damaged += [Damage(name(index, row, field), why) for row, field, why in sorted(bad)]
    if frames is not None:
        damaged += [Damage(nameless(frames, index, root, g), why) for g, why in sorted(between)]
    hashed = bool(index.fields) and all(one.hash is not None for one in index.fields)
    return Verified(stop - start, size, hashed, frames is not None, tuple(damaged))


def index_damage(root: Path) -> list[Damage]:
    """What is wrong with a container's index, and how its files differ from what it says."""
    beside = indexes.place(root)
    if not beside.is_file():
        return []
    try:
        index = indexes.load(beside)
    except BadContainer as error:
        return [Damage(str(beside), str(error))]
    try:
        unfit = stamp.unfit(index, root)
    except UserError as error:
        unfit = str(error)
    return [Damage(str(root), unfit)] if unfit else []


def name(index: Index, row: int, field: int) -> str:
    """A sample as it is named to people; with the field, as the file that it would be."""
    path, end = index.path(row), places.end(index, field)
    return f"{path}.{end}" if end else path


def hashed(samples: Samples, row: int, field: int) -> tuple[int, int]:
    """xxh3 of a sample and its length."""
    one = samples.index.fields[field]
    if 0 <= one.length[row] <= _WHOLE:
        data = samples.read(row, one.name)
        return xxhash.xxh3_64_intdigest(data), len(data)
    state, size = xxhash.xxh3_64(), 0
    for piece in samples.chunks(row, one.name):
        state.update(piece)
        size += len(piece)
    return state.intdigest(), size


@dataclass(frozen=True)
class _Found:
    """Of a piece of work: what was read, bad spans (row, field, why), bad frames (group, why)."""

    size: int
    count: int
    samples: list[tuple[int, int, str]]
    between: list[tuple[int, str]]


@dataclass(frozen=True)
class _Check:
    """Compares the spans of a part, or a few groups of frames."""

    samples: Samples
    parts: Parts
    frames: Frames | None

    def tasks(self) -> list[tuple[str, int]]:
        groups = range(0, len(self.frames), _GROUPS) if self.frames is not None else ()
        spans = [("spans", part) for part in range(len(self.parts))]
        return spans + [("frames", group) for group in groups]

    def __call__(self, task: tuple[str, int]) -> _Found:
        kind, number = task
        return self._spans(number) if kind == "spans" else self._frames(number)

    def _spans(self, part: int) -> _Found:
        fields = self.samples.index.fields
        spans = self.parts.of(part)
        size, bad = 0, []
        for field, row in spans:
            expected = fields[field].hash
            try:
                digest, length = hashed(self.samples, row, field)
            except (UserError, OSError) as error:
                bad.append((row, field, f"it cannot be read: {error}"))
                continue
            size += length
            if expected is not None and digest != expected[row]:
                bad.append((row, field, "its bytes are not those that were packed"))
        return _Found(size, len(spans), bad, [])

    def _frames(self, start: int) -> _Found:
        index, root, frames = self.samples.index, self.samples.root, self.frames
        assert frames is not None
        assert index.frames is not None
        bad = []
        for group in range(start, min(start + _GROUPS, len(frames))):
            try:
                (digest,) = around.hashes(frames, root, index.files, group, group + 1)
            except (UserError, OSError) as error:
                bad.append((group, f"they cannot be read: {error}"))
                continue
            if digest != index.frames[group]:
                bad.append((group, "they are not those that were packed"))
        return _Found(0, 0, [], bad)


def nameless(of: Frames, index: Index, root: Path, group: int) -> str:
    """The bytes of a group that belong to no sample, as they are named to people."""
    file = index.files.text(int(of.file[group])) or root.name
    where = f"bytes of no sample in {file} between {of.start[group]} and {of.stop[group]}"
    if of.first[group] < 0:
        return where
    first, last = index.path(int(of.first[group])), index.path(int(of.last[group]))
    return f"{where}, around {first}" + (f" to {last}" if first != last else "")


def _beside(index: Index, root: Path) -> list[Damage]:
    """What has changed of the small files that a format keeps beside its data."""
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
    """Files of others that readers of the folder take for the container's, by their names' end."""
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
    return "" if same else "its bytes are not those that were packed"
