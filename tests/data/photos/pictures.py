"""Photos for the tests: real ones where there are any, else soft stripes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def stripes(
    kind: str = "JPEG", mode: str = "RGB", size: tuple[int, int] = (600, 400), **options: Any
) -> bytes:
    """Another gradient in each direction and colour, so that turning and shifting show.

    Args:
        size: (width, height).
    """
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    values = np.stack([255 * x, 255 * y, 127 + 127 * np.sin(9 * x + 4 * y)], -1)
    image = Image.fromarray(values.astype(np.uint8)).convert(mode)
    if mode.endswith("A"):
        image.putalpha(100)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def real(data_root: Path | None, count: int) -> list[bytes]:
    """Photos of many sizes."""
    if data_root is None:
        sizes = [(500, 375), (375, 500), (1600, 1200), (120, 97), (640, 480)]
        made = [stripes(size=size, quality=92) for size in sizes]
        return [made[number % len(made)] for number in range(count)]
    paths = sorted((data_root / "imagenet-sample").rglob("*.[jJ][pP]*[gG]"))
    assert len(paths) >= count
    return [path.read_bytes() for path in paths[:: len(paths) // count][:count]]


def by_pillow(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


def apart(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """How far values are from each other."""
    assert one.shape == other.shape
    return np.abs(one.astype(np.int64) - other)
