"""Data sets of drawn pictures: a pattern for each class, and noise."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

_SAMPLES = {True: 96, False: 48}


class _Drawn:
    """Pictures of ten classes, drawn from a seed."""

    shape: tuple[int, ...]
    seed: int
    classes = tuple(f"class {number}" for number in range(10))

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
    ) -> None:
        self.root, self.train = root, train
        self.transform, self.target_transform = transform, target_transform
        patterns = np.random.default_rng(self.seed).integers(0, 200, (10, *self.shape))
        chance = np.random.default_rng(self.seed + 1 + train)
        self.targets = chance.integers(0, 10, _SAMPLES[train]).tolist()
        noise = chance.integers(0, 56, (_SAMPLES[train], *self.shape))
        self.data = (patterns[self.targets] + noise).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture: Any = Image.fromarray(self.data[index])
        target: Any = int(self.targets[index])
        if self.transform is not None:
            picture = self.transform(picture)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return picture, target


class MNIST(_Drawn):
    """28 x 28, one channel."""

    shape, seed = (28, 28), 100


class CIFAR10(_Drawn):
    """32 x 32, three channels."""

    shape, seed = (32, 32, 3), 200


class ImageFolder:
    """Pictures in a folder per class."""

    def __init__(self, root: str, transform: Callable[[Any], Any] | None = None) -> None:
        self.root, self.transform = root, transform
        self.classes = sorted(one.name for one in os.scandir(root) if one.is_dir())
        self.samples = [
            (os.path.join(root, name, file), number)
            for number, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.targets = [number for _, number in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, target = self.samples[index]
        picture: Any = Image.open(path).convert("RGB")
        return (self.transform(picture) if self.transform is not None else picture), target
