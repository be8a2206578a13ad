"""Stands in for albumentations: see tools/stand_ins/README.md."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

Arrays = dict[str, Any]


class Compose:
    """One after the other, of a picture and its mask."""

    def __init__(self, transforms: Sequence[Callable[[Arrays], Arrays]]) -> None:
        self.transforms = transforms

    def __call__(self, **arrays: Any) -> Arrays:
        for transform in self.transforms:
            arrays = transform(arrays)
        return arrays


class _Same:
    """The same change of the picture and of its mask."""

    p = 1.0

    def __call__(self, arrays: Arrays) -> Arrays:
        if random.random() >= self.p:  # noqa: S311
            return arrays
        change = self.drawn()
        return {name: change(one) for name, one in arrays.items()}

    def drawn(self) -> Callable[[np.ndarray], np.ndarray]:
        """The change, its random numbers drawn."""
        raise NotImplementedError


class Resize(_Same):
    """To a height and a width."""

    def __init__(self, height: int, width: int) -> None:
        self.size = (width, height)

    def drawn(self) -> Callable[[np.ndarray], np.ndarray]:
        """Of nearest neighbours, so that a mask stays one."""
        return lambda one: np.array(
            Image.fromarray(one).resize(self.size, Image.Resampling.NEAREST)
        )


class Rotate(_Same):
    """By an angle up to a limit."""

    def __init__(self, limit: float = 90, p: float = 0.5) -> None:
        self.limit, self.p = limit, p

    def drawn(self) -> Callable[[np.ndarray], np.ndarray]:
        """One angle for both."""
        angle = random.uniform(-self.limit, self.limit)  # noqa: S311
        return lambda one: np.array(Image.fromarray(one).rotate(angle))


class HorizontalFlip(_Same):
    """Left and right."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def drawn(self) -> Callable[[np.ndarray], np.ndarray]:
        """Mirrored."""
        return lambda one: one[:, ::-1].copy()


class VerticalFlip(_Same):
    """Top and bottom."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def drawn(self) -> Callable[[np.ndarray], np.ndarray]:
        """Upside down."""
        return lambda one: one[::-1].copy()


class Normalize:
    """The picture alone."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], max_pixel_value: float = 255.0
    ) -> None:
        self.mean, self.std = np.float32(mean), np.float32(std)
        self.most = max_pixel_value

    def __call__(self, arrays: Arrays) -> Arrays:
        picture = (arrays["image"].astype(np.float32) / self.most - self.mean) / self.std
        return {**arrays, "image": picture}
