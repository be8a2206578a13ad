"""What `bench-data` measures, as plain values: the verdict and the printing know nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spread:
    """A time or a rate that was measured several times.

    Attributes:
        median, low, high: with the quartiles.
        repeats: how often.
    """

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        inside = sorted(values)
        return cls(_at(inside, 0.5), _at(inside, 0.25), _at(inside, 0.75), len(inside))


def _at(inside: Sequence[float], part: float) -> float:
    """A quantile, with a straight line between two values."""
    place = part * (len(inside) - 1)
    left = int(place)
    right = min(left + 1, len(inside) - 1)
    return inside[left] + (place - left) * (inside[right] - inside[left])


@dataclass(frozen=True)
class Parts:
    """Seconds that one core needs per sample, part by part; None: not measured.

    Attributes:
        read: from the node's memory.
        cold: from where the file lies; `why_not_cold` says why it was not measured, or what the
            figure does not know.
        transform: bytes -> sample: decoding and all.
        collate: samples -> batch.
        copy: batch -> one GPU.
        bad: samples that could not be made, and the error of the first one.
    """

    read: Spread
    transform: Spread | None
    collate: Spread | None
    cold: Spread | None = None
    why_not_cold: str = ""
    copy: Spread | None = None
    why_not_copy: str = ""
    loose: str = ""
    bad: int = 0
    first_bad: str = ""


@dataclass(frozen=True)
class Load:
    """The whole Loader with one number of workers.

    Attributes:
        kind: `threads` or `processes`.
        batch: samples of each batch; less than asked for where memory or time would not do.
        rate: samples per second.
        memory: bytes that each worker has for itself (USS); None: not known.
    """

    kind: str
    workers: int
    batch: int
    rate: Spread
    memory: int | None = None


@dataclass(frozen=True)
class Data:
    """What is measured, and on what.

    Attributes:
        path: as it was named.
        staged: the copy that is read in its place; empty: none.
        split, container, how: see `Samples`.
        samples, size: of the split; bytes as stored.
        storage: the type of the file system, as `ext4`.
        pieces: samples do not lie in one piece: compressed, or of a variable length in HDF5.
        resident: it lies in memory, so that there is nothing colder.
        image: a kind of image, as `JPEG`; empty: none.
        width, height: medians of images, pixels; 0: not known.
        transform: as it was spelled, or what was taken for the want of one.
        result: dtype and shape of what it makes, where that is known.
        own: it is no transform of rankup's.
        in_place: it writes into the batch.
        crop: pixels of a side that the default transform makes; 0: none.
        batch, cores, gpus, memory: bytes of memory that are available.
        busy: cores that other programs used in the minute before (the load average).
    """

    path: str
    staged: str
    split: str
    container: str
    how: str
    samples: int
    size: int
    storage: str
    pieces: bool
    resident: bool
    image: str
    width: int
    height: int
    transform: str
    result: str
    own: bool
    in_place: bool
    crop: int
    batch: int
    cores: int
    gpus: int
    memory: int
    busy: float


@dataclass(frozen=True)
class Measured:
    """All of it; `refused` says why the Loader has no threads, or no processes."""

    data: Data
    parts: Parts
    loads: tuple[Load, ...]
    demand: float
    refused: Mapping[str, str] = field(default_factory=dict)
