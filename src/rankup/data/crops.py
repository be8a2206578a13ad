"""Which part of a photo is taken: a pure function of its size and of random numbers."""

from __future__ import annotations

import math

import numpy as np

Part = tuple[int, int, int, int]
_TRIES = 10


def random_crop(
    height: int,
    width: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Part:
    """A part of random area and shape at a random place.

    Drawn as in Szegedy et al., "Going deeper with convolutions" (CVPR 2015), with the bounds that
    torchvision has: ten tries, then the largest part of an allowed shape in the middle.

    Args:
        height, width: of the photo, at least 1.
        scale: least and largest area, as parts of the photo's.
        ratio: least and largest width / height.

    Returns:
        (top, left, height, width) in pixels, inside the photo.
    """
    least, most = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * rng.random())
        shape = math.exp(least + (most - least) * rng.random())
        across, down = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < across <= width and 0 < down <= height:
            top = int((height - down + 1) * rng.random())
            left = int((width - across + 1) * rng.random())
            return top, left, down, across
    across, down = width, height
    if width < ratio[0] * height:
        down = max(1, min(height, round(width / ratio[0])))
    elif width > ratio[1] * height:
        across = max(1, min(width, round(height * ratio[1])))
    return (height - down) // 2, (width - across) // 2, down, across


def centre(
    height: int, width: int, size: int, resize: int | None = None
) -> tuple[int, int, int, int]:
    """A photo's size with its shorter side at `resize`, and where its central square begins.

    Rounded as torchvision does.

    Args:
        height, width: of the photo, at least 1.
        size: side of the square.
        resize: at least `size`; by default `round(size * 256 / 224)`.

    Returns:
        (height, width, top, left) in pixels, of the resized photo.
    """
    shorter = round(size * 256 / 224) if resize is None else resize
    if height <= width:
        down, across = shorter, int(shorter * width / height)
    else:
        down, across = int(shorter * height / width), shorter
    return down, across, round((down - size) / 2), round((across - size) / 2)
