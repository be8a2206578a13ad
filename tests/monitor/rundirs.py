"""Run directories made by hand, and what holds of every recording."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from rankup.monitor import lines
from rankup.monitor.recording import GPU, HOST, RANK, Band, Facts, Recording

from .traces import BEGIN, Trace

NOBODY = Facts(run="r", name="n", command="c", directory="d")


def write(directory: Path, records: list[dict[str, Any]], node: str = "n1") -> Path:
    """Write a node's files of heads, notes and ends, and of what `sample` returns."""
    folder = directory / lines.FOLDER
    folder.mkdir(exist_ok=True)
    journal = [record for record in records if "kind" in record]
    path = folder / f"{node}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in journal))
    for kind in lines.KINDS:
        with path.with_name(node + lines.ending(kind)).open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(lines.header(kind))
            rows.writerows(row for one in records for row in one.get(kind, ()))
    return directory


def head(trace: Trace | None = None, t: float = 0.0, **changes: Any) -> dict[str, Any]:
    return {**(trace or Trace()).head(0, BEGIN + t).line(), **changes}


def sample(
    t: float,
    dt: float | None = 10.0,
    util: float | None = 50,
    gpu: list[list[float | None]] | None = None,
    fs: dict[str, list[float | None]] | None = None,
) -> dict[str, Any]:
    """The rows of a sample by kind; columns that a row of `gpu` lacks are empty."""
    when = [BEGIN + t, dt]
    rows = gpu or [[util, 1e9, 100, 50, 1400, 0, 1, 1, 1, 1]] * 4
    filled = [[*row, *[None] * (len(lines.GPU) - len(row))] for row in rows]
    sums = [sum(v for v in way if v is not None) for way in zip(*(fs or {}).values(), strict=True)]
    host = [10, 50, 1, 1e9, 1e9, 0, 1, 1, 1, 1, 1, 1, *(sums or [None] * 3)]
    return {
        "gpu": [[*when, index, *row] for index, row in enumerate(filled)],
        "host": [[*when, *host, "5" * 48]],
        "rank": [[*when, 0, 90, 1, 0, 0, 1, 1]],
        "fs": [[*when, mount, *rates] for mount, rates in (fs or {}).items()],
    }


def usable(recording: Recording) -> None:
    """What all who read a recording rely on, whatever it was read from."""
    bins, nodes = recording.bins, len(recording.heads)
    assert 1 <= bins <= 1441
    assert recording.width > 0
    assert recording.covered.shape == (bins, nodes)
    assert ((recording.covered >= 0) & (recording.covered <= 1)).all()
    assert len(recording.core_use) == nodes
    for names, bands, things in (
        (GPU, recording.gpu, len(recording.gpus)),
        (HOST, recording.host, nodes),
        (RANK, recording.rank, len(recording.ranks)),
    ):
        assert tuple(bands) == names
        for band in bands.values():
            assert band.low.shape == band.mean.shape == band.high.shape == (bins, things)
            said = ~np.isnan(band.mean)
            assert (np.isnan(band.low) == ~said).all()
            assert (np.isnan(band.high) == ~said).all()
            assert (band.low[said] <= band.mean[said]).all()
            assert (band.mean[said] <= band.high[said]).all()
            assert np.isfinite(band.high[said]).all()
    steps = recording.steps
    columns = [steps.time, steps.loss, steps.seconds, steps.rate, steps.data_wait, steps.mfu]
    assert {len(c) for c in [*columns, *steps.extra.values()]} == {len(steps.step)}
    assert np.isfinite(steps.time).all()
    assert len(recording.gpu_names()) == len(recording.gpus)
    assert recording.times.shape == (bins,)
    assert [e.time for e in recording.events] == sorted(e.time for e in recording.events)
    assert all(gap.end > gap.begin for gap in recording.gaps)


def average(recording: Recording, band: Band) -> np.ndarray:
    """Mean over time, bins by what of them is covered."""
    weight = recording.covered[:, recording.gpu_node]
    return np.nansum(band.mean * weight, axis=0) / (weight * ~np.isnan(band.mean)).sum(axis=0)
