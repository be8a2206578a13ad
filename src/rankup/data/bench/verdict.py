"""Measurements as plain values, the part that limits, and the one thing to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

# So many times what its parts take, handing batches over is what limits.
_HANDING = 2.0


@dataclass(frozen=True)
class Spread:
    """A time that was measured several times.

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
        """Return that of one value or more."""
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        return cls(median, low, high, len(values))


@dataclass(frozen=True)
class Parts:
    """Seconds that one core needs per sample, part by part; None: not measured.

    Attributes:
        first: reading for the first time: from where the file lies, or from the node's memory.
        read: reading again, from the node's memory.
        transform: bytes -> sample: decoding and all.
        collate: samples -> batch; `loose` says why they cannot be put together.
        copy: batch -> one GPU; `why_not_copy` says why there is none.
        bad: samples that could not be made, and the error of the first one.
    """

    first: Spread
    read: Spread
    transform: Spread | None
    collate: Spread | None
    loose: str = ""
    copy: Spread | None = None
    why_not_copy: str = ""
    bad: int = 0
    first_bad: str = ""


@dataclass(frozen=True)
class Load:
    """The whole Loader.

    Attributes:
        kind: `threads` or `processes`.
        batch: samples of each batch; less than asked for where memory or time would not do.
        rate: samples per second.
        memory: bytes that each worker has for itself (USS); None: not known.
    """

    kind: str
    workers: int
    batch: int
    rate: float
    memory: int | None = None


@dataclass(frozen=True)
class Data:
    """The data that is measured, and the machine.

    Attributes:
        path: as it was named.
        staged: the copy that is read in its place; empty: none.
        split, container, how: see `Samples`.
        samples, size: of the split; bytes as stored.
        storage: the type of the file system, as `ext4`.
        pieces: samples do not lie in one piece: compressed, or of a variable length in HDF5.
        resident: it lies in memory.
        image: a kind of image, as `JPEG`; empty: none.
        width, height: medians of images, pixels; 0: not known.
        transform: as it was spelled, or what was taken for the want of one.
        result: dtype and shape of what it makes, where that is known.
        own: it is no transform of rankup's.
        in_place: it writes into the batch.
        batch, cores, gpus: as asked, and as there are.
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
    batch: int
    cores: int
    gpus: int
    busy: float


@dataclass(frozen=True)
class Measured:
    """All of it; `refused` says why the Loader has no threads, or no processes."""

    data: Data
    parts: Parts
    loads: tuple[Load, ...]
    demand: float
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The part that limits, and the one thing to change.

    Attributes:
        limit: the part that there is most to gain from: `read`, `transform`, `collate`, `copy`, or
            `loader`, the way of batches from workers to the loop.
        limits: the same in words.
        share: of a worker's time that it takes; 0 for `copy`.
        chosen: the faster of threads and processes.
        supply: samples per second that this node gives.
        met: they are as many as the demand.
        change: the one thing to change; empty where the demand is met.
    """

    limit: str
    limits: str
    share: float
    chosen: Load
    supply: float
    met: bool
    change: str


def judge(measured: Measured) -> Verdict:
    """Return the verdict on what was measured; `loads` has one entry or more."""
    data, parts = measured.data, measured.parts
    chosen = max(measured.loads, key=lambda load: load.rate)
    named = {"read": parts.read, "transform": parts.transform, "collate": parts.collate}
    works = {name: spread.median for name, spread in named.items() if spread is not None}
    busy = max(1, min(chosen.workers, data.cores))
    limit = max(works, key=lambda name: works[name])
    # What the parts do not explain; some of it is other programs, and cores that share a core.
    handing = _ratio(busy, chosen.rate) - sum(works.values())
    if _HANDING * sum(works.values()) < handing < math.inf:
        limit, works["loader"] = "loader", handing
    share = _ratio(works[limit], sum(works.values()))
    copied = math.inf if parts.copy is None else _ratio(max(1, data.gpus), parts.copy.median)
    if copied < chosen.rate:
        limit, share = "copy", 0.0
    supply = min(chosen.rate, copied)
    met = supply >= measured.demand
    cores = _ratio(busy * measured.demand, chosen.rate)
    change = "" if met else _change(limit, data, cores, measured.demand)
    return Verdict(limit, _words(limit, data), share, chosen, supply, met, change)


def _words(limit: str, data: Data) -> str:
    if limit == "transform":
        if data.own:
            return f"the transform {data.transform}"
        return "decoding and cropping" if data.image else "the transform"
    return {
        "read": "reading",
        "collate": "putting samples together to batches",
        "copy": "copying batches to the GPU",
        "loader": "handing batches from the workers to the loop",
    }[limit]


def _change(limit: str, data: Data, cores: float, demand: float) -> str:
    if limit == "loader":
        return "store several samples as one: small ones cost Python more than their bytes"
    if limit == "copy":
        return "make smaller samples: uint8 is a quarter of float32, which the GPU makes of it"
    if limit == "collate" and not data.in_place:
        return (
            "a transform with `shape` and `into` (rankup.data.transforms.Shaped) needs no collate"
        )
    if limit == "read" and (data.container == "files" or data.pieces):
        name = data.path.rstrip("/").rpartition("/")[2].rpartition(".")
        out = f"{name[0] or name[2]}.h5"
        return f"`rankup pack {data.path} {out}`: one file, in which each sample is one piece"
    if limit == "read" and not data.resident:
        return f"`rankup stage {data.path}` (`rankup run --stage`) copies it into the node's memory"
    if limit == "transform" and data.own:
        return "what it does to every sample alike (float, normalise), a GPU does to whole batches"
    if math.isfinite(cores) and cores > data.cores:
        return (
            f"more cores: {demand:,.0f}/s take about {math.ceil(cores):,}, and this process may "
            f"use {data.cores} (`--cpus-per-task`; a compute node has more than a login node)"
        )
    return "run it on a node where nothing else runs"


def _ratio(one: float, other: float) -> float:
    if other > 0:
        return one / other
    return math.inf if one > 0 else 1.0
