"""Measurements as plain values; the part that limits, the one thing to change, and the report."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...base.amounts import size, words

# So many times what its parts take, handing batches over is what limits.
_HANDING = 2.0
_WIDTH = 100
_BUSY = 0.3  # of the cores


@dataclass(frozen=True)
class Spread:
    """A time that was measured several times: the median, with the quartiles."""

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
    """

    kind: str
    workers: int
    batch: int
    rate: float


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
    # What the parts do not explain; some of it is cores that share a core, and other programs,
    # which may be all of it.
    handing = _ratio(busy, chosen.rate) - sum(works.values())
    if _is_idle(data) and _HANDING * sum(works.values()) < handing < math.inf:
        limit, works["loader"] = "loader", handing
    share = _ratio(works[limit], sum(works.values()))
    copied = math.inf if parts.copy is None else _ratio(max(1, data.gpus), parts.copy.median)
    if copied < chosen.rate:
        limit, share = "copy", 0.0
    supply = min(chosen.rate, copied)
    met = supply >= measured.demand
    cores = _ratio(busy * measured.demand, chosen.rate)
    change = "" if met else _change(limit, data, cores, measured.demand)
    decoding = "decoding and cropping" if data.image else "the transform"
    limits = {
        "read": "reading",
        "transform": f"the transform {data.transform}" if data.own else decoding,
        "collate": "putting samples together to batches",
        "copy": "copying batches to the GPU",
        "loader": "handing batches from the workers to the loop",
    }
    return Verdict(limit, limits[limit], share, chosen, supply, met, change)


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


def lines(measured: Measured, verdict: Verdict) -> Iterator[str]:
    """Yield the report."""
    data, parts = measured.data, measured.parts
    pixels = f" of about {data.width} x {data.height} pixels" if data.width else ""
    yield (
        f"{data.path}{f', {data.split}' if data.split else ''}: "
        f"{words(data.samples, 'sample', 'samples')}, {size(data.size)}"
        f"{f', {data.image}{pixels}' if data.image else ''}; {data.container} on "
        f"{data.storage or 'an unknown file system'}, by {data.how}"
        f"{f', staged at {data.staged}' if data.staged else ''}"
    )
    cores = words(data.cores, "core", "cores")
    yield (
        f"transform {data.transform or 'none'}{f' -> {data.result}' if data.result else ''}; "
        f"batches of {data.batch}; {cores}, "
        f"{words(data.gpus, 'GPU', 'GPUs') if data.gpus else 'no GPU'}"
    )
    yield f"{'':18}{'a sample':>9}  {'(quartiles)':<18}{'per second and core':>20}"
    yield _part("first read", parts.first)
    yield _part("read again", parts.read)
    if parts.transform is not None:
        making = "decode + crop" if data.image and not data.own else "transform"
        yield _part(making, parts.transform)
    yield _part("collate", parts.collate, parts.loose and f"not possible: {parts.loose}")
    yield _part("copy to a GPU", parts.copy, parts.why_not_copy)
    for load in measured.loads:
        yield (
            f"Loader, {load.workers} {load.kind}: {_rate(load.rate)} samples/s (batches of "
            f"{load.batch})"
        )
    for kind, why in measured.refused.items():
        yield from _wrapped(f"Loader, {kind}: not possible: {why}")
    if not _is_idle(data):
        yield (
            f"Other programs were at work here (load {data.busy:.1f} on {cores}): on an idle node "
            "it is faster."
        )
    if parts.bad:
        yield f"left out, as they cannot be made: {parts.bad}; the first is {parts.first_bad}"
    limits = verdict.limits
    if verdict.share:
        limits += f" ({_percent(verdict.share)} of worker time)"
    rate, asked = f"{_rate(verdict.supply)} samples/s", f"the {_rate(measured.demand)}/s you asked"
    if verdict.met:
        times = f"{verdict.supply / measured.demand:.1f} times"
        yield from _wrapped(
            f"Fast enough: {rate}, {times} {asked} for. The bottleneck would be {limits}."
        )
        return
    share = _percent(verdict.supply / measured.demand)
    yield from _wrapped(f"Too slow: {rate}, {share} of {asked} for. The bottleneck is {limits}.")
    yield from _wrapped(f"What to change: {verdict.change}.")


def _is_idle(data: Data) -> bool:
    return data.busy <= _BUSY * data.cores


def _ratio(one: float, other: float) -> float:
    if other > 0:
        return one / other
    return math.inf if one > 0 else 1.0


def _part(name: str, spread: Spread | None, why: str = "") -> str:
    if spread is None:
        return f"  {name:<18} {'-':>7}  {why or 'not measured'}"
    inside = f"({_time(spread.low)} … {_time(spread.high)})"
    rate = 1 / spread.median if spread.median > 0 else 0.0
    return f"  {name:<18} {_time(spread.median):>7}  {inside:<21}{_rate(rate):>14}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds * 1e9)} ns"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.01 else f"{100 * part:.1g} %"


def _rate(value: float) -> str:
    """Return three digits of it: `9,200`."""
    if value < 1000:
        return _three(value)
    return f"{int(round(value, 3 - len(str(int(value))))):,}"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
