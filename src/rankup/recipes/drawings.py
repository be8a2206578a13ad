"""Drawings of ten kinds, for trials of a recipe where there are no photos. No torch."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import UserError
from ..base.files import replacing

SIDE = 48  # pixels
COUNTS = {"train": 32, "val": 8}  # drawings of each kind
_QUALITY = 85
_GRAIN = 12.0

_Plane = np.ndarray[Any, np.dtype[np.float64]]


def draw(path: Path) -> None:
    """Write a tar of class folders, `train/disc/000.jpg` …; the same bytes each time.

    Raises:
        UserError: simplejpeg, which the training needs too, is not here.
    """
    if importlib.util.find_spec("simplejpeg") is None:
        raise UserError("drawings are kept as JPEG by simplejpeg: pip install 'rankup[train]'")
    import simplejpeg

    rng = np.random.default_rng(0)
    with replacing(path) as out, tarfile.open(fileobj=out, mode="w") as tar:
        for split, count in COUNTS.items():
            for kind in KINDS:
                for number in range(count):
                    data = simplejpeg.encode_jpeg(picture(kind, rng), _QUALITY)
                    member = tarfile.TarInfo(f"{split}/{kind}/{number:03}.jpg")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def picture(kind: str, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One of `KINDS`, uint8 (SIDE, SIDE, 3): two colours, place and size drawn, some grain."""
    radius = rng.uniform(0.5, 0.8)
    middle = rng.uniform(radius - 1, 1 - radius, 2)
    down, across = np.meshgrid(*(np.linspace(-1, 1, SIDE) - one for one in middle), indexing="ij")
    inside = KINDS[kind](down / radius, across / radius)
    back = rng.uniform(0, 255, 3)
    front = (back + rng.uniform(80, 175, 3)) % 255  # never close to each other
    pixels = np.where(inside[:, :, None], front, back) + rng.normal(0, _GRAIN, (SIDE, SIDE, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _round(y: _Plane, x: _Plane) -> _Plane:
    return np.hypot(y, x)


def _edge(y: _Plane, x: _Plane) -> _Plane:
    return np.maximum(abs(y), abs(x))


# Where a kind's colour is, of places down and across; seen in a mirror each is the same.
KINDS = {
    "disc": lambda y, x: _round(y, x) < 1,
    "ring": lambda y, x: abs(_round(y, x) - 0.8) < 0.2,
    "square": lambda y, x: _edge(y, x) < 1,
    "frame": lambda y, x: abs(_edge(y, x) - 0.8) < 0.2,
    "triangle": lambda y, x: (abs(y) < 1) & (abs(x) < (y + 1) / 2),
    "cross": lambda y, x: (_edge(y, x) < 1) & (np.minimum(abs(y), abs(x)) < 0.25),
    "diagonals": lambda y, x: (_edge(y, x) < 1) & (abs(abs(y) - abs(x)) < 0.3),
    "rows": lambda y, x: (_edge(y, x) < 1) & (np.sin(12 * y) > 0),
    "columns": lambda y, x: (_edge(y, x) < 1) & (np.cos(12 * x) > 0),
    "board": lambda y, x: (_edge(y, x) < 1) & (np.sin(9 * y) * np.cos(9 * x) > 0),
}
