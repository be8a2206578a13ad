"""From the columns that a sampler writes to the channels that a recording has."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from . import lines
from .recording import GPU, HOST
from .samples import Batch

Numbers = NDArray[np.float64]
_BITS = {
    "throttle_power": lines.THROTTLE_POWER,
    "throttle_heat": lines.THROTTLE_HEAT,
    "throttle_hardware": lines.THROTTLE_HARDWARE,
}


def gpu_channels(batch: Batch) -> Numbers:
    """(samples, GPUs, channels of `recording.GPU`)."""
    rows = batch.gpu
    values = np.empty((*rows.shape[:2], len(GPU)))
    bits = rows[..., lines.GPU.index("throttle")]
    unknown = np.isnan(bits)
    whole = np.where(unknown | (bits >= 2**62), 0, bits).astype(np.int64)
    for at, name in enumerate(GPU):
        if name in _BITS:
            values[..., at] = np.where(unknown, np.nan, (whole & _BITS[name]) != 0)
        else:
            values[..., at] = rows[..., lines.GPU.index(name)]
    return values


def host_channels(batch: Batch) -> Numbers:
    """(samples, channels of `recording.HOST`)."""
    values = np.full((len(batch.t), len(HOST)), np.nan)
    for at, name in enumerate(lines.HOST):
        values[:, HOST.index(name)] = batch.host[:, at]
    if batch.cores.shape[1]:
        values[:, HOST.index("busiest")] = _most(batch.cores)
    if batch.fs:
        mounts = np.stack(list(batch.fs.values()))
        said = ~np.isnan(mounts).all(axis=0)
        total = np.where(said, np.nansum(mounts, axis=0), np.nan)
        for at, name in enumerate(lines.FS):
            values[:, HOST.index(f"fs_{name}")] = total[:, at]
    return values


def _most(cores: NDArray[np.float32]) -> NDArray[np.float32]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN is NaN
        most: NDArray[np.float32] = np.nanmax(cores, axis=1)
    return most
