"""Run directories made by hand, and what holds of every recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankup.monitor import lines
from rankup.monitor.recording import GPU, HOST, RANK, Band, Facts, Recording

from .traces import BEGIN, Trace

NOBODY = Facts(run="r", name="n", command="c", directory="d")


def write(directory: Path, records: list[Any], node: str = "n1") -> Path:
    """A node's file of JSON objects, and of bytes as they are."""
    folder = directory / lines.FOLDER
    folder.mkdir(exist_ok=True)
    texts = [r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records]
    (folder / f"{node}.jsonl").write_bytes(b"".join(texts))
    return directory


def head(trace: Trace | None = None, t: float = 0.0, **changes: Any) -> dict[str, Any]:
    return {**(trace or Trace()).head(0, BEGIN + t).line(), **changes}


def sample(t: float, dt: Any = 10.0, util: Any = 50, **changes: Any) -> dict[str, Any]:
    row = [util, 1e9, 100, 50, 1400, 0, 1, 1, 1, 1]
    host = [10, 1, 1e9, 1e9, 0, 1, 1, 1, 1, 1, 1]
    usual = {"gpu": [row] * 4, "host": host, "cores": "5" * 48, "ranks": [[0, 90, 1, 0, 0, 1, 1]]}
    return {"t": BEGIN + t, "dt": dt, **usual, **changes}


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


def same(one: Recording, other: Recording) -> None:
    for kind in ("gpu", "host", "rank"):
        for name, band in getattr(one, kind).items():
            for part in ("low", "mean", "high"):
                found = getattr(getattr(other, kind)[name], part)
                np.testing.assert_allclose(getattr(band, part), found, rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(one.covered, other.covered)
    for own, found in zip(one.core_use, other.core_use, strict=True):
        np.testing.assert_allclose(own, found, rtol=1e-6)
    assert list(one.fs) == list(other.fs)
    for mount, both in one.fs.items():
        assert both == pytest.approx(other.fs[mount])
    assert (one.samples, one.torn, one.gaps) == (other.samples, other.torn, other.gaps)


def average(recording: Recording, band: Band) -> np.ndarray:
    """Mean over time, bins by what of them is covered."""
    weight = recording.covered[:, recording.gpu_node]
    return np.nansum(band.mean * weight, axis=0) / (weight * ~np.isnan(band.mean)).sum(axis=0)
