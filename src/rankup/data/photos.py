"""Photos: decoded, cropped and resized on the CPU, normalised on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of a photo, resized to a square, flipped half the time: for training."""

    size: int
    dtype: npt.DTypeLike = np.uint8
    channels_last: bool = True
    releases_gil: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size, self.size, 3

    def into(
        self, data: bytes | memoryview, rng: np.random.Generator, out: npt.NDArray[Any]
    ) -> None:
        image = simplejpeg.decode_jpeg(data)
        height, width = image.shape[:2]
        top, left = (rng.random(2) * 0.2 * (height, width)).astype(int)
        part = torch.from_numpy(image)[top : height - top, left : width - left]
        small = F.interpolate(
            part.permute(2, 0, 1)[None], (self.size, self.size), mode="bilinear", antialias=True
        )
        torch.from_numpy(out).copy_(small[0].permute(1, 2, 0))

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> npt.NDArray[Any]:
        out = np.empty(self.shape, self.dtype)
        self.into(data, rng, out)
        return out
