"""A recording turned into what the page draws, channel by channel: strips, rows, summaries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..recording import Array, Band, Recording
from .channels import GIB, SECTIONS, Channel, Section
from .reduce import highest, lowest, mean, strip

STRIP_BINS = 1200  # more than a screen has pixels for


@dataclass(frozen=True)
class Series:
    """A line with its band over time, in the unit of its plot.

    Attributes:
        low, mean, high: over the run and all rows.
    """

    name: str
    band: Band
    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class Plot:
    """A channel as it is drawn.

    Attributes:
        unit: that is shown; scale: recorded values are multiplied by it.
        fold: bins of the recording in one point of `series`.
        floor, ceiling: ends of the scale of the strip, in `unit`; rows_ceiling: of the colours.
        average: (rows,) over the run, both directions together; NaN for a row never sampled.
        where: the rows with the lowest and the highest average.
    """

    channel: Channel
    unit: str
    scale: float
    fold: int
    series: tuple[Series, ...]
    floor: float
    ceiling: float
    rows_ceiling: float
    average: Array
    where: tuple[int, int]


@dataclass(frozen=True)
class Drawn:
    """A section with what there is to draw, and what to say of the rest.

    Attributes:
        said: sentences about channels that have no plot.
    """

    section: Section
    plots: tuple[Plot, ...]
    said: tuple[str, ...]


def sections(recording: Recording) -> tuple[Drawn, ...]:
    """All sections; a channel that was not recorded or never moved from zero has no plot."""
    return tuple(_section(recording, section) for section in SECTIONS)


def rows(recording: Recording, plot: Plot) -> Array:
    """(bins, rows) means of a plot, in its unit; both directions together where it has two."""
    return _sum(_bands(recording, plot.channel)) * np.float32(plot.scale)


def row_names(recording: Recording) -> dict[str, list[str]]:
    """Names of the rows, by what has a row each."""
    nodes = list(recording.nodes)
    ranks = zip(recording.ranks, recording.rank_node, strict=True)
    return {
        "gpu": recording.gpu_names(),
        "host": nodes,
        "rank": [f"rank {int(rank)} on {nodes[int(node)]}" for rank, node in ranks],
    }


def _section(recording: Recording, section: Section) -> Drawn:
    plots, quiet, missing = [], [], []
    for channel in section.channels:
        bands = _bands(recording, channel)
        seen = [band for band in bands if np.isfinite(band.mean).any()]
        if not seen or len(seen) < len(bands):
            missing.append(channel.title)
        elif all(float(np.nanmax(band.high)) <= 0 for band in bands):
            # A GPU or a core that did nothing is worth a picture; a file system is not.
            if channel.ceiling is not None and not channel.more:
                plots.append(_plot(recording, channel, bands))
            else:
                quiet.append(channel.title)
        else:
            plots.append(_plot(recording, channel, bands))
    if len(missing) == len(section.channels):
        return Drawn(section, (), (section.empty,))
    said = []
    if quiet:
        said.append(section.quiet.format(", ".join(quiet)))
    if missing:
        said.append(f"Not recorded: {', '.join(missing)}.")
    return Drawn(section, tuple(plots), tuple(said))


def _bands(recording: Recording, channel: Channel) -> list[Band]:
    group = {"gpu": recording.gpu, "host": recording.host, "rank": recording.rank}[channel.of]
    found = [group[name] for name in channel.names if name in group]
    return [band for band in found if band.mean.size]


def _plot(recording: Recording, channel: Channel, bands: list[Band]) -> Plot:
    fold = max(1, -(-recording.bins // STRIP_BINS))
    unit, scale = channel.unit, channel.factor
    if unit == "bytes/s":
        unit, scale = _prefixed(max(float(np.nanmax(band.high)) for band in bands))
    labels = channel.labels or ("",)
    series = tuple(
        _series(label, band, fold, scale) for label, band in zip(labels, bands, strict=True)
    )
    averages = [mean(band.mean, axis=0) for band in bands]
    average = np.sum(averages, axis=0, dtype=np.float32) * np.float32(scale)
    there = np.flatnonzero(np.isfinite(average))
    ceiling = max(_ceiling(recording, channel), *(one.high for one in series)) or 1.0
    both = ceiling if len(bands) == 1 else float(np.nanmax(_sum(bands))) * scale or 1.0
    return Plot(
        channel=channel,
        unit=unit,
        scale=scale,
        fold=fold,
        series=series,
        floor=min(0.0, *(one.low for one in series)),
        ceiling=ceiling,
        rows_ceiling=both,
        average=average,
        where=(int(there[average[there].argmin()]), int(there[average[there].argmax()])),
    )


def _sum(bands: list[Band]) -> Array:
    total = bands[0].mean
    for band in bands[1:]:
        total = total + band.mean
    return total


def _series(name: str, band: Band, fold: int, scale: float) -> Series:
    factor = np.float32(scale)
    whole = strip(band, fold)
    return Series(
        name,
        Band(whole.low * factor, whole.mean * factor, whole.high * factor),
        low=float(lowest(whole.low)) * scale,
        mean=float(mean(band.mean)) * scale,
        high=float(highest(whole.high)) * scale,
    )


def _ceiling(recording: Recording, channel: Channel) -> float:
    """End of the scale that is known beforehand; 0 where only the values can tell."""
    if channel.ceiling is None or isinstance(channel.ceiling, float):
        return channel.ceiling or 0.0
    gpus, heads = recording.gpus, recording.heads
    known: dict[str, list[float | None]] = {
        "limit": [gpu.power_limit for gpu in gpus],
        "memory": [gpu.memory / GIB for gpu in gpus],
        "clock": [gpu.clock_max for gpu in gpus],
        "node memory": [head.memory / GIB for head in heads],
        "node limit": [(head.memory_limit or 0) / GIB for head in heads],
    }
    return max((value for value in known[channel.ceiling] if value), default=0.0)


def _prefixed(highest: float) -> tuple[str, float]:
    """A unit in which the highest value (bytes/s) has one to three digits, and its factor."""
    for unit, factor in (("GB/s", 1e-9), ("MB/s", 1e-6), ("kB/s", 1e-3)):
        if highest * factor >= 1:
            return unit, factor
    return "B/s", 1.0
