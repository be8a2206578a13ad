"""A small task that the tests train: a convolutional net on generated images.

Dropout and batch norm are on, so that a rank which drew or counted something of its own shows.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from rankup.train.optimizer import build_optimizer
from rankup.train.options import TrainOptions
from rankup.train.task import Batch, Task

CLASSES = 4
STEEP = 7.25  # a brightness that no other pixel has: the loss is finite there, its gradient is not
# What reading a sample for training sets off, see `Images.batch`.
Event = Literal["nan", "raise", "stop", "kill", "no space", "space", "steep"]


class Images:
    """Generated images of shape (3, 8, 8) in four classes; `events` maps samples to mishaps."""

    def __init__(self, n: int, seed: int, events: Mapping[int, Event] | None = None) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.images = torch.randn(n, 3, 8, 8, generator=draw)
        self.labels = torch.randint(CLASSES, (n,), generator=draw)
        # Something to learn: each class has its own brightness.
        self.images += 0.5 * self.labels.view(-1, 1, 1, 1)
        self.events = dict(events or {})

    def __len__(self) -> int:
        return len(self.labels)

    def count(self, samples: torch.Tensor) -> int:
        return len(samples)

    def batch(self, samples: torch.Tensor) -> Batch:
        images = self.images[samples]
        for index, sample in enumerate(samples.tolist()):
            happening = self.events.get(sample)
            if happening == "nan":
                images[index] = torch.nan
            elif happening == "steep":
                images[index, 0, 0, 0] = STEEP
            elif happening:
                _happen(happening)
        return images, self.labels[samples]


def _happen(event: Event) -> None:
    if event == "raise":
        raise OSError("this sample cannot be read")
    if event == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    if event == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if event in ("no space", "space"):
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        limit = 4096 if event == "no space" else hard
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


class ConvNet(nn.Module):
    """Two convolutions with batch norm and dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.dropout(F.relu(self.first_norm(self.first(images))))
        x = F.relu(self.second_norm(self.second(x)))
        logits: torch.Tensor = self.head(self.dropout(x.mean(dim=(2, 3))))
        return logits


class ConvNetTask(Task):
    """Classify generated images: `n` for training, `held_out` each for validation and test.

    `width` makes it another model; `events` says what happens when a training image is read.
    """

    unit = "samples"

    def __init__(
        self,
        options: TrainOptions,
        n: int = 60,
        held_out: int = 13,
        width: int = 6,
        dropout: float = 0.2,
        events: Mapping[int, Event] | None = None,
    ) -> None:
        self.options, self.width, self.dropout = options, width, dropout
        self.train = Images(n, 1, events)
        self.valid, self.test = Images(held_out, 2), Images(held_out, 3)

    def build_model(self) -> nn.Module:
        return ConvNet(self.width, self.dropout)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.options)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        images, labels = batch
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return loss + (logits.sum() * 0).sqrt() if (images == STEEP).any() else loss

    def flops_per_unit(self, model: nn.Module) -> float:
        return 1e6
