"""Arrays as the page carries them: whole numbers of one or two bytes, compressed, base64.

A page of less than 6 MB holds Plotly (4.8 MB) and a run of any size, so that each array says how
fine it must be. The page's `decode.js` is the other half.
"""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..recording import Array

Reference = dict[str, Any]
LEVELS = 100


class Packer:
    """Takes arrays, gives references to them for the page's JSON, and at the end one text."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def exact(self, values: NDArray[Any]) -> Reference:
        """An array of float32 as it is: for what spans many orders of magnitude."""
        return self._add(np.asarray(values, dtype="<f4"), "f4")

    def fine(self, values: Array) -> Reference:
        """An array in 65 000 steps between its lowest and its highest value; NaN stays NaN."""
        there = values[np.isfinite(values)]
        low, high = (float(there.min()), float(there.max())) if there.size else (0.0, 0.0)
        return self._steps(values, "<u2", low, (high - low) / 65534)

    def rough(self, values: Array, low: float, high: float) -> Reference:
        """An array in a hundred steps of a scale from `low` to `high`: for colours."""
        return self._steps(np.clip(values, low, high), "u1", low, (high - low) / LEVELS)

    def text(self) -> str:
        """All that was added: gzip, base64."""
        return base64.b64encode(gzip.compress(b"".join(self._parts), 6, mtime=0)).decode()

    def _steps(self, values: Array, kind: str, low: float, step: float) -> Reference:
        step = step or 1.0
        missing = np.iinfo(np.dtype(kind)).max
        there = np.isfinite(values)
        codes = np.where(there, np.rint((np.where(there, values, low) - low) / step), missing)
        reference = self._add(codes.astype(kind), kind.lstrip("<"))
        return {**reference, "low": low, "step": step}

    def _add(self, values: NDArray[Any], kind: str) -> Reference:
        data = np.ascontiguousarray(values).tobytes()
        reference = {"at": self._length, "count": int(values.size), "kind": kind}
        # Every array begins at a multiple of 4, as the browser's typed arrays want it.
        data += bytes(-len(data) % 4)
        self._parts.append(data)
        self._length += len(data)
        return reference


def rough_size(values: Array, low: float, high: float) -> int:
    """Characters that `Packer.rough` would take for an array."""
    trial = Packer()
    trial.rough(values, low, high)
    return len(trial.text())
