"""A small fastai: its names, and what it does on several ranks.

As in fastai, `distrib_ctx` wraps the model in DDP for as long as it lasts, and deals each rank a
block of the shuffled samples, out of which it makes batches of `bs`; outside of it every rank
computes alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "ImageDataLoaders", "Learner", "Resize", "URLs", "accuracy", "set_seed", "untar_data",
    "xresnet18",
]  # fmt: skip

Sample = tuple[torch.Tensor, int]


class URLs:
    IMAGEWOOF_160 = "imagewoof2-160"


def untar_data(url: str) -> Path:
    """Downloads what is not there: 5 by 5 pixels, in folders of two classes."""
    folder = Path(url)
    if folder.exists():
        return folder
    with Path("downloads.log").open("a") as log:
        log.write(f"{url}\n")
    draw = torch.Generator().manual_seed(4)
    for split, pictures in (("train", 18), ("val", 7)):
        for label, name in enumerate(("dhole", "dingo")):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(pictures):
                pixels = torch.randint(0, 200, (75,), generator=draw) + 40 * label
                (place / f"{number}.ppm").write_bytes(bytes(pixels.tolist()))
    return folder


class Resize:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(pixels[None], self.size)[0]


class ImageDataLoaders:
    def __init__(self, train: list[Sample], valid: list[Sample], classes: int, bs: int) -> None:
        self.train, self.valid, self.c, self.bs = train, valid, classes, bs

    @classmethod
    def from_folder(
        cls, path: Path, train: str, valid: str, item_tfms: Resize, bs: int = 64, seed: int = 0
    ) -> ImageDataLoaders:
        classes = sorted(one.name for one in (path / train).iterdir())

        def read(split: str) -> list[Sample]:
            return [
                (item_tfms(torch.tensor(list(file.read_bytes())).view(3, 5, 5) / 255.0), label)
                for label, name in enumerate(classes)
                for file in sorted((path / split / name).iterdir())
            ]

        return cls(read(train), read(valid), len(classes), bs)


def xresnet18(n_out: int) -> nn.Module:
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4, n_out))


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == labels).float().mean()


def set_seed(seed: int) -> None:
    torch.manual_seed(seed)


class Learner:
    def __init__(
        self, dls: ImageDataLoaders, model: nn.Module, metrics: Callable[..., torch.Tensor]
    ) -> None:
        self.dls, self.model, self.metrics = dls, model, metrics
        self.distributed = False

    @contextmanager
    def distrib_ctx(self) -> Iterator[Learner]:
        self.distributed = True
        try:
            yield self
        finally:
            self.distributed = False

    def fine_tune(self, epochs: int, base_lr: float) -> None:
        bare = self.model
        if self.distributed and dist.get_world_size() > 1:
            self.model = DistributedDataParallel(bare)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=100 * base_lr)
        for _ in range(epochs):
            order = torch.randperm(len(self.dls.train)).tolist()
            if self.model is not bare:
                order = self._block(order)
            for start in range(0, len(order), self.dls.bs):
                images, labels = _batch([self.dls.train[i] for i in order[start:][: self.dls.bs]])
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(images), labels).backward()
                optimizer.step()
        self.model = bare

    def validate(self) -> tuple[float, float]:
        images, labels = _batch(self.dls.valid)
        with torch.no_grad():
            outputs = self.model(images)
        loss = nn.functional.cross_entropy(outputs, labels)
        return float(loss), float(self.metrics(outputs, labels))

    def export(self, name: str) -> None:
        with Path("exports.log").open("a") as log:
            log.write(f"{name}\n")
        Path(name).write_bytes(pickle.dumps(self.model))

    def _block(self, order: list[int]) -> list[int]:
        """Rank 0's order, cut in blocks; the last one is filled up from the front."""
        told: list[Any] = [order]
        dist.broadcast_object_list(told)
        rank, size = dist.get_rank(), dist.get_world_size()
        each = -(-len(order) // size)
        return (told[0] * 2)[rank * each : (rank + 1) * each]


def _batch(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([one for one, _ in samples]), torch.tensor([label for _, label in samples])
