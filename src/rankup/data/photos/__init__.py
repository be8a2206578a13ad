"""Photos: decoded, cropped and resized on the CPU, normalised on the device.

train = PackedDataset("imagenet.h5", "train", photos.RandomResizedCrop(224))
for images, labels in Loader(train, global_batch=1024):  # uint8, channels last
    images = photos.normalize(images, device="cuda", dtype=torch.bfloat16)
"""

from __future__ import annotations

from ..transforms import seeded
from .decoding import MAX_PIXELS, decode
from .shaping import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    RandomResizedCrop,
    Resize,
    normalize,
)

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MAX_PIXELS",
    "CenterCrop",
    "RandomResizedCrop",
    "Resize",
    "decode",
    "normalize",
    "seeded",
]
