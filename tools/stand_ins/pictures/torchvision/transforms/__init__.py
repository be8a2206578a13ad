"""The usual transforms of PIL pictures and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from . import functional

__all__ = ["functional"]


class Compose:
    """One after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class Lambda:
    """A function."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, picture: Any) -> Any:
        return self.lambd(picture)


class ToTensor:
    """Channels first, 0 to 1."""

    def __call__(self, picture: Any) -> torch.Tensor:
        values = np.array(picture, dtype=np.float32) / 255
        values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(values))


class Normalize:
    """A mean and a deviation for each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean = torch.tensor(list(mean)).view(-1, 1, 1)
        self.std = torch.tensor(list(std)).view(-1, 1, 1)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.mean) / self.std


class Resize:
    """To a size, or to a shorter side."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = size

    def __call__(self, picture: Any) -> Any:
        if not isinstance(self.size, int):
            return picture.resize((self.size[1], self.size[0]))
        scale = self.size / min(picture.size)
        return picture.resize([max(self.size, round(side * scale)) for side in picture.size])


Scale = Resize  # as it was called before


class Pad:
    """The same on all sides."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, picture: Any) -> Any:
        return ImageOps.expand(picture, self.padding)


class CenterCrop:
    """A square from the middle."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, picture: Any) -> Any:
        return _square(picture, self.size, *[(side - self.size) // 2 for side in picture.size])


class RandomCrop:
    """A square from anywhere, with torch's random numbers."""

    def __init__(self, size: int, padding: int = 0) -> None:
        self.size, self.padding = size, padding

    def __call__(self, picture: Any) -> Any:
        if self.padding:
            picture = ImageOps.expand(picture, self.padding)
        free = [side - self.size for side in picture.size]
        return _square(picture, self.size, *[int(torch.randint(0, n + 1, (1,))) for n in free])


class RandomResizedCrop:
    """A square part of any size, made as large as is asked for."""

    def __init__(self, size: int, scale: tuple[float, float] = (0.08, 1.0), **_: Any) -> None:
        self.size, self.scale = size, scale

    def __call__(self, picture: Any) -> Any:
        low, high = self.scale
        area = low + (high - low) * float(torch.rand(1))
        side = max(1, round(min(picture.size) * area**0.5))
        free = [whole - side for whole in picture.size]
        part = _square(picture, side, *[int(torch.randint(0, n + 1, (1,))) for n in free])
        return part.resize((self.size, self.size))


class RandomApply:
    """Some transforms, now and then."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]], p: float = 0.5) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, picture: Any) -> Any:
        if float(torch.rand(1)) < self.p:
            for transform in self.transforms:
                picture = transform(picture)
        return picture


class ColorJitter:
    """Brighter or darker; the other three are taken and left."""

    def __init__(self, brightness: float = 0, *_: float) -> None:
        self.brightness = brightness

    def __call__(self, picture: Any) -> Any:
        factor = 1 + self.brightness * (2 * float(torch.rand(1)) - 1)
        return ImageEnhance.Brightness(picture).enhance(factor)


class RandomGrayscale:
    """Now and then without colours."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = p

    def __call__(self, picture: Any) -> Any:
        return picture.convert("L").convert("RGB") if float(torch.rand(1)) < self.p else picture


class RandomHorizontalFlip:
    """Every other picture mirrored."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, picture: Any) -> Any:
        return ImageOps.mirror(picture) if float(torch.rand(1)) < self.p else picture


def _square(picture: Image.Image, size: int, left: int, top: int) -> Image.Image:
    return picture.crop((left, top, left + size, top + size))
